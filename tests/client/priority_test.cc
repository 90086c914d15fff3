// Priorities of tables: the order in which requests that wait for a lane are posted.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace priority_test {

constexpr uint32_t kLow = 40, kHigh = 8;  // chunks

// A server of one partition with two tables. What one table has in flight leaves no room for the
// other.
struct World {
  World() {
    cluster.Join();
    REQUIRE(cluster.Wait(cluster.Pull(low, cluster.Memory(low, 0.0f))));  // opens the lane
    server.seen.clear();
  }
  // The number of records of `low` that the server received before the last one of `high`.
  size_t LowBeforeHigh(RecordType type) const {
    const auto seen = server.Of(type);
    const auto last =
        std::find_if(seen.rbegin(), seen.rend(), [this](const Seen& s) { return s.table == high; });
    return static_cast<size_t>(
        std::count_if(last, seen.rend(), [this](const Seen& s) { return s.table == low; }));
  }

  static FakeCluster::Options OnePartition() {
    FakeCluster::Options options;
    options.partitions = 1;
    return options;
  }

  FakeCluster cluster{OnePartition()};
  const uint32_t low = cluster.AddTable(v1::CONSISTENCY_ASYNC, kLow);
  const uint32_t high = cluster.AddTable(v1::CONSISTENCY_ASYNC, kHigh, 4096, "high");
  FakeServer& server = *cluster.servers[0];
};

TEST_CASE("pushes of a table with a greater priority go before earlier ones of others") {
  World w;
  const bool greater = GENERATE(false, true);
  if (greater) REQUIRE(w.cluster.core->SetPriority(w.high, 1).ok());
  w.server.silent = true;
  auto low = w.cluster.Push(w.low, w.cluster.Memory(w.low, 1.0f));
  w.cluster.RunFor(100 * kMilli);
  auto high = w.cluster.Push(w.high, w.cluster.Memory(w.high, 1.0f));
  w.server.silent = false;
  REQUIRE(w.cluster.Wait(low));
  REQUIRE(w.cluster.Wait(high));
  // The slot of the oldest push remains for `low`.
  const size_t before = w.LowBeforeHigh(RecordType::kPush);
  INFO(before);
  CHECK((greater ? before <= kHigh + 4 : before >= kLow - 4));
  for (uint32_t c = 0; c < kLow; ++c) CHECK(w.server.applied[{w.low, c}] == 1.0f);
}

TEST_CASE("a changed priority counts for pushes that wait already") {
  World w;
  w.server.silent = true;
  auto low = w.cluster.Push(w.low, w.cluster.Memory(w.low, 1.0f));
  auto high = w.cluster.Push(w.high, w.cluster.Memory(w.high, 1.0f));
  w.cluster.RunFor(100 * kMilli);
  REQUIRE(w.cluster.core->SetPriority(w.low, -5).ok());
  w.server.silent = false;
  REQUIRE(w.cluster.Wait(low));
  REQUIRE(w.cluster.Wait(high));
  CHECK(w.LowBeforeHigh(RecordType::kPush) <= kHigh + 4);
}

TEST_CASE("pulls of a table with a greater priority go before earlier ones of others") {
  World w;
  const bool greater = GENERATE(false, true);
  if (greater) REQUIRE(w.cluster.core->SetPriority(w.high, 1).ok());
  w.server.silent = true;
  auto low = w.cluster.Pull(w.low, w.cluster.Memory(w.low, 0.0f));
  w.cluster.RunFor(100 * kMilli);
  const size_t posted = w.server.Of(RecordType::kPull).size();
  REQUIRE(posted < kLow / 2);
  auto high = w.cluster.Pull(w.high, w.cluster.Memory(w.high, 0.0f));
  w.server.silent = false;
  REQUIRE(w.cluster.Wait(low));
  REQUIRE(w.cluster.Wait(high));
  CHECK(w.LowBeforeHigh(RecordType::kPull) == (greater ? posted : kLow));
}

TEST_CASE("queued pulls survive a lost lane and a changed priority") {
  World w;
  REQUIRE(w.cluster.core->SetPriority(w.high, 7).ok());
  w.server.silent = true;
  auto low = w.cluster.Pull(w.low, w.cluster.Memory(w.low, 0.0f));
  auto high = w.cluster.Pull(w.high, w.cluster.Memory(w.high, 0.0f));
  auto cancelled = w.cluster.Pull(w.high, w.cluster.Memory(w.high, 0.0f));
  w.cluster.RunFor(100 * kMilli);
  REQUIRE(w.cluster.core->SetPriority(w.high, -7).ok());
  w.cluster.core->Cancel(cancelled->id);
  w.server.CloseLanes("a test");
  w.server.silent = false;
  REQUIRE(w.cluster.Wait(low));
  REQUIRE(w.cluster.Wait(high));
  CHECK(low->status.ok());
  CHECK(high->status.ok());
  CHECK(absl::IsCancelled(cancelled->status));
}

TEST_CASE("pushes with a greater priority leave a slot to the oldest push") {
  World w;
  REQUIRE(w.cluster.core->SetPriority(w.high, 1).ok());
  w.server.silent = true;
  auto low = w.cluster.Push(w.low, w.cluster.Memory(w.low, 1.0f));
  w.cluster.RunFor(100 * kMilli);
  // As a server holds pushes for a worker with a lower rank.
  w.server.hold = [&](const Seen& s) { return s.type == RecordType::kPush && s.table == w.high; };
  auto high = w.cluster.Push(w.high, w.cluster.Memory(w.high, 1.0f));
  w.server.silent = false;
  REQUIRE(w.cluster.Wait(low));
  CHECK(low->status.ok());
  CHECK_FALSE(high->done);
  w.server.hold = nullptr;
  REQUIRE(w.cluster.Wait(high));
  CHECK(high->status.ok());
}

TEST_CASE("the priority of an unknown table is an error") {
  World w;
  CHECK(absl::IsNotFound(w.cluster.core->SetPriority(w.high + 100, 1)));
}

}  // namespace priority_test
}  // namespace verbena::test
