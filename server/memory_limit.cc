#include "server/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/numbers.h"

namespace verbena::server {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

uint64_t MachineMemory(const std::string& files) {
  std::ifstream file(files + "/proc/meminfo");
  uint64_t kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == "MemTotal:" && file >> kilobytes) return kilobytes * 1024;
  }
  return kUnlimited;
}

// "max" and what cannot be read is no limit.
uint64_t LimitIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t bytes = 0;
  return file >> word && absl::SimpleAtoi(word, &bytes) ? bytes : kUnlimited;
}

// The unified hierarchy's line is "0::/path".
uint64_t GroupMemory(const std::string& files) {
  std::ifstream file(files + "/proc/self/cgroup");
  std::string folder = "/";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) folder = line.substr(3);
  }
  uint64_t least = kUnlimited;
  while (true) {
    least = std::min(least, LimitIn(files + "/sys/fs/cgroup" + folder + "/memory.max"));
    if (folder.size() <= 1) return least;
    folder.resize(std::max<size_t>(folder.rfind('/'), 1));
  }
}

}  // namespace

uint64_t DefaultMemoryLimit(const std::string& files) {
  const uint64_t memory = std::min(MachineMemory(files), GroupMemory(files));
  if (memory == kUnlimited) return kUnlimited / 2;
  return std::max(memory / 5 * 4, kLeastMemoryLimit);
}

}  // namespace verbena::server
