// What a server takes when it is not told: of the machine, or of its control group.
#include "server/memory_limit.h"

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
  uint64_t Limit() const { return DefaultMemoryLimit(directory.path()); }
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

TEST_CASE("this machine has a limit") {
  CHECK(DefaultMemoryLimit() >= kLeastMemoryLimit);
  CHECK(DefaultMemoryLimit() < (uint64_t{1} << 50));
}

}  // namespace
}  // namespace verbena::server
