// Conformance: connecting, accepting, refusing, exposing.
#include <catch2/catch.hpp>
#include <set>
#include <utility>

#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

TEST_CASE("a connection carries the initiator's private data, and both sides get an event") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage);
  REQUIRE(pair.established);
  // Transports may pad it (rdma_connect(3)).
  CHECK(pair.server.Find(Kind::kRequest)->private_data.substr(0, 5) == "hello");
  CHECK(pair.client.events.size() == 1);
  CHECK(pair.server.events.size() == 2);
}

TEST_CASE("a refused connection fails with the reason and leaves nothing behind") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionId s = server.Find(Kind::kRequest)->connection;
  server.endpoint->Reject(s, "no such lane");
  REQUIRE(stage.Until([&] { return client.Find(Kind::kFailed) != nullptr; }));
  const absl::Status status = client.Find(Kind::kFailed)->status;
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(status.message()).find("no such lane") != std::string::npos);
  CHECK(stage.Until([&] { return client.endpoint->Dead(c); }));
  CHECK(server.endpoint->PostReceives(s, 1).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("connecting to an address without a listener fails with an event, not in the call") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& client = stage.Add("client");
  std::string address;
  {
    auto gone = stage.harness().NewEndpoint("gone");
    address = gone->Listen().value();
  }
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  REQUIRE(stage.Until([&] { return client.Count(Kind::kFailed, c) == 1; }));
  CHECK(client.Find(Kind::kFailed)->status.code() == absl::StatusCode::kUnavailable);
  CHECK(client.endpoint->Dead(c));
}

TEST_CASE("private data longer than the limit is refused, at the limit it arrives whole") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  const std::string longest(kMaxPrivateData, 'x');
  CHECK(client.endpoint->Connect(c, address, longest + "x").code() ==
        absl::StatusCode::kInvalidArgument);
  REQUIRE(client.endpoint->Connect(c, address, longest).ok());
  REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  CHECK(server.Find(Kind::kRequest)->private_data == longest);
}

TEST_CASE("a request whose initiator gives up fails") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionId s = server.Find(Kind::kRequest)->connection;
  client.endpoint->Destroy(c);
  // Known at once, or only when it is accepted.
  const auto failed = [&] { return server.Count(Kind::kFailed, s) == 1; };
  stage.Settle();
  if (server.endpoint->Prepare(s, {1, 1}).ok() && server.endpoint->Accept(s).ok()) {
    REQUIRE(stage.Until(failed));
  }
  stage.Settle();
  CHECK(server.Count(Kind::kEstablished, s) == 0);
  CHECK(server.endpoint->PostWrite(s, {}).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(client.events.empty());
}

TEST_CASE("many connections at once, each with its own data") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  constexpr uint32_t kCount = 64;
  std::vector<ConnectionId> ids;
  for (uint32_t i = 0; i < kCount; ++i) {
    ids.push_back(client.endpoint->Create({4, 4}).value());
    REQUIRE(client.endpoint->PostReceives(ids[i], 1).ok());
    REQUIRE(client.endpoint->Connect(ids[i], address, std::string(1, static_cast<char>(i))).ok());
  }
  std::vector<ConnectionId> accepted(kCount, ConnectionId::kNone);
  size_t seen = 0;
  uint32_t answered = 0;
  const auto accept = [&] {
    for (; seen < server.events.size(); ++seen) {
      const ConnectionEvent& e = server.events[seen];
      if (e.kind != Kind::kRequest) continue;
      accepted[static_cast<uint8_t>(e.private_data[0])] = e.connection;
      if (server.endpoint->Prepare(e.connection, {4, 4}).ok() &&
          server.endpoint->Accept(e.connection).ok()) {
        ++answered;
      }
    }
    return answered == kCount;
  };
  REQUIRE(stage.Until(accept));
  REQUIRE(stage.Until([&] {
    uint32_t up = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      up +=
          client.Count(Kind::kEstablished, ids[i]) + server.Count(Kind::kEstablished, accepted[i]);
    }
    return up == 2 * kCount;
  }));
  WriteRequest request;
  for (uint32_t i = 0; i < kCount; ++i) {
    request.immediate = 1000 + i;
    REQUIRE(server.endpoint->PostWrite(accepted[i], request).ok());
  }
  CHECK(stage.Until([&] {
    uint32_t right = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      right += client.Immediates(ids[i]) == std::vector<uint32_t>{1000 + i} ? 1 : 0;
    }
    return right == kCount;
  }));
}

TEST_CASE("memory exposed on an established connection can be written after its address is sent") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage, {.client_receives = 1, .server_receives = 2});
  REQUIRE(pair.established);
  const auto late = TestBlock(8192);
  // Not page-aligned at either end.
  const auto exposed = pair.server.endpoint->Expose(pair.s, late, 100, 5000);
  REQUIRE(exposed.ok());
  WriteRequest told;
  told.immediate = 7;
  REQUIRE(pair.server.endpoint->PostWrite(pair.s, told).ok());
  REQUIRE(stage.Until([&] { return pair.client.Immediates(pair.c).size() == 1; }));
  FillPattern(*pair.client_block, 0, 5000, 9);
  const Segment segment = {pair.client_block->data(), 5000, pair.client_block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = *exposed;
  request.immediate = 1;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(HasPattern(*late, 100, 5000, 9));
  CHECK(late->data()[99] == std::byte{0});
  CHECK(late->data()[5100] == std::byte{0});
}

TEST_CASE("memory that is no longer exposed cannot be written") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Pair pair(&stage);
  REQUIRE(pair.established);
  const auto block = TestBlock(4096);
  const RemoteMemory memory = pair.server.endpoint->Expose(pair.s, block, 0, 4096).value();
  pair.server.endpoint->Unexpose(pair.s, memory);
  stage.Settle();
  FillPattern(*pair.client_block, 0, 64, 1);
  const Segment segment = {pair.client_block->data(), 64, pair.client_block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = memory;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, request).ok());
  REQUIRE(stage.Until([&] {
    return pair.client.Count(Kind::kLost, pair.c) == 1 &&
           pair.server.Count(Kind::kLost, pair.s) == 1;
  }));
  CHECK(block->data()[0] == std::byte{0});
  CHECK(block.use_count() == 1);
}

TEST_CASE("exposing a range outside the block is refused") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& party = stage.Add("a");
  const ConnectionId id = party.endpoint->Create({1, 1}).value();
  const auto block = TestBlock(4096);
  CHECK(party.endpoint->Expose(id, block, 4000, 97).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(party.endpoint->Expose(id, block, ~size_t{0}, 2).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(party.endpoint->Expose(id, nullptr, 0, 1).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("ids are not reused, and stale ones are harmless") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& party = stage.Add("a");
  std::set<ConnectionId> ids;
  for (int i = 0; i < 20; ++i) {
    const ConnectionId id = party.endpoint->Create({1, 1}).value();
    CHECK(ids.insert(id).second);
    CHECK(id != ConnectionId::kNone);
    party.endpoint->Destroy(id);
  }
  const ConnectionId stale = *ids.begin();
  const auto code = absl::StatusCode::kFailedPrecondition;
  CHECK(party.endpoint->PostReceives(stale, 1).code() == code);
  CHECK(party.endpoint->PostWrite(stale, {}).code() == code);
  CHECK(party.endpoint->Connect(stale, "nowhere", "").code() == code);
  CHECK(party.endpoint->Prepare(stale, {1, 1}).code() == code);
  CHECK(party.endpoint->Accept(stale).code() == code);
  CHECK(party.endpoint->Expose(stale, TestBlock(1), 0, 1).status().code() == code);
  party.endpoint->Unexpose(stale, {});
  party.endpoint->Reject(stale, "");
  party.endpoint->Close(stale);
  party.endpoint->Destroy(stale);
  CHECK(party.endpoint->Dead(stale));
}

// One side of a connection between two endpoints that both listen.
struct Side {
  Party& party;
  Party& other;
  std::string there;  // the other one's address
  std::shared_ptr<MemoryBlock> source, sink;
  ConnectionId connecting = ConnectionId::kNone, accepted = ConnectionId::kNone;
  RemoteMemory memory;  // `sink` for the other one

  Side(Party* from, Party* to, std::string address)
      : party(*from),
        other(*to),
        there(std::move(address)),
        source(TestBlock(4096)),
        sink(TestBlock(4096)) {}
  void Connect(std::string_view hello) {
    connecting = party.endpoint->Create({4, 4, 1}).value();
    REQUIRE(party.endpoint->Connect(connecting, there, hello).ok());
  }
  void Accept() {
    accepted = party.Find(Kind::kRequest)->connection;
    REQUIRE(party.endpoint->Prepare(accepted, {4, 4, 2}).ok());
    memory = party.endpoint->Expose(accepted, sink, 0, 4096).value();
    REQUIRE(party.endpoint->PostReceives(accepted, 2).ok());
    REQUIRE(party.endpoint->Accept(accepted).ok());
  }
  bool Open() const {
    return party.Count(Kind::kEstablished, connecting) == 1 &&
           party.Count(Kind::kEstablished, accepted) == 1;
  }
  void Write(const RemoteMemory& to, uint32_t immediate) {
    const Segment segment = {source->data(), 4096, source.get()};
    WriteRequest request;
    request.segments = absl::MakeConstSpan(&segment, 1);
    request.remote = to;
    request.immediate = immediate;
    REQUIRE(party.endpoint->PostWrite(connecting, request).ok());
  }
};

TEST_CASE("two endpoints that listen connect to each other at the same time") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& a = stage.Add("a");
  Party& b = stage.Add("b");
  const std::string at_a = a.endpoint->Listen().value();
  const std::string at_b = b.endpoint->Listen().value();
  Side from_a(&a, &b, at_b), from_b(&b, &a, at_a);
  from_a.Connect("of a");
  from_b.Connect("of b");
  REQUIRE(stage.Until([&] { return a.Find(Kind::kRequest) && b.Find(Kind::kRequest); }));
  CHECK(a.Find(Kind::kRequest)->private_data.substr(0, 4) == "of b");
  CHECK(b.Find(Kind::kRequest)->private_data.substr(0, 4) == "of a");
  from_a.Accept();
  from_b.Accept();
  REQUIRE(stage.Until([&] { return from_a.Open() && from_b.Open(); }));
  FillPattern(*from_a.source, 0, 4096, 1);
  FillPattern(*from_b.source, 0, 4096, 2);
  from_a.Write(from_b.memory, 11);
  from_b.Write(from_a.memory, 22);
  REQUIRE(stage.Until([&] {
    return a.Immediates(from_a.accepted).size() == 1 && b.Immediates(from_b.accepted).size() == 1;
  }));
  CHECK(a.Immediates(from_a.accepted)[0] == 22);
  CHECK(b.Immediates(from_b.accepted)[0] == 11);
  CHECK(HasPattern(*from_a.sink, 0, 4096, 2));
  CHECK(HasPattern(*from_b.sink, 0, 4096, 1));
  // The end of one is none of the other's business.
  a.endpoint->Close(from_a.connecting);
  REQUIRE(stage.Until([&] { return b.Count(Kind::kLost, from_b.accepted) == 1; }));
  from_b.Write(from_a.memory, 23);
  REQUIRE(stage.Until([&] { return a.Immediates(from_a.accepted).size() == 2; }));
  CHECK(a.Count(Kind::kLost, from_a.accepted) == 0);
}

TEST_CASE("an endpoint listens once") {
  VERBENA_EACH_TRANSPORT();
  Stage stage(transport);
  Party& party = stage.Add("a");
  REQUIRE(party.endpoint->Listen().ok());
  CHECK(party.endpoint->Listen().status().code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace verbena::rdma
