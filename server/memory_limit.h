// The default limit of a server's memory for tables.
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

// Four fifths of the least of three limits, but at least kLeastMemoryLimit:
//  - the machine's memory (/proc/meminfo, proc(5));
//  - the limits of the process's control group and its ancestors (memory.max of cgroup v2,
//    memory.limit_in_bytes of v1; Linux, cgroup-v2.rst and cgroup-v1/memory.rst);
//  - the limit of address space (RLIMIT_AS).
// The rest is for lanes, the coordinator and the system. `files` is a prefix of the paths that are
// read, for tests.
MemoryLimit DefaultMemoryLimit(const std::string& files = "");

}  // namespace verbena::server

#endif  // VERBENA_SERVER_MEMORY_LIMIT_H_
