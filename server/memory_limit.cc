#include "server/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena::server {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
// Groups of v1 without a limit have 2^63 rounded down to pages.
constexpr uint64_t kMostBelievable = uint64_t{1} << 60;

struct Limit {
  uint64_t bytes = kUnlimited;
  std::string source;
};

void TakeLess(Limit* least, uint64_t bytes, const std::string& source) {
  if (bytes < least->bytes && bytes <= kMostBelievable) *least = {bytes, source};
}

void TakeMachine(const std::string& files, Limit* least) {
  std::ifstream file(files + "/proc/meminfo");
  uint64_t kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == "MemTotal:" && file >> kilobytes) {
      return TakeLess(least, kilobytes * 1024, "of this machine");
    }
  }
}

// "max" and unreadable contents mean no limit.
void TakeFile(const std::string& files, const std::string& path, Limit* least) {
  std::ifstream file(files + path);
  std::string word;
  uint64_t bytes = 0;
  if (file >> word && absl::SimpleAtoi(word, &bytes))
    TakeLess(least, bytes, absl::StrCat("in ", path));
}

// The group's own limit, and those of the groups above it. In a container the folder may be a path
// of the host that is not there; the mounted root is then the container's group.
void TakeGroups(const std::string& files, const std::string& root, std::string folder,
                const std::string& name, Limit* least) {
  for (;;) {
    const std::string inner = folder == "/" ? "" : folder;
    TakeFile(files, absl::StrCat(root, inner, "/", name), least);
    if (folder.size() <= 1) return;
    folder.resize(std::max<size_t>(folder.rfind('/'), 1));
  }
}

// Lines of /proc/self/cgroup: "0::/path" for the unified hierarchy, "5:memory:/path" for v1.
void TakeAllGroups(const std::string& files, Limit* least) {
  std::string unified = "/", memory = "/";
  std::ifstream file(files + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[1].empty()) unified = parts[2];
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::count(controllers.begin(), controllers.end(), "memory") > 0) memory = parts[2];
  }
  TakeGroups(files, "/sys/fs/cgroup", unified, "memory.max", least);
  TakeGroups(files, "/sys/fs/cgroup/memory", memory, "memory.limit_in_bytes", least);
}

void TakeAddressSpace(Limit* least) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  TakeLess(least, limit.rlim_cur, "of address space (ulimit -v)");
}

}  // namespace

MemoryLimit DefaultMemoryLimit(const std::string& files) {
  Limit least;
  TakeMachine(files, &least);
  TakeAllGroups(files, &least);
  TakeAddressSpace(&least);
  if (least.bytes == kUnlimited) return {kUnlimited / 2, "no limit of this machine is known"};
  return {std::max(least.bytes / 5 * 4, kLeastMemoryLimit),
          absl::StrCat("4/5 of the ", least.bytes >> 20, " MiB ", least.source)};
}

}  // namespace verbena::server
