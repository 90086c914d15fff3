// Guarantees of the shm transport beyond the conformance suite, without a hostile peer: turns,
// addresses, two processes, nothing leaked.
#include "tests/rdma/transport_shm.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <thread>

#include "rdma/shm/shm_endpoint.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

TEST_CASE("a quiet connection waits for at most two records of a busy one") {
  Stage stage(Shm());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  std::vector<std::pair<Party*, ConnectionId>> clients;
  std::vector<ConnectionId> ours;
  for (int i = 0; i < 2; ++i) {
    Party& client = stage.Add("client");
    const ConnectionId c = client.endpoint->Create({32, 32}).value();
    REQUIRE(client.endpoint->Connect(c, address, "").ok());
    const auto requests = [&] {
      return static_cast<size_t>(
          std::count_if(server.events.begin(), server.events.end(),
                        [](const ConnectionEvent& e) { return e.kind == Kind::kRequest; }));
    };
    REQUIRE(stage.Until([&] { return requests() > ours.size(); }));
    ours.push_back(server.events.back().connection);
    REQUIRE(server.endpoint->Prepare(ours.back(), {32, 32}).ok());
    REQUIRE(server.endpoint->PostReceives(ours.back(), 32).ok());
    REQUIRE(server.endpoint->Accept(ours.back()).ok());
    REQUIRE(stage.Until([&] { return client.Count(Kind::kEstablished, c) == 1; }));
    clients.emplace_back(&client, c);
  }
  stage.Settle();
  // For each position of the quiet connection in the order of polling.
  const size_t quiet = GENERATE(size_t{0}, size_t{1});
  for (uint32_t round = 0; round < 8; ++round) {
    WriteRequest request;
    request.signaled = false;
    for (request.immediate = 100; *request.immediate < 116; ++*request.immediate) {
      const auto& [busy, id] = clients[1 - quiet];
      REQUIRE(busy->endpoint->PostWrite(id, request).ok());
    }
    request.immediate = 1;
    REQUIRE(clients[quiet].first->endpoint->PostWrite(clients[quiet].second, request).ok());
    Completion completions[32];
    const size_t count = server.endpoint->Poll(completions);
    const Completion* const end = completions + count;
    const Completion* const found =
        std::find_if(static_cast<const Completion*>(completions), end,
                     [&](const Completion& c) { return c.connection == ours[quiet]; });
    REQUIRE(found != end);
    CHECK(found - completions <= 2);
    stage.Settle();
    REQUIRE(server.endpoint->PostReceives(ours[quiet], 1).ok());
    REQUIRE(server.endpoint->PostReceives(ours[1 - quiet], 16).ok());
  }
}

TEST_CASE("a connection is dead only after its peer has polled") {
  Stage stage(Shm());
  Pair pair(&stage);
  REQUIRE(pair.established);
  pair.client.endpoint->Close(pair.c);
  for (int i = 0; i < 500; ++i) pair.client.PollEvents();
  CHECK_FALSE(pair.client.endpoint->Dead(pair.c));
  // It still has our memory mapped: it may write, and that harms nobody.
  WriteRequest request;
  CHECK(pair.server.endpoint->PostWrite(pair.s, request).ok());
  REQUIRE(stage.Until([&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }));
  CHECK(stage.Until([&] { return pair.client.endpoint->Dead(pair.c); }));
}

TEST_CASE("the caller's own memory cannot be exposed over shm") {
  Stage stage(Shm());
  Party& party = stage.Add("a");
  const ConnectionId id = party.endpoint->Create({1, 1}).value();
  static std::byte memory[64];
  const auto block = MemoryBlock::Register(memory, sizeof(memory)).value();
  CHECK(party.endpoint->Expose(id, block, 0, 64).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("an address of another kind is refused") {
  Stage stage(Shm());
  Party& party = stage.Add("a");
  const ConnectionId id = party.endpoint->Create({1, 1}).value();
  CHECK(party.endpoint->Connect(id, "127.0.0.1:80", "").code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(party.endpoint->Connect(id, "verbena-shm-" + std::string(200, 'x'), "").code() ==
        absl::StatusCode::kInvalidArgument);
}

int OpenDescriptors() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

int Mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) count += line.find("memfd:") != std::string::npos ? 1 : 0;
  return count;
}

// The messages about the memory precede the hello: a listener that writes at once must know the
// memory. (The other order failed now and then, when the listener came in between.)
TEST_CASE("a listener may write to memory exposed before connecting the moment it accepts") {
  constexpr int kConnections = 100;
  Stage stage(Shm());
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const auto block = TestBlock(4096);
  std::atomic<bool> stop = false;
  std::thread listener([&] {
    while (!stop) {
      // A busy owner looks at its sockets now and then only; one that has slept looks at once.
      if (server.endpoint->Arm(SleepUntil::kAnything)) server.endpoint->Disarm();
      server.PollEvents();
      server.Poll();
      const ConnectionEvent* request = server.Find(Kind::kRequest);
      if (request == nullptr) continue;
      const ConnectionId s = request->connection;
      RemoteMemory remote;
      std::memcpy(&remote, request->private_data.data(), sizeof remote);
      server.events.clear();
      if (!server.endpoint->Prepare(s, {4, 4}).ok() || !server.endpoint->Accept(s).ok()) continue;
      WriteRequest write;
      const Segment segment = {block->data(), 64, block.get()};
      write.segments = absl::MakeConstSpan(&segment, 1);
      write.remote = remote;
      write.immediate = 1;
      (void)server.endpoint->PostWrite(s, write);
    }
  });
  const auto destination = TestBlock(4096);
  for (int i = 0; i < kConnections; ++i) {
    const ConnectionId c = client.endpoint->Create({4, 4}).value();
    // Many, so that announcing them takes a while; the last one is written to.
    RemoteMemory memory;
    for (int e = 0; e < 40; ++e) memory = client.endpoint->Expose(c, destination, 0, 4096).value();
    CHECK(client.endpoint->PostReceives(c, 2).ok());
    const std::string hello(reinterpret_cast<const char*>(&memory), sizeof memory);
    CHECK(client.endpoint->Connect(c, address, hello).ok());
    while (client.Receives(c).empty() && client.Count(Kind::kLost, c) == 0 &&
           client.Count(Kind::kFailed, c) == 0) {
      client.PollEvents();
      client.Poll();
    }
    CHECK(client.Immediates(c) == std::vector<uint32_t>{1});
    client.endpoint->Destroy(c);
    client.events.clear();
    client.completions.clear();
  }
  stop = true;
  listener.join();
}

TEST_CASE("repeated connecting and closing leaks nothing") {
  Stage stage(Shm());
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  const auto block = TestBlock(4096);
  stage.Settle();
  const int descriptors = OpenDescriptors();
  const int mappings = Mappings();
  for (int i = 0; i < 200; ++i) {
    const ConnectionId c = client.endpoint->Create({4, 4}).value();
    REQUIRE(client.endpoint->Expose(c, block, 0, 4096).ok());
    REQUIRE(client.endpoint->Connect(c, address, "").ok());
    REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
    const ConnectionId s = server.Find(Kind::kRequest)->connection;
    REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
    REQUIRE(server.endpoint->Expose(s, block, 0, 4096).ok());
    REQUIRE(server.endpoint->Accept(s).ok());
    REQUIRE(stage.Until([&] { return client.Count(Kind::kEstablished, c) == 1; }));
    (i % 2 == 0 ? client : server).endpoint->Close(i % 2 == 0 ? c : s);
    REQUIRE(stage.Until([&] { return client.endpoint->Dead(c) || server.endpoint->Dead(s); }));
    client.endpoint->Destroy(c);
    server.endpoint->Destroy(s);
    client.events.clear();
    server.events.clear();
  }
  stage.Settle();
  CHECK(OpenDescriptors() == descriptors);
  CHECK(Mappings() == mappings);
  CHECK(block.use_count() == 1);
}

// A client process that writes `count` records, then waits to be killed. Reports by exiting.
[[noreturn]] void ChildMain(const std::string& address, uint32_t count) {
  Stage stage(Shm());
  Party& party = stage.Add("child");
  const ConnectionId c = party.endpoint->Create({64, 64}).value();
  const auto block = TestBlock(64);
  const auto mailbox = TestBlock(4096);
  const RemoteMemory mine = party.endpoint->Expose(c, mailbox, 0, 4096).value();
  // Receives first: the server writes as soon as it has accepted.
  const bool up =
      party.endpoint->PostReceives(c, 64).ok() &&
      party.endpoint
          ->Connect(c, address, std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)))
          .ok() &&
      stage.Until([&] { return party.Immediates(c).size() == 1; });
  if (!up) _exit(2);
  RemoteMemory remote;
  std::memcpy(&remote, mailbox->data(), sizeof(remote));
  uint32_t reposted = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(block->data(), &i, sizeof(i));
    const Segment segment = {block->data(), 64, block.get()};
    WriteRequest request;
    request.segments = absl::MakeConstSpan(&segment, 1);
    request.remote = {remote.address + 64 * (i % 16), remote.key};
    request.immediate = i;
    request.signaled = false;
    // Credit: the server answers each, and we are at most 16 ahead.
    if (!stage.Until([&] { return party.Immediates(c).size() + 16 > i + 1; })) _exit(3);
    if (!party.endpoint->PostWrite(c, request).ok()) _exit(4);
    const uint32_t consumed = static_cast<uint32_t>(party.Immediates(c).size());
    if (!party.endpoint->PostReceives(c, consumed - reposted).ok()) _exit(5);
    reposted = consumed;
  }
  for (;;) pause();
}

TEST_CASE("another process writes a thousand records and is killed") {
  Stage stage(Shm());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  constexpr uint32_t kCount = 1000;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) ChildMain(address, kCount);

  CHECK(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionEvent* const request = server.Find(Kind::kRequest);
  bool right = request != nullptr;
  if (right) {
    const ConnectionId s = request->connection;
    RemoteMemory mailbox;
    std::memcpy(&mailbox, request->private_data.data(), sizeof(mailbox));
    const auto ring = TestBlock(4096);
    CHECK(server.endpoint->Prepare(s, {64, 16}).ok());
    CHECK(server.endpoint->PostReceives(s, 16).ok());
    const RemoteMemory slots = server.endpoint->Expose(s, ring, 0, 4096).value();
    const auto grant = TestBlock(64);
    std::memcpy(grant->data(), &slots, sizeof(slots));
    CHECK(server.endpoint->Accept(s).ok());
    const Segment segment = {grant->data(), sizeof(slots), grant.get()};
    WriteRequest write;
    write.segments = absl::MakeConstSpan(&segment, 1);
    write.remote = mailbox;
    write.immediate = 0;
    write.signaled = false;
    CHECK(server.endpoint->PostWrite(s, write).ok());
    uint32_t seen = 0;
    WriteRequest answer;
    answer.immediate = 1;
    answer.signaled = false;
    CHECK(stage.Until([&] {
      for (const Completion& c : server.completions) {
        if (c.kind != Completion::Kind::kReceive || !c.ok) continue;
        uint32_t value;
        std::memcpy(&value, ring->data() + size_t{64} * (seen % 16), sizeof(value));
        right = right && c.immediate == seen && value == seen;
        ++seen;
        right = right && server.endpoint->PostReceives(s, 1).ok();
        if (seen < kCount) right = right && server.endpoint->PostWrite(s, answer).ok();
      }
      server.completions.clear();
      return seen == kCount || !right || server.Count(Kind::kLost, s) == 1;
    }));
    CHECK(seen == kCount);
    kill(child, SIGKILL);
    CHECK(stage.Until([&] { return server.Count(Kind::kLost, s) == 1; }));
    CHECK(stage.Until([&] { return server.endpoint->Dead(s); }));
    CHECK(server.Receives(s).size() == 16);  // flushed
  }
  CHECK(right);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("the host's identity is the same for processes that can connect") {
  const std::string identity = ShmHostIdentity();
  CHECK(identity.size() > 36);
  CHECK(identity.find("net:[") != std::string::npos);
  CHECK(identity == ShmHostIdentity());
}

}  // namespace
}  // namespace verbena::rdma
