// Starts threads, and checks in advance that threads can be started.
//
// A process may have reached a limit of its control group (pids.max), its user (RLIMIT_NPROC), its
// address space or the machine. In that case std::thread throws, and gRPC logs a line and waits for
// threads that do not exist.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_BASE_THREADS_H_
#define VERBENA_PROTO_BASE_THREADS_H_

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// RESOURCE_EXHAUSTED: "cannot start thread NAME: Resource temporarily unavailable (" ThreadLimits()
// ")".
absl::StatusOr<std::thread> StartThread(std::string_view name, std::function<void()> body);

// Starts `threads` threads so that all exist at the same time, and ends them. RESOURCE_EXHAUSTED:
// "cannot start N threads (M could be) for PURPOSE: ...", with the limits as in StartThread().
absl::Status CheckThreadRoom(int threads, std::string_view purpose);

// Calls CheckThreadRoom() for `more` threads of the caller plus the threads that gRPC 1.51 starts
// in this process. Checks only once: later calls find gRPC's threads started and return OK.
absl::Status CheckGrpcThreadRoom(int more, std::string_view purpose);

// The limits that may be reached, as a text: "pids.max is 24, 24 in use
// (/sys/fs/cgroup/box/pids.max); RLIMIT_NPROC is 100 (ulimit -u)". `files` is a prefix of the names
// of the files that are read, for tests.
std::string ThreadLimits(const std::string& files = "");

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_THREADS_H_
