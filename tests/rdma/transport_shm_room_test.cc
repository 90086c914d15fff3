// Memory exposed over shm to a peer that does not read its socket, has gone, or has no room:
// Expose() refuses for now and the connection lives.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "rdma/shm/shm_endpoint.h"
#include "rdma/shm/shm_socket.h"
#include "tests/rdma/transport_shm.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

// More than a socket has room for, whatever its buffer is.
constexpr int kMany = 2000;
constexpr size_t kMaxRanges = 4096;  // ShmConnection::kMaxRanges

absl::Status Write(Party* from, ConnectionId id, const RemoteMemory& to) {
  const auto source = TestBlock(64);
  FillPattern(*source, 0, 64, 7);
  const Segment segment = {source->data(), 64, source.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = to;
  request.immediate = 5;
  return from->endpoint->PostWrite(id, request);
}

// Whether the descriptors of a sleeping endpoint end its sleep.
bool WouldWake(Party* party) {
  std::vector<int> fds;
  party->endpoint->AppendDescriptors(&fds);
  for (const int fd : fds) {
    pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 0) == 1) return true;
  }
  return false;
}

// A turn of a thread that has slept.
void Turn(Party* party) {
  if (party->endpoint->Arm(SleepUntil::kAnything)) party->endpoint->Disarm();
  party->PollEvents();
  party->Poll();
}

Pair::Options WithReceives() {
  Pair::Options options;
  options.client_receives = 8;
  return options;
}

TEST_CASE("a lane survives 64 messages queued before the memory that a write needs") {
  Stage stage(Shm());
  Pair pair(&stage, WithReceives());
  REQUIRE(pair.established);
  stage.Settle();
  const auto block = TestBlock(4096);
  for (int i = 0; i < 45; ++i) {
    const auto memory = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
    REQUIRE(memory.ok());
    pair.client.endpoint->Unexpose(pair.c, *memory);
  }
  const auto last = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
  REQUIRE(last.ok());
  REQUIRE(Write(&pair.server, pair.s, *last).ok());
  CHECK(stage.Until([&] { return !pair.client.Immediates(pair.c).empty(); }));
  CHECK(HasPattern(*block, 0, 64, 7));
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
}

TEST_CASE("exposing memory to a peer that does not read is refused temporarily, and works later") {
  Stage stage(Shm());
  Pair pair(&stage, WithReceives());
  REQUIRE(pair.established);
  stage.Settle();
  const auto block = TestBlock(4096);
  // The server stands still. Keys taken back wait here, and nothing is lost.
  std::vector<RemoteMemory> exposed;
  absl::Status refusal;
  for (int i = 0; i < kMany && refusal.ok(); ++i) {
    const auto memory = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
    refusal = memory.status();
    if (memory.ok()) exposed.push_back(*memory);
  }
  INFO(refusal);
  REQUIRE(IsNotNow(refusal));
  CHECK(refusal.message().find("peer") != absl::string_view::npos);
  for (const RemoteMemory& memory : exposed) pair.client.endpoint->Unexpose(pair.c, memory);
  CHECK(IsNotNow(pair.client.endpoint->Expose(pair.c, block, 0, 4096).status()));
  CHECK(block.use_count() == 1);  // nothing that was taken back is held
  Turn(&pair.client);
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kAnything));
  CHECK_FALSE(WouldWake(&pair.client));  // no busy waiting for a peer that stands still

  // It reads again, and has nothing else to do; the client is woken, and the queue drains.
  Turn(&pair.server);
  while (WouldWake(&pair.server)) Turn(&pair.server);
  CHECK(WouldWake(&pair.client));
  pair.client.endpoint->Disarm();
  absl::StatusOr<RemoteMemory> memory = refusal;
  CHECK(stage.Until([&] {
    memory = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
    return memory.ok();
  }));
  REQUIRE(memory.ok());
  REQUIRE(Write(&pair.server, pair.s, *memory).ok());
  CHECK(stage.Until([&] { return !pair.client.Immediates(pair.c).empty(); }));
  CHECK(HasPattern(*block, 0, 64, 7));
  stage.Settle();
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 0);
  Turn(&pair.client);
  CHECK(pair.client.endpoint->Arm(SleepUntil::kAnything));
  CHECK_FALSE(WouldWake(&pair.client));  // a socket with room wakes nobody
}

TEST_CASE("an idle server releases thousands of freed regions") {
  Stage stage(Shm());
  Pair pair(&stage);
  REQUIRE(pair.established);
  stage.Settle();
  const auto block = TestBlock(4096);
  int refused = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<RemoteMemory> exposed;
    while (exposed.size() < 1000) {
      const auto memory = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
      if (memory.ok()) {
        exposed.push_back(*memory);
        continue;
      }
      REQUIRE(IsNotNow(memory.status()));
      ++refused;
      // It only looks when its sleep ends.
      if (WouldWake(&pair.server)) Turn(&pair.server);
      Turn(&pair.client);
    }
    for (const RemoteMemory& memory : exposed) pair.client.endpoint->Unexpose(pair.c, memory);
  }
  CHECK(refused > 0);
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 0);
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
}

TEST_CASE("more memory than a peer maps is refused with the limit, and the lane lives") {
  Stage stage(Shm());
  Pair pair(&stage);
  REQUIRE(pair.established);
  const auto block = TestBlock(4096);
  std::vector<RemoteMemory> exposed;
  absl::Status refusal;
  while (refusal.ok() || IsNotNow(refusal)) {
    const auto memory = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
    refusal = memory.status();
    if (memory.ok()) exposed.push_back(*memory);
    if (IsNotNow(refusal)) stage.Settle();
  }
  CHECK(refusal.code() == absl::StatusCode::kResourceExhausted);
  CHECK(refusal.message().find("4096 pieces of memory") != absl::string_view::npos);
  CHECK(exposed.size() == kMaxRanges - 1);  // and the pair's
  pair.client.endpoint->Unexpose(pair.c, exposed.back());
  CHECK(pair.client.endpoint->Expose(pair.c, block, 0, 4096).ok());
  stage.Settle();
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 0);
}

TEST_CASE("a thousand ranges exposed before connecting arrive before the request") {
  Stage stage(Shm());
  Party& server = stage.Add("server");
  Party& client = stage.Add("client");
  const std::string address = server.endpoint->Listen().value();
  const ConnectionId c = client.endpoint->Create({8, 8}).value();
  const auto block = TestBlock(4096);
  std::vector<RemoteMemory> exposed;
  for (int i = 0; i < 1000; ++i) {
    exposed.push_back(client.endpoint->Expose(c, block, 0, 4096).value());
  }
  REQUIRE(client.endpoint->PostReceives(c, 8).ok());
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  client.endpoint->Unexpose(c, exposed.front());  // sent
  client.endpoint->Unexpose(c, exposed[998]);     // not sent yet
  REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionId s = server.Find(Kind::kRequest)->connection;
  REQUIRE(server.endpoint->Prepare(s, {8, 8}).ok());
  REQUIRE(server.endpoint->Accept(s).ok());
  REQUIRE(stage.Until([&] {
    return client.Count(Kind::kEstablished, c) == 1 && server.Count(Kind::kEstablished, s) == 1;
  }));
  for (const size_t i : {1, 500, 997, 999}) CHECK(Write(&server, s, exposed[i]).ok());
  CHECK(stage.Until([&] { return client.Immediates(c).size() == 4; }));
}

TEST_CASE("exposing memory to a peer that has gone is refused temporarily") {
  Stage stage(Shm());
  Pair pair(&stage);
  REQUIRE(pair.established);
  const auto block = TestBlock(4096);
  pair.server.endpoint.reset();
  // Before this side has looked, and after.
  const auto before = pair.client.endpoint->Expose(pair.c, block, 0, 4096);
  INFO(before.status());
  CHECK(IsNotNow(before.status()));
  REQUIRE(stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
  CHECK(IsNotNow(pair.client.endpoint->Expose(pair.c, block, 0, 4096).status()));
  pair.client.endpoint->Close(pair.c);
  CHECK(pair.client.endpoint->Expose(pair.c, block, 0, 4096).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a process without free descriptors reports that when memory is shared with it") {
  Stage stage(Shm());
  Pair pair(&stage);
  REQUIRE(pair.established);
  stage.Settle();
  const auto block = TestBlock(4096);
  REQUIRE(pair.client.endpoint->Expose(pair.c, block, 0, 4096).ok());
  rlimit limit = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int lowest = dup(0);
  close(lowest);
  const rlimit none = {static_cast<rlim_t>(lowest), limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  Turn(&pair.server);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE(pair.server.Count(Kind::kLost, pair.s) == 1);
  const absl::Status& status = pair.server.Find(Kind::kLost)->status;
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(status.message().find("ulimit -n") != absl::string_view::npos);
}

}  // namespace
}  // namespace verbena::rdma
