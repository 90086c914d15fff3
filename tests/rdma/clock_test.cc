// Leases are measured with a clock that counts the time in which the machine was suspended.
#include "rdma/base/clock.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

namespace verbena {
namespace {

constexpr int kCounted = 0, kNotCounted = 1, kNotPermitted = 2;

// In a child process: its children are in a time namespace where only CLOCK_BOOTTIME is ahead, as
// on a machine that was suspended.
int InSuspendedMachine() {
#ifndef CLONE_NEWTIME
  return kNotPermitted;
#else
  constexpr int64_t kSuspendedSeconds = 100000;
  const int64_t before = MonotonicClock().NowNanos();
  if (unshare(CLONE_NEWTIME) != 0) return kNotPermitted;
  const int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
  const char offsets[] = "boottime 100000 0\n";
  if (fd < 0 || write(fd, offsets, std::strlen(offsets)) < 0) return kNotPermitted;
  close(fd);
  const pid_t child = fork();
  if (child < 0) return kNotPermitted;
  if (child == 0) {
    const int64_t passed = MonotonicClock().NowNanos() - before;
    _exit(passed >= kSuspendedSeconds * 1'000'000'000 ? kCounted : kNotCounted);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kNotPermitted;
  return WEXITSTATUS(status);
#endif
}

TEST_CASE("the clock counts the time in which the machine was suspended") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(InSuspendedMachine());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) {
    WARN("time namespaces are not permitted here: only the clock's id was looked at");
  } else {
    CHECK(WEXITSTATUS(status) == kCounted);
  }
  CHECK(MonotonicClock::kId == CLOCK_BOOTTIME);
}

}  // namespace
}  // namespace verbena
