// The default memory limit of a server: from the machine, or from its control group.
#include "server/memory_limit.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/process.h"

namespace verbena::server {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Machine {
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = directory.path() + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  uint64_t Limit() const { return DefaultMemoryLimit(directory.path()).bytes; }
  test::TemporaryDirectory directory;
};

TEST_CASE("four fifths of the machine, or of the least group above this process") {
  Machine machine;
  CHECK(machine.Limit() > 1000 * kGiB);  // nothing is known: no limit to speak of
  machine.Write("/proc/meminfo", "MemTotal:       10485760 kB\nMemFree: 1 kB\n");
  CHECK(machine.Limit() == 8 * kGiB);
  machine.Write("/proc/self/cgroup", "0::/outer/inner\n");
  machine.Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  CHECK(machine.Limit() == 8 * kGiB);
  machine.Write("/sys/fs/cgroup/outer/memory.max", "5368709120\n");
  CHECK(machine.Limit() == 4 * kGiB);
  machine.Write("/sys/fs/cgroup/outer/inner/memory.max", "1024\n");
  CHECK(machine.Limit() == kLeastMemoryLimit);
  machine.Write("/sys/fs/cgroup/outer/inner/memory.max", "not a number\n");
  machine.Write("/sys/fs/cgroup/memory.max", "1342177280\n");
  CHECK(machine.Limit() == kGiB);
}

TEST_CASE("regression: the limits of control groups of version 1 count") {
  Machine machine;
  machine.Write("/proc/meminfo", "MemTotal:       10485760 kB\nMemFree: 1 kB\n");
  machine.Write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/outer/inner\n0::/unified\n");
  const std::string root = "/sys/fs/cgroup/memory";
  machine.Write(root + "/memory.limit_in_bytes", "9223372036854771712\n");
  machine.Write(root + "/other/memory.limit_in_bytes", "1024\n");
  CHECK(machine.Limit() == 8 * kGiB);
  machine.Write(root + "/outer/memory.limit_in_bytes", "5368709120\n");
  CHECK(machine.Limit() == 4 * kGiB);
  machine.Write(root + "/outer/inner/memory.limit_in_bytes", "1342177280\n");
  CHECK(machine.Limit() == kGiB);
  CHECK(DefaultMemoryLimit(machine.directory.path()).source ==
        "4/5 of the 1280 MiB in /sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes");
  // In a container the folder is the host's, and the root is the container's own group.
  machine.Write("/proc/self/cgroup", "4:memory:/docker/1234\n");
  machine.Write(root + "/memory.limit_in_bytes", "671088640\n");
  CHECK(machine.Limit() == kGiB / 2);
}

// Sanitizers need terabytes of it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("the limit of address space counts") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit less = before;
  less.rlim_cur = 100 * kGiB;
  REQUIRE(setrlimit(RLIMIT_AS, &less) == 0);
  const Machine machine;
  CHECK(machine.Limit() == 80 * kGiB);
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
}
#endif

TEST_CASE("this machine has a limit") {
  CHECK(DefaultMemoryLimit().bytes >= kLeastMemoryLimit);
  CHECK(DefaultMemoryLimit().bytes < (uint64_t{1} << 50));
}

}  // namespace
}  // namespace verbena::server
