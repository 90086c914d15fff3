#include "proto/base/threads.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace verbena {
namespace {

struct Limit {
  uint64_t most = std::numeric_limits<uint64_t>::max();
  std::string text;
};

// "max" and an unreadable file mean no limit.
bool ReadNumber(const std::string& path, uint64_t* number) {
  std::ifstream file(path);
  std::string word;
  return file >> word && absl::SimpleAtoi(word, number);
}

// Applies the limits of `folder` below `root` and of its parent groups. In a container the folder
// may be a path of the host that does not exist; the mounted root is then the container's group.
void TakeGroups(const std::string& files, const std::string& root, std::string folder,
                Limit* least) {
  for (;;) {
    const std::string group = absl::StrCat(root, folder == "/" ? "" : folder);
    uint64_t most = 0, now = 0;
    if (ReadNumber(absl::StrCat(files, group, "/pids.max"), &most) && most < least->most) {
      std::string use;
      if (ReadNumber(absl::StrCat(files, group, "/pids.current"), &now)) {
        use = absl::StrCat(", ", now, " in use");
      }
      *least = {most, absl::StrCat("pids.max is ", most, use, " (", group, "/pids.max)")};
    }
    if (folder.size() <= 1) return;
    folder.resize(std::max<size_t>(folder.rfind('/'), 1));
  }
}

// Reads the lines of /proc/self/cgroup: "0::/path" for the unified hierarchy, "5:pids:/path" for
// v1.
std::string GroupLimit(const std::string& files) {
  std::string unified = "/", pids = "/";
  std::ifstream file(files + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[1].empty()) unified = parts[2];
    if (parts[1] == "pids") pids = parts[2];
  }
  Limit least;
  TakeGroups(files, "/sys/fs/cgroup", unified, &least);
  TakeGroups(files, "/sys/fs/cgroup/pids", pids, &least);
  return least.text;
}

std::string ProcessLimit(int resource, const char* name, const char* command) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return absl::StrCat(name, " is ", limit.rlim_cur, " (", command, ")");
}

// The number of threads that the linked gRPC starts: executors, timers, and pools sized by the
// machine's processors (not by the allowed ones).
int GrpcThreads() {
  const int processors = static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_CONF), 1L));
  return 8 + std::clamp(processors, 2, 32) + std::clamp(processors / 2, 2, 16);
}

}  // namespace

std::string ThreadLimits(const std::string& files) {
  std::vector<std::string> limits = {
      GroupLimit(files),
      // The kernel does not count the superuser's processes.
      geteuid() == 0 ? "" : ProcessLimit(RLIMIT_NPROC, "RLIMIT_NPROC", "ulimit -u"),
      ProcessLimit(RLIMIT_AS, "RLIMIT_AS", "ulimit -v")};
  std::erase(limits, "");
  if (limits.empty()) return "no limit of this process is known; see kernel.threads-max";
  return absl::StrCat(absl::StrJoin(limits, "; "), "; raise the limit that is reached");
}

absl::StatusOr<std::thread> StartThread(std::string_view name, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start thread ", absl::string_view(name.data(), name.size()), ": ",
                     error.code().message(), " (", ThreadLimits(), ")"));
  }
}

absl::Status CheckThreadRoom(int threads, std::string_view purpose) {
  std::mutex mutex;
  std::condition_variable changed;
  bool end = false;
  std::vector<std::thread> started;
  std::string problem;
  // The threads of the probe block all signals: a handler of the program could run on them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    started.reserve(static_cast<size_t>(threads));
    while (started.size() < static_cast<size_t>(threads)) {
      started.emplace_back([&] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return end; });
      });
    }
  } catch (const std::system_error& error) {
    problem = error.code().message();
  }
  // While the threads run, so that the numbers in use are those at the failure.
  const std::string limits = problem.empty() ? "" : ThreadLimits();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    end = true;
  }
  changed.notify_all();
  for (std::thread& thread : started) thread.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (problem.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot start ", threads, " threads (", started.size(), " could be) for ",
      absl::string_view(purpose.data(), purpose.size()), ": ", problem, " (", limits, ")"));
}

absl::Status CheckGrpcThreadRoom(int more, std::string_view purpose) {
  static std::atomic<bool> checked{false};
  if (checked.load(std::memory_order_relaxed)) return absl::OkStatus();
  absl::Status status = CheckThreadRoom(GrpcThreads() + more, purpose);
  if (status.ok()) checked.store(true, std::memory_order_relaxed);
  return status;
}

}  // namespace verbena
