// Guarantees of the sim transport beyond the conformance suite: it is adversarial, and a seed
// determines the whole run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <sstream>

#include "rdma/failpoints.h"
#include "rdma/sim/sim_network.h"
#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

class Harness final : public TransportHarness {
 public:
  Harness(uint64_t seed, const SimFaults& faults) : network(seed, faults) {}
  std::unique_ptr<Endpoint> NewEndpoint(const std::string& host) override {
    return network.NewEndpoint(host);
  }
  void Progress() override { network.Advance(network.clock().NowNanos() + step_ns); }
  SimNetwork network;
  int64_t step_ns = 20'000;
};

struct World {
  explicit World(uint64_t seed, const SimFaults& faults = {})
      : stage(TransportUnderTest{"sim", [&] {
                                   auto made = std::make_unique<Harness>(seed, faults);
                                   harness = made.get();
                                   return made;
                                 }}) {}
  Harness* harness = nullptr;
  Stage stage;
};

// Everything that is reported during some traffic, with its time.
std::string Trace(uint64_t seed) {
  SimFaults faults;
  faults.connection_loss = 0.01;
  World world(seed, faults);
  Pair pair(&world.stage, {.server_receives = 40});
  std::ostringstream trace;
  for (uint32_t i = 0; i < 40; ++i) (void)pair.Push(i * 100, 100, i, i);
  for (int i = 0; i < 100; ++i) {
    world.stage.Step();
    trace << world.harness->network.clock().NowNanos() << ' ' << pair.client.completions.size()
          << ' ' << pair.client.events.size() << ' ' << pair.server.completions.size() << ' '
          << pair.server.events.size() << '\n';
  }
  return trace.str();
}

TEST_CASE("the same seed gives the same run, another seed another") {
  CHECK(Trace(1) == Trace(1));
  CHECK(Trace(7) == Trace(7));
  CHECK(Trace(1) != Trace(2));
}

TEST_CASE("a payload becomes visible in part before its completion") {
  int partly = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    World world(seed);
    Pair pair(&world.stage, {.server_receives = 1});
    REQUIRE(pair.established);
    std::memset(pair.client_block->data(), 1, 10000);
    REQUIRE(pair.Push(0, 10000, 1).ok());
    while (pair.server.Receives(pair.s).empty()) {
      const auto landed =
          std::count(pair.server_block->data(), pair.server_block->data() + 10000, std::byte{1});
      partly += landed > 0 && landed < 10000 ? 1 : 0;
      world.stage.Step();
    }
  }
  CHECK(partly > 10);
}

TEST_CASE("a buffer reused before its send completion corrupts the data that arrives") {
  int corrupted = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    World world(seed);
    Pair pair(&world.stage, {.server_receives = 1});
    REQUIRE(pair.established);
    FillPattern(*pair.client_block, 0, 1000, 1);
    REQUIRE(pair.Push(0, 1000, 1).ok());
    world.stage.Step();
    if (pair.client.Sends(pair.c).empty()) std::memset(pair.client_block->data(), 0xff, 1000);
    REQUIRE(world.stage.Until([&] { return !pair.server.Receives(pair.s).empty(); }));
    corrupted += HasPattern(*pair.server_block, 0, 1000, 1) ? 0 : 1;
  }
  CHECK(corrupted > 10);
}

TEST_CASE("a send completion comes before or after the arrival") {
  int before = 0;
  int after = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    World world(seed);
    Pair pair(&world.stage, {.server_receives = 1});
    REQUIRE(pair.established);
    REQUIRE(pair.Push(0, 1000, 1).ok());
    while (pair.client.completions.empty() && pair.server.completions.empty()) world.stage.Step();
    before += pair.server.completions.empty() ? 1 : 0;
    after += pair.client.completions.empty() ? 1 : 0;
  }
  CHECK(before > 5);
  CHECK(after > 5);
}

TEST_CASE(
    "without a receive the payload may land, in part or whole, but no completion reports it") {
  int landed_whole = 0;
  int landed_partly = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    World world(seed);
    Pair pair(&world.stage, {.client_receives = 3, .server_receives = 1});
    REQUIRE(pair.established);
    std::memset(pair.client_block->data(), 1, 20000);
    REQUIRE(pair.Push(0, 100, 0, 0).ok());
    REQUIRE(pair.Push(10000, 10000, 1, 1).ok());
    int partly = 0;
    REQUIRE(world.stage.Until([&] {
      const std::byte* at = pair.server_block->data() + 10000;
      const auto landed = std::count(at, at + 10000, std::byte{1});
      partly += landed > 0 && landed < 10000 ? 1 : 0;
      return pair.client.Count(Kind::kLost, pair.c) == 1 &&
             pair.server.Count(Kind::kLost, pair.s) == 1;
    }));
    landed_partly += partly > 0 ? 1 : 0;
    landed_whole += pair.server_block->data()[19999] == std::byte{1} ? 1 : 0;
    CHECK(pair.server.Immediates(pair.s) == std::vector<uint32_t>{0});
    CHECK(world.harness->network.receiver_not_ready() == 1);
    // The sender never gets a successful completion.
    const auto sends = pair.client.Sends(pair.c);
    REQUIRE(sends.size() == 2);
    CHECK_FALSE(sends[1].ok);
    // Posted receives that were not consumed end flushed, on both sides.
    const auto receives = pair.client.Receives(pair.c);
    CHECK(receives.size() == 3);
    CHECK(std::all_of(receives.begin(), receives.end(),
                      [](const Completion& c) { return !c.ok && c.flushed; }));
  }
  CHECK(landed_whole > 10);
  CHECK(landed_partly > 10);
}

TEST_CASE("writes in progress may land until the receiving side is dead, never after") {
  SimFaults faults;
  faults.max_death_delay_ns = 5'000'000;
  int late = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    World world(seed, faults);
    Pair pair(&world.stage, {.server_receives = 20});
    REQUIRE(pair.established);
    std::memset(pair.client_block->data(), 1, 20000);
    for (uint32_t i = 0; i < 20; ++i) REQUIRE(pair.Push(i * 1000, 1000, i, i).ok());
    world.stage.Step();
    bool closed = false;
    world.harness->network.set_write_observer(
        [&](const std::string&, uint64_t, const std::byte*, size_t) {
          late += closed ? 1 : 0;
          CHECK_FALSE(pair.server.endpoint->Dead(pair.s));
        });
    pair.server.endpoint->Close(pair.s);
    closed = true;
    CHECK_FALSE(pair.server.endpoint->Dead(pair.s));
    const size_t told = pair.server.Immediates(pair.s).size();
    REQUIRE(world.stage.Until([&] { return pair.server.endpoint->Dead(pair.s); }));
    world.stage.Settle();
    CHECK(pair.server.Immediates(pair.s).size() <= 20);
    CHECK(pair.server.Immediates(pair.s).size() >= told);
  }
  CHECK(late > 20);
}

TEST_CASE("a side that missed a loss learns of it by its next write, even an empty one") {
  SimFaults faults;
  faults.missed_loss = 1;
  World world(1, faults);
  Pair pair(&world.stage, {});
  REQUIRE(pair.established);
  pair.server.endpoint->Close(pair.s);
  world.stage.Settle();
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
  WriteRequest empty;
  empty.wr_id = 77;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, empty).ok());
  REQUIRE(world.stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
  const auto sends = pair.client.Sends(pair.c);
  REQUIRE(sends.size() == 1);
  CHECK(sends[0].wr_id == 77);
  CHECK_FALSE(sends[0].ok);
}

TEST_CASE("connecting fails at the given rate, sometimes after the peer has accepted") {
  SimFaults faults;
  faults.connect_failure = 1;
  int late = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    World world(seed, faults);
    Party& client = world.stage.Add("client");
    Party& server = world.stage.Add("server");
    const std::string address = server.endpoint->Listen().value();
    const ConnectionId c = client.endpoint->Create({1, 1}).value();
    REQUIRE(client.endpoint->Connect(c, address, "").ok());
    REQUIRE(world.stage.Until([&] {
      const ConnectionEvent* request = server.Find(Kind::kRequest);
      if (request != nullptr && server.endpoint->Prepare(request->connection, {1, 1}).ok()) {
        (void)server.endpoint->Accept(request->connection);
      }
      return client.Count(Kind::kFailed, c) == 1;
    }));
    CHECK(client.Count(Kind::kEstablished, c) == 0);
    world.stage.Settle();
    late += server.Find(Kind::kLost) != nullptr ? 1 : 0;
  }
  CHECK(late > 0);
  CHECK(late < 20);
}

TEST_CASE("the two sides learn of a loss at different times, and writes may still land") {
  SimFaults faults;
  faults.connection_loss = 1;
  int client_first = 0;
  int server_first = 0;
  int landed = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    World world(seed, faults);
    Pair pair(&world.stage, {.server_receives = 1});
    REQUIRE(pair.established);
    REQUIRE(pair.Push(0, 1000, 1).ok());
    REQUIRE(world.stage.Until([&] {
      const bool client = pair.client.Count(Kind::kLost, pair.c) == 1;
      const bool server = pair.server.Count(Kind::kLost, pair.s) == 1;
      client_first += client && !server ? 1 : 0;
      server_first += server && !client ? 1 : 0;
      return client && server;
    }));
    landed += static_cast<int>(pair.server.Immediates(pair.s).size());
  }
  CHECK(client_first > 0);
  CHECK(server_first > 0);
  CHECK(landed > 0);
  CHECK(landed < 60);
}

TEST_CASE("an unanswered request times out") {
  World world(1);
  world.harness->step_ns = 100'000'000;
  Party& client = world.stage.Add("client");
  const auto server = world.harness->NewEndpoint("server");  // never polled
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, server->Listen().value(), "").ok());
  REQUIRE(world.stage.Until([&] { return client.Count(Kind::kFailed, c) == 1; }));
  CHECK(client.Find(Kind::kFailed)->status.code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("a crashed host is lost for its peers, reads and writes nothing, and can start again") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    World world(seed);
    Pair pair(&world.stage, {.server_receives = 30});
    REQUIRE(pair.established);
    std::memset(pair.client_block->data(), 1, 60000);
    for (uint32_t i = 0; i < 30; ++i) REQUIRE(pair.Push(i * 1000, 1000, i, i).ok());
    for (uint64_t i = 0; i < seed; ++i) world.stage.Step();
    world.harness->network.Crash("client");
    std::memset(pair.client_block->data(), 2, 60000);
    CHECK(pair.client_block.use_count() == 1);
    REQUIRE(world.stage.Until([&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }));
    world.stage.Settle();
    CHECK(std::count(pair.server_block->data(), pair.server_block->data() + 60000, std::byte{2}) ==
          0);
    CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
    CHECK_FALSE(pair.client.endpoint->Create({1, 1}).ok());
    Pair again(&world.stage);
    CHECK(again.established);
  }
}

TEST_CASE("an isolated host loses its connections and gets no new ones") {
  World world(3);
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  world.harness->network.Cut("server", true);
  REQUIRE(world.stage.Until([&] {
    return pair.client.Count(Kind::kLost, pair.c) == 1 &&
           pair.server.Count(Kind::kLost, pair.s) == 1;
  }));
  Party& server = world.stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = pair.client.endpoint->Create({1, 1}).value();
  REQUIRE(pair.client.endpoint->Connect(c, address, "").ok());
  REQUIRE(world.stage.Until([&] { return pair.client.Count(Kind::kFailed, c) == 1; }));
  world.harness->network.Cut("server", false);
  Pair again(&world.stage);
  CHECK(again.established);
}

TEST_CASE("the observer sees every byte before it lands") {
  World world(5);
  Pair pair(&world.stage, {.server_receives = 1});
  REQUIRE(pair.established);
  std::memset(pair.client_block->data(), 1, 5000);
  size_t bytes_seen = 0;
  bool sane = true;
  world.harness->network.set_write_observer(
      [&](const std::string& host, uint64_t block, const std::byte* at, size_t bytes) {
        bytes_seen += bytes;
        sane = sane && host == "server" && block == pair.server_block->id() &&
               at >= pair.server_block->data() + 100 &&
               at + bytes <= pair.server_block->data() + 5100 && *at == std::byte{0};
      });
  const Segment segment = {pair.client_block->data(), 5000, pair.client_block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = pair.At(100);
  request.immediate = 1;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(world.stage.Until([&] { return !pair.server.Receives(pair.s).empty(); }));
  CHECK(bytes_seen == 5000);
  CHECK(sane);
}

TEST_CASE("a block freed while it is being sent breaks the connection and is not touched") {
  World world(4);
  Pair pair(&world.stage, {.server_receives = 1});
  REQUIRE(pair.established);
  auto block = TestBlock(4096);
  const Segment segment = {block->data(), 4096, block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = pair.server_memory;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  block.reset();
  REQUIRE(world.stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
}

TEST_CASE("at the sender's completion the data may not have arrived") {
  struct Planted {
    Planted() { failpoints().act_on_send_completion = true; }
    ~Planted() { failpoints().act_on_send_completion = false; }
  };
  int torn = 0;
  for (const bool planted : {false, true}) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      std::unique_ptr<Planted> bug(planted ? new Planted : nullptr);
      World world(seed);
      Pair pair(&world.stage, {.server_receives = 1});
      REQUIRE(pair.established);
      FillPattern(*pair.client_block, 0, 1000, 1);
      REQUIRE(pair.Push(0, 1000, 1).ok());
      REQUIRE(world.stage.Until([&] { return !pair.server.Receives(pair.s).empty(); }));
      torn += HasPattern(*pair.server_block, 0, 1000, 1) ? 0 : 1;
    }
    if (!planted) REQUIRE(torn == 0);
  }
  CHECK(torn > 3);
}

TEST_CASE("the clock stops at the limit when no event is due") {
  SimNetwork network(1, {});
  CHECK_FALSE(network.Advance(1'000));
  CHECK(network.clock().NowNanos() == 1'000);
  CHECK_FALSE(network.Advance(500));  // never back
  CHECK(network.clock().NowNanos() == 1'000);
}

}  // namespace
}  // namespace verbena::rdma
