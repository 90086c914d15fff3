#include "server/free_heap.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace verbena::server {
namespace {

// Sanitizers have a malloc() of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReplaced = true;
#else
constexpr bool kReplaced = false;
#endif

class TestClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_; }
  void Pass(absl::Duration time) { now_ += absl::ToInt64Nanoseconds(time); }

 private:
  int64_t now_ = 0;
};

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kBurstBytes = 6 * FreeHeap::kTrimBytes;

size_t ResidentBytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Takes memory as a burst of calls does, and frees it. A block that stays behind it keeps free()
// from returning the end of the heap.
std::unique_ptr<char[]> Burst() {
  std::vector<std::unique_ptr<char[]>> blocks(kBurstBytes / kBlockBytes);
  for (auto& block : blocks) {
    block = std::make_unique<char[]>(kBlockBytes);
    std::memset(block.get(), 1, kBlockBytes);
  }
  return std::make_unique<char[]>(kBlockBytes);
}

TEST_CASE("memory of every burst is returned, also where an earlier one was") {
  if (kReplaced) return;
  TestClock clock;
  FreeHeap heap(&clock);
  const size_t quiet = ResidentBytes();
  std::vector<std::unique_ptr<char[]>> stay;
  // The second burst takes pages that were returned after the first one, and no look finds fewer
  // free blocks in between.
  for (int burst = 0; burst < 3; ++burst) {
    stay.push_back(Burst());
    CHECK(ResidentBytes() > quiet + kBurstBytes / 2);
    heap.Return();
    CHECK(ResidentBytes() < quiet + FreeHeap::kTrimBytes);
    clock.Pass(FreeHeap::kPeriod);
  }
}

TEST_CASE("looks at the heap are a period apart") {
  if (kReplaced) return;
  TestClock clock;
  FreeHeap heap(&clock);
  heap.Return();
  const size_t quiet = ResidentBytes();
  const auto stays = Burst();
  clock.Pass(FreeHeap::kPeriod - absl::Nanoseconds(1));
  heap.Return();
  CHECK(ResidentBytes() > quiet + kBurstBytes / 2);
  clock.Pass(absl::Nanoseconds(1));
  heap.Return();
  CHECK(ResidentBytes() < quiet + FreeHeap::kTrimBytes);
}

}  // namespace
}  // namespace verbena::server
