// Scratch memory whose content is kept for later pins: for how long, and at whose cost.
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "shard/table/buffer_pool.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

constexpr size_t kMost = BufferPool::kIdleScratchBytes;
constexpr size_t kSize = 64 << 10;

struct Rig {
  LimitedAllocator allocator;
  uint64_t resident = 0;
  BufferPool pool{&allocator, 4, &resident};

  uint64_t Keep(uint8_t content, size_t bytes = kSize, JobAccount* account = nullptr) {
    const Buffer buffer = pool.TakeToKeep(bytes, account);
    REQUIRE(buffer.data != nullptr);
    std::memset(buffer.data, content, bytes);
    return pool.PinToKeep(buffer);
  }
  uint8_t ContentOf(uint64_t pin) { return static_cast<uint8_t>(*pool.pinned_buffer(pin).data); }
};

TEST_CASE("kept scratch can be pinned again while and after it is pinned, until it is forgotten") {
  Rig rig;
  const uint64_t pin = rig.Keep(7);
  REQUIRE(rig.pool.PinAgain(pin));
  rig.pool.Unpin(pin);
  rig.pool.Unpin(pin);
  rig.pool.Unpin(pin);  // one too many
  REQUIRE(rig.pool.PinAgain(pin));
  CHECK(rig.ContentOf(pin) == 7);
  rig.pool.Forget(pin);
  CHECK_FALSE(rig.pool.PinAgain(pin));
  CHECK(rig.ContentOf(pin) == 7);  // still out
  rig.pool.Unpin(pin);
  rig.pool.Forget(pin);
  CHECK_FALSE(rig.pool.PinAgain(pin));
  // Forgotten memory is used for the next one.
  const size_t used = rig.allocator.used;
  const uint64_t next = rig.Keep(8);
  CHECK(rig.allocator.used == used);
  CHECK(next != pin);
  CHECK_FALSE(rig.pool.PinAgain(pin));
  rig.pool.Forget(pin);
  REQUIRE(rig.pool.PinAgain(next));
  CHECK_FALSE(rig.pool.PinAgain(UINT64_MAX));
  rig.pool.Forget(UINT64_MAX);
}

TEST_CASE("kept memory is limited to the idle limit, and the oldest is dropped first") {
  Rig rig;
  constexpr size_t kCount = kMost / kSize;
  std::vector<uint64_t> pins;
  for (size_t i = 0; i < kCount; ++i) {
    pins.push_back(rig.Keep(static_cast<uint8_t>(i)));
    rig.pool.Unpin(pins.back());
  }
  CHECK(rig.allocator.used == kMost);
  // Used again: now it is 1 that was kept longest.
  REQUIRE(rig.pool.PinAgain(pins[0]));
  rig.pool.Unpin(pins[0]);
  rig.pool.Unpin(rig.Keep(200));
  CHECK(rig.allocator.used == kMost);
  CHECK_FALSE(rig.pool.PinAgain(pins[1]));
  REQUIRE(rig.pool.PinAgain(pins[0]));
  REQUIRE(rig.pool.PinAgain(pins[2]));
  CHECK(rig.ContentOf(pins[2]) == 2);
  rig.pool.Unpin(pins[0]);
  rig.pool.Unpin(pins[2]);
  SECTION("returned scratch counts as idle, too") {
    const Buffer scratch = rig.pool.TakeScratch(4 * kSize);
    rig.pool.ReturnScratch(scratch);
    CHECK(rig.allocator.used <= kMost);
    const Buffer again = rig.pool.TakeScratch(4 * kSize);
    CHECK(again.data == scratch.data);
    CHECK_FALSE(rig.pool.PinAgain(pins[3]));
    rig.pool.ReturnScratch(again);
  }
  SECTION("memory larger than the limit is freed") {
    const Buffer large = rig.pool.TakeToKeep(kMost + 1);
    const uint64_t pin = rig.pool.PinToKeep(large);
    rig.pool.Unpin(pin);
    CHECK_FALSE(rig.pool.PinAgain(pin));
    CHECK(rig.allocator.used <= kMost);
  }
  SECTION("without free memory, kept memory is used") {
    rig.allocator.limit = rig.allocator.used;
    const Buffer scratch = rig.pool.TakeScratch(20 * kSize);
    CHECK(scratch.data != nullptr);
    CHECK_FALSE(rig.pool.PinAgain(pins[3]));
    rig.pool.ReturnScratch(scratch);
    CHECK(rig.pool.PinAgain(pins.back()));
  }
  SECTION("trimming frees all") {
    rig.pool.Trim();
    CHECK(rig.allocator.used == 0);
    CHECK_FALSE(rig.pool.PinAgain(pins.back()));
  }
}

TEST_CASE("regression: idle memory of other sizes is freed when memory is short") {
  Rig rig;
  rig.allocator.limit = 4 * kSize;
  const Buffer small = rig.pool.TakeScratch(kSize);
  const Buffer sum = rig.pool.TakeAccumulator(kSize);
  rig.pool.ReturnScratch(small);
  rig.pool.ReturnAccumulator(sum);
  SECTION("for scratch") {
    const Buffer large = rig.pool.TakeScratch(4 * kSize);
    REQUIRE(large.data != nullptr);
    rig.pool.ReturnScratch(large);
  }
  SECTION("for an accumulator") {
    const Buffer large = rig.pool.TakeAccumulator(4 * kSize);
    REQUIRE(large.data != nullptr);
    rig.pool.ReturnAccumulator(large);
  }
  SECTION("for exact sizes") {
    const Buffer large = rig.pool.TakeExact(4 * kSize);
    REQUIRE(large.data != nullptr);
    rig.pool.FreeExact(large);
  }
  SECTION("for a table") {
    const Buffer large = rig.pool.Allocate(4 * kSize);
    REQUIRE(large.data != nullptr);
    rig.pool.Free(large);
  }
  SECTION("for a copy's rows, not for its own") {
    CHECK(rig.pool.AllocateRows(4 * kSize, kSize, nullptr).data == nullptr);
    rig.pool.SetFor(MemoryFor::kFollower);
    const Buffer large = rig.pool.AllocateRows(4 * kSize, kSize, nullptr);
    REQUIRE(large.data != nullptr);
    rig.pool.Free(large);
    rig.pool.SetFor(MemoryFor::kPrimary);
  }
  CHECK(rig.pool.TakeScratch(5 * kSize).data == nullptr);
}

TEST_CASE("kept scratch counts against the job that has it pinned, and otherwise against none") {
  auto job = std::make_shared<JobMemory>();
  JobAccount account(job);
  Rig rig;
  const uint64_t pin = rig.Keep(1, kSize, &account);
  CHECK(account.bytes() == kSize);
  REQUIRE(rig.pool.PinAgain(pin, &account));
  CHECK(account.bytes() == kSize);
  rig.pool.Unpin(pin);
  rig.pool.Unpin(pin);
  CHECK(account.bytes() == 0);
  REQUIRE(rig.pool.PinAgain(pin, &account));
  CHECK(account.bytes() == kSize);
  rig.pool.Unpin(pin);
  job->SetLimit(0);
  REQUIRE(account.Take(JobMemory::kLeastScratch, MemoryUse::kScratch));
  CHECK_FALSE(rig.pool.PinAgain(pin, &account));
  CHECK(rig.pool.refused_by_job());
  account.Give(JobMemory::kLeastScratch, MemoryUse::kScratch);
  CHECK(rig.pool.PinAgain(pin, &account));
  rig.pool.Unpin(pin);
  CHECK(account.bytes() == 0);
}

// Compared with a list of the expected contents.
TEST_CASE("contents and sums stay right under random takes, pins, keeps and forgets") {
  std::mt19937 random(11);
  Rig rig;
  struct Kept {
    uint64_t pin;
    uint8_t content;
    uint32_t pins;
  };
  std::deque<Kept> all;
  std::vector<Buffer> scratch;
  for (int i = 0; i < 20000; ++i) {
    const size_t at = all.empty() ? 0 : random() % all.size();
    switch (random() % 6) {
      case 0:
        if (all.size() < 400) {
          const auto content = static_cast<uint8_t>(random());
          all.push_back({rig.Keep(content, 1000 + random() % (4 * kSize)), content, 1});
        }
        break;
      case 1:
      case 2:
        if (all.empty() || all[at].pins == 0) break;
        REQUIRE(rig.ContentOf(all[at].pin) == all[at].content);
        rig.pool.Unpin(all[at].pin);
        --all[at].pins;
        break;
      case 3:
        if (all.empty()) break;
        if (rig.pool.PinAgain(all[at].pin)) {
          ++all[at].pins;
          REQUIRE(rig.ContentOf(all[at].pin) == all[at].content);
        } else {
          REQUIRE(all[at].pins == 0);
          all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
        }
        break;
      case 4:
        if (all.empty() || all[at].pins > 0) break;
        rig.pool.Forget(all[at].pin);
        REQUIRE_FALSE(rig.pool.PinAgain(all[at].pin));
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        if (scratch.size() < 5) {
          scratch.push_back(rig.pool.TakeScratch(1000 + random() % (8 * kSize)));
          std::memset(scratch.back().data, 0xee, scratch.back().bytes);
        } else {
          for (const Buffer& b : scratch) rig.pool.ReturnScratch(b);
          scratch.clear();
        }
    }
    REQUIRE(rig.resident == rig.allocator.used);
  }
  for (const Buffer& b : scratch) rig.pool.ReturnScratch(b);
  for (const Kept& k : all) {
    for (uint32_t p = 0; p < k.pins; ++p) rig.pool.Unpin(k.pin);
  }
  CHECK(rig.allocator.used <= kMost);
  rig.pool.Trim();
  CHECK(rig.allocator.used == 0);
}

}  // namespace
}  // namespace verbena::shard
