// How much memory a server takes for tables by default.
//
// **Thread safety**: pure functions of files of the system.
#ifndef VERBENA_SERVER_MEMORY_LIMIT_H_
#define VERBENA_SERVER_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace verbena::server {

inline constexpr uint64_t kLeastMemoryLimit = uint64_t{64} << 20;

struct MemoryLimit {
  uint64_t bytes = 0;
  std::string source;  // "4/5 of the 512 MiB in /sys/fs/cgroup/memory/box/memory.limit_in_bytes"
};

// Four fifths of the least of: the machine's memory (/proc/meminfo, proc(5)); what the process's
// control group and those above it may use (memory.max of cgroup v2, memory.limit_in_bytes of v1;
// Linux, cgroup-v2.rst and cgroup-v1/memory.rst); its limit of address space (RLIMIT_AS). The rest
// is for lanes, the coordinator and the system. At least kLeastMemoryLimit. `files` is put before
// the names of the files that are read, for tests.
MemoryLimit DefaultMemoryLimit(const std::string& files = "");

}  // namespace verbena::server

#endif  // VERBENA_SERVER_MEMORY_LIMIT_H_
