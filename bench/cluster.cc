#include "bench/cluster.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The value of `name` in a ready file.
std::string AddressIn(const std::string& json, const std::string& name = "address") {
  const size_t key = json.find("\"" + name + "\"");
  if (key == std::string::npos || json.find('}') == std::string::npos) return "";
  const size_t colon = json.find(':', key);
  const size_t open = json.find('"', colon);
  const size_t close = json.find('"', open + 1);
  if (colon == std::string::npos || open == std::string::npos || close == std::string::npos) {
    return "";
  }
  return json.substr(open + 1, close - open - 1);
}

// True once the process has ended; false after `patience`.
bool AwaitEnd(pid_t pid, milliseconds patience) {
  const auto until = steady_clock::now() + patience;
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace

void PinToCpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  // Where there are fewer CPUs the run is still valid, only not placed.
  (void)sched_setaffinity(0, sizeof set, &set);
}

int64_t ProcessCpuNanos(pid_t pid) {
  int64_t total = 0;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream file(task.path() / "schedstat");
    int64_t on_cpu = 0;
    if (file >> on_cpu) total += on_cpu;
  }
  return total;
}

absl::StatusOr<pid_t> Cluster::Spawn(const std::string& name, std::vector<std::string> arguments,
                                     int cpu) {
  std::vector<std::string> all = {options_.verbenad,
                                  "--listen",
                                  "127.0.0.1:0",
                                  "--metrics",
                                  "127.0.0.1:0",
                                  "--name",
                                  name,
                                  "--ready-file",
                                  folder_ + "/" + name + ".ready"};
  all.insert(all.end(), std::make_move_iterator(arguments.begin()),
             std::make_move_iterator(arguments.end()));
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = folder_ + "/" + name + ".log";

  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) {
    // No server outlives a benchmark that was killed.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out >= 0) {
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned c = 0; c < CPU_SETSIZE; ++c) {
      if (cpu < 0 || c == static_cast<unsigned>(cpu)) CPU_SET(c, &set);
    }
    sched_setaffinity(0, sizeof set, &set);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

absl::StatusOr<std::string> Cluster::AwaitAddress(const std::string& name, pid_t pid) const {
  const auto until = steady_clock::now() + seconds(30);
  while (steady_clock::now() < until) {
    std::string address = AddressIn(ReadAll(folder_ + "/" + name + ".ready"));
    if (!address.empty()) return address;
    if (waitpid(pid, nullptr, WNOHANG) == pid) break;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return absl::UnavailableError(absl::StrCat(name, " is not ready; its log ends with:\n",
                                             ReadAll(folder_ + "/" + name + ".log")));
}

absl::Status Cluster::SpawnCoordinator() {
  std::vector<std::string> arguments = {"--coordinator",
                                        "--shards",
                                        "0",
                                        "--state",
                                        folder_ + "/state",
                                        "--expected-servers",
                                        absl::StrCat(options_.servers),
                                        "--replicas",
                                        absl::StrCat(options_.replicas)};
  const auto add = [&](const char* option, int value) {
    if (value != 0) arguments.insert(arguments.end(), {option, absl::StrCat(value)});
  };
  add("--lease-ms", options_.lease_ms);
  add("--partitions", options_.partitions);
  arguments.insert(arguments.end(), options_.coordinator_options.begin(),
                   options_.coordinator_options.end());
  absl::StatusOr<pid_t> pid = Spawn("coordinator", std::move(arguments), -1);
  if (!pid.ok()) return pid.status();
  pids_.push_back(*pid);
  absl::StatusOr<std::string> address = AwaitAddress("coordinator", *pid);
  if (!address.ok()) return address.status();
  address_ = *address;
  return absl::OkStatus();
}

absl::StatusOr<pid_t> Cluster::SpawnServer(int index) {
  std::vector<std::string> arguments = {"--join",      address_,
                                        "--shards",    absl::StrCat(options_.shards),
                                        "--transport", options_.wire.transport};
  if (!options_.wire.device.empty()) {
    arguments.insert(arguments.end(), {"--rdma-device", options_.wire.device});
  }
  if (options_.cold) {
    arguments.insert(arguments.end(), {"--cold-dir", absl::StrCat(folder_, "/cold-", index)});
  }
  arguments.insert(arguments.end(), options_.server_options.begin(), options_.server_options.end());
  return Spawn(absl::StrCat("server-", index), std::move(arguments), options_.server_cpu);
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  std::unique_ptr<Cluster> cluster(new Cluster);
  cluster->options_ = options;
  std::string folder = std::filesystem::temp_directory_path() / "verbena-bench.XXXXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp " + folder);
  cluster->folder_ = folder;
  if (absl::Status status = cluster->SpawnCoordinator(); !status.ok()) return status;
  for (int i = 0; i < options.servers; ++i) {
    absl::StatusOr<pid_t> pid = cluster->SpawnServer(i);
    if (!pid.ok()) return pid.status();
    cluster->pids_.push_back(*pid);
  }
  for (int i = 0; i < options.servers; ++i) {
    auto address = cluster->AwaitAddress(absl::StrCat("server-", i), cluster->pids_[i + 1]);
    if (!address.ok()) return address.status();
  }
  return cluster;
}

void Cluster::KillServer(int index) {
  kill(pids_[index + 1], SIGKILL);
  waitpid(pids_[index + 1], nullptr, 0);
  std::filesystem::remove(absl::StrCat(folder_, "/server-", index, ".ready"));
}

absl::Status Cluster::RestartServer(int index) {
  const std::string name = absl::StrCat("server-", index);
  absl::StatusOr<pid_t> pid = SpawnServer(index);
  if (!pid.ok()) return pid.status();
  pids_[index + 1] = *pid;
  return AwaitAddress(name, *pid).status();
}

Cluster::~Cluster() {
  // Servers before their coordinator.
  for (auto pid = pids_.rbegin(); pid != pids_.rend(); ++pid) {
    kill(*pid, SIGTERM);
    if (!AwaitEnd(*pid, seconds(5))) {
      kill(*pid, SIGKILL);
      AwaitEnd(*pid, seconds(5));
    }
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::string Cluster::MetricsAddress(int index) const {
  return AddressIn(ReadAll(absl::StrCat(folder_, "/server-", index, ".ready")), "metrics");
}

int64_t Cluster::CpuNanos() const {
  int64_t total = 0;
  for (const pid_t pid : pids_) total += ProcessCpuNanos(pid);
  return total;
}

int64_t Cluster::ResidentBytes() const {
  int64_t pages = 0;
  for (const pid_t pid : pids_) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
    int64_t size = 0;
    int64_t resident = 0;
    if (file >> size >> resident) pages += resident;
  }
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace verbena::bench
