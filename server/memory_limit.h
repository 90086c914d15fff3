// How much memory a server takes for tables when it is not told.
//
// **Thread safety**: pure functions of files of the system.
#ifndef VERBENA_SERVER_MEMORY_LIMIT_H_
#define VERBENA_SERVER_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace verbena::server {

inline constexpr uint64_t kLeastMemoryLimit = uint64_t{64} << 20;

// Four fifths of the machine's memory, or of what its control group may use where that is less. The
// rest is for lanes, the coordinator and the system. `files` is put before the names of the files
// that are read, for tests: /proc/meminfo (proc(5)), and memory.max in the group's folder under
// /sys/fs/cgroup and in those above it (Linux, cgroup-v2.rst).
uint64_t DefaultMemoryLimit(const std::string& files = "");

}  // namespace verbena::server

#endif  // VERBENA_SERVER_MEMORY_LIMIT_H_
