#include "proto/base/threads.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/process.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  WriteFile(path, text);
}

TEST_CASE("a thread starts, and a check for several succeeds") {
  int ran = 0;
  absl::StatusOr<std::thread> thread = StartThread("test", [&] { ran = 1; });
  REQUIRE(thread.ok());
  thread->join();
  CHECK(ran == 1);
  CHECK(CheckThreadRoom(8, "the test").ok());
}

TEST_CASE("the limit of threads is the least of a group's and those above it, v1 and v2") {
  TemporaryDirectory root;
  Write(root.File("proc/self/cgroup"), "8:pids:/a/b\n4:memory:/m\n0::/c\n");
  CHECK_THAT(ThreadLimits(root.path()), !Contains("pids.max"));
  Write(root.File("sys/fs/cgroup/pids/a/b/pids.max"), "max\n");
  Write(root.File("sys/fs/cgroup/pids/a/pids.max"), "100\n");
  CHECK_THAT(ThreadLimits(root.path()),
             Contains("pids.max is 100 (/sys/fs/cgroup/pids/a/pids.max)"));
  Write(root.File("sys/fs/cgroup/c/pids.max"), "24\n");
  Write(root.File("sys/fs/cgroup/c/pids.current"), "20\n");
  CHECK_THAT(
      ThreadLimits(root.path()),
      Contains("pids.max is 24, 20 in use (/sys/fs/cgroup/c/pids.max)") && Contains("raise"));
  // In a container the group's path may be the host's.
  Write(root.File("proc/self/cgroup"), "0::/not/here\n");
  Write(root.File("sys/fs/cgroup/pids.max"), "7\n");
  CHECK_THAT(ThreadLimits(root.path()), Contains("pids.max is 7 (/sys/fs/cgroup/pids.max)"));
}

// Sanitizers reserve more than any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("without space for a thread the error names the limit") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Limits the address space: enough for the program, but not for the stacks of threads.
    const rlimit little = {256 << 20, 256 << 20};
    setrlimit(RLIMIT_AS, &little);
    const absl::Status room = CheckThreadRoom(1000, "the test");
    const std::string text(room.message());
    _exit(absl::IsResourceExhausted(room) &&
                  text.find("cannot start 1000 threads (") != std::string::npos &&
                  text.find("for the test: Resource temporarily unavailable") !=
                      std::string::npos &&
                  text.find("RLIMIT_AS is 268435456") != std::string::npos
              ? 0
              : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

}  // namespace
}  // namespace verbena::test
