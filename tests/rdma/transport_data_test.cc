// Conformance: writes, their order, their completions, and errors that break a connection.
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

bool BothLost(Stage* stage, const Pair& pair) {
  return stage->Until([&] {
    return pair.client.Count(Kind::kLost, pair.c) == 1 &&
           pair.server.Count(Kind::kLost, pair.s) == 1;
  });
}

TEST_CASE("a write of two segments has arrived whole when its receive completes") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 1});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 1000, 20000, 7);
  const Segment segments[] = {{pair.client_block->data() + 1000, 64, pair.client_block.get()},
                              {pair.client_block->data() + 1064, 19936, pair.client_block.get()}};
  WriteRequest request;
  request.segments = segments;
  request.remote = pair.At(30000);
  request.immediate = 0xdeadbeef;
  request.wr_id = 77;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 1; }));
  CHECK(HasPattern(*pair.server_block, 30000, 20000, 7));
  CHECK(pair.server.Immediates(pair.s) == std::vector<uint32_t>{0xdeadbeef});
  REQUIRE(stage.Until([&] { return pair.client.Sends(pair.c).size() == 1; }));
  CHECK(pair.client.Sends(pair.c)[0].ok);
  CHECK(pair.client.Sends(pair.c)[0].wr_id == 77);
}

TEST_CASE("an immediate needs no payload") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 1, .server_receives = 1});
  REQUIRE(pair.established);
  WriteRequest request;
  request.immediate = 0;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  request.immediate = 5;
  REQUIRE(pair.server.endpoint->PostWrite(pair.s, request).ok());
  REQUIRE(stage.Until([&] {
    return pair.server.Receives(pair.s).size() == 1 && pair.client.Receives(pair.c).size() == 1;
  }));
  CHECK(pair.server.Immediates(pair.s) == std::vector<uint32_t>{0});
  CHECK(pair.client.Immediates(pair.c) == std::vector<uint32_t>{5});
}

TEST_CASE("a write without bytes and immediate completes, and the peer gets no completion") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 1, .server_receives = 1});
  REQUIRE(pair.established);
  WriteRequest request;
  request.wr_id = 9;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(stage.Until([&] { return pair.client.Sends(pair.c).size() == 1; }));
  CHECK(pair.client.Sends(pair.c)[0].ok);
  CHECK(pair.client.Sends(pair.c)[0].wr_id == 9);
  stage.Settle();
  CHECK(pair.server.Receives(pair.s).empty());
}

TEST_CASE("writes take effect in order, and each is whole when it does") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 60});
  REQUIRE(pair.established);
  constexpr uint32_t kBytes = 1000;
  for (uint32_t i = 0; i < 60; ++i) {
    FillPattern(*pair.client_block, i * kBytes, kBytes, static_cast<uint8_t>(i + 1));
    REQUIRE(pair.Push(i * kBytes, kBytes, i, i).ok());
  }
  uint32_t checked = 0;
  REQUIRE(stage.Until([&] {
    const auto receives = pair.server.Receives(pair.s);
    for (; checked < receives.size(); ++checked) {
      if (receives[checked].immediate != checked) return true;
      if (!HasPattern(*pair.server_block, checked * kBytes, kBytes,
                      static_cast<uint8_t>(checked + 1))) {
        return true;
      }
    }
    return checked == 60;
  }));
  CHECK(checked == 60);
  REQUIRE(stage.Until([&] { return pair.client.Sends(pair.c).size() == 60; }));
  for (uint32_t i = 0; i < 60; ++i) CHECK(pair.client.Sends(pair.c)[i].wr_id == i);
}

TEST_CASE("a write without immediate has arrived when a later receive completes") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 1});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 40000, 3);
  REQUIRE(pair.Push(0, 40000, std::nullopt).ok());
  WriteRequest request;
  request.immediate = 1;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 1; }));
  CHECK(HasPattern(*pair.server_block, 0, 40000, 3));
}

TEST_CASE("after a send completion the source may be reused") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 20});
  REQUIRE(pair.established);
  for (uint8_t i = 0; i < 20; ++i) {
    FillPattern(*pair.client_block, 0, 500, i);
    const Segment segment = {pair.client_block->data(), 500, pair.client_block.get()};
    WriteRequest request;
    request.segments = absl::MakeConstSpan(&segment, 1);
    request.remote = pair.At(size_t{i} * 500);
    request.immediate = i;
    REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
    REQUIRE(stage.Until([&] { return pair.client.Sends(pair.c).size() == i + 1U; }));
  }
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 20; }));
  for (uint8_t i = 0; i < 20; ++i) CHECK(HasPattern(*pair.server_block, size_t{i} * 500, 500, i));
}

TEST_CASE("unsignaled writes report no completion on success") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 10});
  REQUIRE(pair.established);
  for (uint32_t i = 0; i < 10; ++i) REQUIRE(pair.Push(i * 8, 8, i, i, i == 4).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 10; }));
  stage.Settle();
  REQUIRE(pair.client.Sends(pair.c).size() == 1);
  CHECK(pair.client.Sends(pair.c)[0].wr_id == 4);
}

TEST_CASE("a full send queue refuses writes, and accepts more after polling") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client = {4, 4, 1}, .server_receives = 5});
  REQUIRE(pair.established);
  for (uint32_t i = 0; i < 4; ++i) REQUIRE(pair.Push(0, 8, i, i).ok());
  CHECK(pair.Push(0, 8, 4, 4).code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(stage.Until([&] { return pair.client.Sends(pair.c).size() == 4; }));
  CHECK(pair.Push(0, 8, 4, 4).ok());
  REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == 5; }));
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
}

TEST_CASE("receives beyond the depth are refused; consumed ones can be posted again") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server = {4, 3, 2}, .server_receives = 3});
  REQUIRE(pair.established);
  CHECK(pair.server.endpoint->PostReceives(pair.s, 1).code() ==
        absl::StatusCode::kResourceExhausted);
  // Around the ring many times.
  for (uint32_t i = 0; i < 50; ++i) {
    REQUIRE(pair.Push(0, 8, i).ok());
    REQUIRE(stage.Until([&] { return pair.server.Receives(pair.s).size() == i + 1; }));
    REQUIRE(pair.server.endpoint->PostReceives(pair.s, 1).ok());
  }
  CHECK(pair.server.endpoint->PostReceives(pair.s, 1).code() ==
        absl::StatusCode::kResourceExhausted);
}

TEST_CASE("an immediate that finds no receive posted is an error on both sides") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  // A ring of two: a third entry must not take the place of the first.
  Pair pair(&stage, {.server = {64, 2, 2}, .server_receives = 2});
  REQUIRE(pair.established);
  for (uint32_t i = 0; i < 3; ++i) (void)pair.Push(0, 8, i, i);
  REQUIRE(BothLost(&stage, pair));
  CHECK(pair.server.Immediates(pair.s) == std::vector<uint32_t>{0, 1});
  // Too late now.
  CHECK(pair.server.endpoint->PostReceives(pair.s, 1).code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(pair.Push(0, 8, 1).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a write outside the peer's exposed memory breaks the connection and lands nowhere") {
  VERBENA_EACH_TRANSPORT();
  const int what = GENERATE(range(0, 6));
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 4, .block_bytes = 4096});
  REQUIRE(pair.established);
  RemoteMemory remote = pair.server_memory;
  if (what == 0) remote.key += 1000;
  if (what == 1) remote.address += 4096 - 7;
  if (what == 2) remote.address -= 1;
  if (what == 3) remote.address = ~uint64_t{0} - 3;
  if (what == 4) remote.address = 0;
  if (what == 5) remote = pair.client_memory;  // our own key is not the peer's
  FillPattern(*pair.client_block, 0, 8, 1);
  const Segment segment = {pair.client_block->data(), 8, pair.client_block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = remote;
  request.immediate = 1;
  request.signaled = false;
  request.wr_id = 42;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(BothLost(&stage, pair));
  stage.Settle();
  const auto sends = pair.client.Sends(pair.c);
  REQUIRE(sends.size() == 1);  // errors are reported, signaled or not
  CHECK_FALSE(sends[0].ok);
  CHECK_FALSE(sends[0].flushed);
  CHECK(sends[0].wr_id == 42);
  CHECK(pair.server.Immediates(pair.s).empty());
  CHECK(pair.server.Receives(pair.s).size() == 4);  // flushed
  for (size_t i = 0; i < 4096; ++i) REQUIRE(pair.server_block->data()[i] == std::byte{0});
}

TEST_CASE("a malformed request is refused and the connection goes on") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.server_receives = 1});
  REQUIRE(pair.established);
  const Segment outside = {pair.client_block->data() + 65530, 7, pair.client_block.get()};
  const Segment three[3] = {{pair.client_block->data(), 1, pair.client_block.get()},
                            {pair.client_block->data(), 1, pair.client_block.get()},
                            {pair.client_block->data(), 1, pair.client_block.get()}};
  WriteRequest request;
  request.remote = pair.server_memory;
  request.segments = absl::MakeConstSpan(&outside, 1);
  CHECK(pair.client.endpoint->PostWrite(pair.c, request).code() ==
        absl::StatusCode::kInvalidArgument);
  request.segments = three;
  CHECK(pair.client.endpoint->PostWrite(pair.c, request).code() ==
        absl::StatusCode::kInvalidArgument);
  REQUIRE(pair.Push(0, 8, 3).ok());
  CHECK(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
}

TEST_CASE("receives are reported after kEstablished") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  auto client = stage.harness().NewEndpoint("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = client->Create({4, 4}).value();
  REQUIRE(client->PostReceives(c, 4).ok());
  REQUIRE(client->Connect(c, address, "").ok());
  // Does the client's housekeeping, which reports nothing.
  const auto quietly = [&](auto condition) {
    return stage.Until([&, condition] {
      REQUIRE(client->PollEvents({}) == 0);
      Completion none;
      REQUIRE(client->Poll(absl::MakeSpan(&none, 1)) == 0);
      return condition();
    });
  };
  REQUIRE(quietly([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionId s = server.Find(Kind::kRequest)->connection;
  REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
  REQUIRE(server.endpoint->Accept(s).ok());
  REQUIRE(quietly([&] { return server.Count(Kind::kEstablished, s) == 1; }));
  WriteRequest request;
  request.immediate = 9;
  REQUIRE(server.endpoint->PostWrite(s, request).ok());
  Completion completion;
  for (int i = 0; i < 400; ++i) {
    stage.Step();
    REQUIRE(client->PollEvents({}) == 0);
    REQUIRE(client->Poll(absl::MakeSpan(&completion, 1)) == 0);
  }
  ConnectionEvent event;
  REQUIRE(stage.Until([&] { return client->PollEvents(absl::MakeSpan(&event, 1)) == 1; }));
  CHECK(event.kind == Kind::kEstablished);
  REQUIRE(stage.Until([&] { return client->Poll(absl::MakeSpan(&completion, 1)) == 1; }));
  CHECK(completion.immediate == 9);
}

}  // namespace
}  // namespace verbena::rdma
