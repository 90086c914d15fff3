// Pulls whose calls have ended, and which the server has not answered, keep staging buffers. Lanes
// are closed for them where records wait for these buffers, and only there.
#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "client/core/failpoints.h"
#include "proto/wire/routing.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace ended_pulls_test {

constexpr uint32_t kDim = 200;

// Four staging buffers for lookups.
struct World : FakeCluster {
  explicit World(int count) : FakeCluster(Of(count)) {
    later = AddEmbedding(v1::CONSISTENCY_SYNC, kDim, 4096, "later");
    now_there = AddEmbedding(v1::CONSISTENCY_ASYNC, kDim, 4096, "now");
    dense = AddTable(v1::CONSISTENCY_ASYNC, 1, 4096, "dense");
    Join();
    for (size_t s = 0; s < servers.size(); ++s) Good(this, Soon(s, kSecond));
  }
  ~World() { client::failpoints() = {}; }
  static Options Of(int count) {
    Options options;
    options.servers = count;
    options.staging_bytes = 16 << 10;
    return options;
  }
  uint64_t KeyOn(uint32_t table, size_t server) {
    uint64_t key = 1;
    while (PartitionOfKey(table, key, 4) % servers.size() != server) ++key;
    return key;
  }
  // A lookup of a version that does not come.
  CallPtr Never(size_t server, int64_t timeout) {
    return Lookup(later, {KeyOn(later, server)}, RowMemory(1, kDim, 0), 1, timeout);
  }
  CallPtr Soon(size_t server, int64_t timeout) {
    return Lookup(now_there, {KeyOn(now_there, server)}, RowMemory(1, kDim, 0), {}, timeout);
  }
  uint32_t later = 0, now_there = 0, dense = 0;
};

TEST_CASE("regression: pulls of ended calls do not keep the buffers from calls of any deadline") {
  const bool planted = GENERATE(false, true);
  const int64_t timeout = GENERATE(500, 1100) * kMilli;
  World w(1);
  client::failpoints().keep_ended_pulls = planted;
  for (int i = 0; i < 4; ++i) w.Never(0, 200 * kMilli);
  w.RunFor(300 * kMilli);
  int ok = 0;
  for (int i = 0; i < 20; ++i) {
    const auto call = w.Soon(0, timeout);
    w.RunFor(2 * kSecond);
    ok += call->done && call->status.ok() ? 1 : 0;
  }
  CAPTURE(planted, timeout);
  CHECK((planted ? ok == 0 : ok >= 18));
}

TEST_CASE("regression: pushes end though lanes are closed for pulls of ended calls") {
  World w(1);
  // A push takes 1.2 s of the life of its lane.
  std::map<uint32_t, int64_t> since;
  w.servers[0]->hold = [&](const Seen& s) {
    if (s.type != RecordType::kPush) return false;
    return s.at - since.emplace(s.lane, s.at).first->second < 1200 * kMilli;
  };
  const auto push = w.Push(w.dense, w.Memory(w.dense, 5.0f), 60 * kSecond);
  while (!push->done) {
    for (int i = 0; i < 6; ++i) w.Never(0, 300 * kMilli);
    w.RunFor(300 * kMilli);
  }
  CHECK(push->status.ok());
  CHECK(w.servers[0]->lanes_opened > 1);  // some were closed
}

TEST_CASE("regression: no lane is closed for records that wait for a server that is away") {
  const bool away = GENERATE(false, true);
  World w(2);
  for (int i = 0; i < 4; ++i) w.Never(0, 400 * kMilli);
  w.RunFor(10 * kMilli);
  const auto waits = w.Soon(1, 120 * kSecond);
  w.RunFor(10 * kMilli);
  if (away) {
    w.servers[1]->open_status = absl::UnavailableError("away");
    w.servers[1]->CloseLanes("away");
  }
  w.RunFor(3 * kSecond);
  Good(&w, w.Soon(0, 5 * kSecond));
  const int before = w.servers[0]->lanes_opened;
  // Their pulls keep the buffers, but the record that waits for server 1 needs none yet.
  for (int i = 0; i < 3; ++i) {
    w.Never(0, 100 * kMilli);
    w.RunFor(5 * kSecond);
  }
  CHECK(w.servers[0]->lanes_opened == before);
  CHECK(waits->done == !away);
}

TEST_CASE("regression: a lane that takes long to close does not keep others from being closed") {
  World w(2);
  for (size_t server = 0; server < 2; ++server) {
    for (int i = 0; i < 2; ++i) w.Never(server, 200 * kMilli);
  }
  w.RunFor(300 * kMilli);
  const auto waits = w.Soon(1, 20 * kSecond);
  rdma::SimFaults faults;
  faults.max_death_delay_ns = 3600 * kSecond;
  w.network.set_faults(faults);
  w.servers[0]->silent = true;
  w.RunUntil([&] { return w.core->statistics().lanes[0].state == "closing" || waits->done; },
             5 * kSecond);
  w.network.set_faults({});
  Good(&w, waits);
}

TEST_CASE("regression: lanes of servers that answer soon are not closed for pulls of ended calls") {
  World w(1);
  const int before = w.servers[0]->lanes_opened;
  // Each lookup is answered within 50 ms; some callers give up after 30 ms.
  w.servers[0]->hold = [&](const Seen& s) {
    return s.type == RecordType::kLookup && s.at / kMilli % 50 != 37;
  };
  std::vector<FakeCluster::CallPtr> patient;
  for (int i = 0; i < 1000; ++i) {
    w.Soon(0, 30 * kMilli);
    if (i % 4 == 0) patient.push_back(w.Soon(0, 20 * kSecond));
    w.RunFor(10 * kMilli);
  }
  for (const auto& call : patient) Good(&w, call);
  CHECK(w.servers[0]->lanes_opened == before);
}

}  // namespace ended_pulls_test
}  // namespace verbena::test
