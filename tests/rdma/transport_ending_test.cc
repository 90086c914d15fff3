// Conformance: closing, losing the peer, and that nothing moves afterwards.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

TEST_CASE("closing flushes everything exactly once, and only the peer gets an event") {
  VERBENA_EACH_TRANSPORT();
  const bool by_client = GENERATE(true, false);
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 5, .server_receives = 40});
  REQUIRE(pair.established);
  for (uint32_t i = 0; i < 30; ++i) REQUIRE(pair.Push(i * 100, 100, i, i).ok());
  const int steps = GENERATE(0, 3, 12);
  for (int i = 0; i < steps; ++i) stage.Step();

  Party& closer = by_client ? pair.client : pair.server;
  Party& other = by_client ? pair.server : pair.client;
  const ConnectionId closed = by_client ? pair.c : pair.s;
  const ConnectionId lost = by_client ? pair.s : pair.c;
  closer.endpoint->Close(closed);
  closer.endpoint->Close(closed);
  CHECK(closer.endpoint->PostWrite(closed, {}).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(stage.Until(
      [&] { return other.Count(Kind::kLost, lost) == 1 && closer.endpoint->Dead(closed); }));
  stage.Settle();
  CHECK(closer.Count(Kind::kLost, closed) == 0);
  CHECK(other.Count(Kind::kLost, lost) == 1);
  CHECK_FALSE(other.Find(Kind::kLost)->status.ok());

  // Sends: each once, in order, and after the first that is not ok none is.
  const auto sends = pair.client.Sends(pair.c);
  REQUIRE(sends.size() == 30);
  bool failed = false;
  for (uint32_t i = 0; i < 30; ++i) {
    CHECK(sends[i].wr_id == i);
    CHECK((sends[i].ok ? !failed : true));
    failed |= !sends[i].ok;
  }
  // Receives: as many as were posted; those that are ok come first and in order.
  const auto receives = pair.server.Receives(pair.s);
  REQUIRE(receives.size() == 40);
  const auto arrived = pair.server.Immediates(pair.s);
  for (uint32_t i = 0; i < 40; ++i) {
    CHECK(receives[i].ok == (i < arrived.size()));
    if (i < arrived.size()) CHECK(arrived[i] == i);
    if (!receives[i].ok) CHECK(receives[i].flushed);
  }
  CHECK(pair.client.Receives(pair.c).size() == 5);
}

TEST_CASE("exposing memory is refused temporarily on a lost connection, finally on a closed one") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage);
  REQUIRE(pair.established);
  const auto block = TestBlock(4096);
  pair.server.endpoint->Close(pair.s);
  CHECK(pair.server.endpoint->Expose(pair.s, block, 0, 4096).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  REQUIRE(stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
  CHECK(IsNotNow(pair.client.endpoint->Expose(pair.c, block, 0, 4096).status()));
  pair.client.endpoint->Close(pair.c);
  CHECK(pair.client.endpoint->Expose(pair.c, block, 0, 4096).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("writes that arrived before the peer closed are still reported") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 8});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 64, 5);
  REQUIRE(pair.Push(0, 64, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  pair.client.endpoint->Close(pair.c);
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 8; }));
  CHECK(pair.server.Immediates(pair.s) == std::vector<uint32_t>{1});
  CHECK(HasPattern(*pair.server_block, 0, 64, 5));
}

TEST_CASE("after Dead() no write lands in the local memory and no byte is read from it") {
  VERBENA_EACH_TRANSPORT();
  const int steps = GENERATE(0, 1, 4, 9);
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 60});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 60000, 1);
  for (uint32_t i = 0; i < 60; ++i) REQUIRE(pair.Push(i * 1000, 1000, i, i).ok());
  for (int i = 0; i < steps; ++i) stage.Step();
  pair.server.endpoint->Close(pair.s);
  // Without the peer's help where it must help to be sure; with it Dead() comes true.
  REQUIRE(stage.Until([&] { return pair.server.endpoint->Dead(pair.s); }));
  std::memset(pair.server_block->data(), 0xee, pair.server_block->size());
  (void)pair.Push(0, 1000, 99);
  stage.Settle();
  CHECK(std::all_of(pair.server_block->data(), pair.server_block->data() + 65536,
                    [](std::byte b) { return b == std::byte{0xee}; }));

  // The other way around: after our Close(), our buffer is ours.
  Stage second(transport);
  Pair sender(&second, {.server_receives = 60});
  REQUIRE(sender.established);
  std::memset(sender.client_block->data(), 0x11, 65536);
  for (uint32_t i = 0; i < 60; ++i) REQUIRE(sender.Push(i * 1000, 1000, i, i).ok());
  for (int i = 0; i < steps; ++i) second.Step();
  sender.client.endpoint->Close(sender.c);
  std::memset(sender.client_block->data(), 0x77, 65536);
  second.Settle();
  CHECK(std::none_of(sender.server_block->data(), sender.server_block->data() + 65536,
                     [](std::byte b) { return b == std::byte{0x77}; }));
}

TEST_CASE("the connection to a destroyed endpoint is lost") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 4});
  REQUIRE(pair.established);
  pair.client.endpoint.reset();
  REQUIRE(stage.Until([&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }));
  CHECK(pair.server.Find(Kind::kLost)->status.code() == absl::StatusCode::kUnavailable);
  REQUIRE(stage.Until([&] { return pair.server.endpoint->Dead(pair.s); }));
  CHECK(pair.server.Receives(pair.s).size() == 4);
  CHECK(pair.server.endpoint->PostWrite(pair.s, {}).code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("destroying a connection drops its unreported completions, and its memory") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 3, .server_receives = 4});
  REQUIRE(pair.established);
  for (uint32_t i = 0; i < 4; ++i) REQUIRE(pair.Push(0, 8, i, i).ok());
  pair.client.endpoint->Destroy(pair.c);
  CHECK(pair.client_block.use_count() == 1);
  stage.Settle();
  CHECK(pair.client.completions.empty());
  CHECK(pair.client.events.size() == 1);  // the kEstablished of before
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 1);
}

TEST_CASE("both sides may close at once") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 2, .server_receives = 2});
  REQUIRE(pair.established);
  pair.client.endpoint->Close(pair.c);
  pair.server.endpoint->Close(pair.s);
  REQUIRE(stage.Until(
      [&] { return pair.client.endpoint->Dead(pair.c) && pair.server.endpoint->Dead(pair.s); }));
  stage.Settle();
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 0);
}

TEST_CASE("a connection that was never used closes at once") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& party = stage.Add("a");
  const ConnectionId id = party.endpoint->Create({2, 2}).value();
  REQUIRE(party.endpoint->PostReceives(id, 2).ok());
  party.endpoint->Close(id);
  CHECK(party.endpoint->Dead(id));
  stage.Settle();
  CHECK(party.Receives(id).size() == 2);
  CHECK(party.events.empty());
}

TEST_CASE("an endpoint with unreported events does not sleep") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 1});
  REQUIRE(pair.established);
  stage.Settle();
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kAnything));
  pair.client.endpoint->Disarm();
  REQUIRE(pair.Push(0, 8, 1).ok());
  bool refused = false;
  // Until the send completion is there to be polled.
  REQUIRE(stage.Until([&] {
    refused = refused || !pair.client.endpoint->Arm(SleepUntil::kAnything);
    if (!refused) pair.client.endpoint->Disarm();
    return refused || !pair.client.Sends(pair.c).empty();
  }));
  CHECK(stage.Until([&] { return pair.client.Sends(pair.c).size() == 1; }));
}

}  // namespace
}  // namespace verbena::rdma
