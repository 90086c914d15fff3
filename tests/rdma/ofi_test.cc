// Behaviour of the ofi transport alone: choosing a provider, keys and domains, sleeping, unexpected
// connections.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <ctime>
#include <set>

#include "rdma/ofi/ofi_message.h"
#include "rdma/ofi/ofi_provider.h"
#include "rdma/ofi/ofi_socket.h"
#include "tests/rdma/ofi_fixture.h"

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;
using Kind = ConnectionEvent::Kind;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// ---- providers ----------------------------------------------------------------------------------

FabricInfo GoodProvider() {
  FabricInfo info = ChooseProvider(TestOfiOptions()).value();
  REQUIRE(CheckProvider(*info).ok());
  return info;
}

TEST_CASE("ofi: a provider that lacks a feature is refused with the reason") {
  FabricInfo info = GoodProvider();
  std::string reason;
  SECTION("order (as efa)") {
    info->tx_attr->msg_order = FI_ORDER_SAS;
    reason = "FI_ORDER_WAW";
  }
  SECTION("order of large writes") {
    info->ep_attr->max_order_waw_size = 8192;
    reason = "at most 8192 bytes (max_order_waw_size)";
  }
  SECTION("completion data") {
    info->domain_attr->cq_data_size = 4;
    reason = "has 4 bytes (cq_data_size)";
  }
  SECTION("keys") {
    info->domain_attr->mr_mode |= FI_MR_PROV_KEY;
    reason = "FI_MR_PROV_KEY";
  }
  SECTION("short keys") {
    info->domain_attr->mr_key_size = 4;
    reason = "shorter than 64 bits";
  }
  SECTION("registration") {
    info->domain_attr->mr_mode |= FI_MR_LOCAL;
    reason = "FI_MR_LOCAL";
  }
  SECTION("the mode of ofi_rxm that crashes") {
    info->ep_attr->protocol = FI_PROTO_RXM;
    reason = "FI_OFI_RXM_ENABLE_PASSTHRU";
  }
  const absl::Status status = CheckProvider(*info);
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(Text(status), Contains(reason) && Contains("tcp;ofi_rxm"));
}

TEST_CASE("ofi: the error of an unknown provider lists the available ones") {
  OfiOptions options = TestOfiOptions();
  options.provider = "no_such";
  const absl::Status status = NewOfiEndpoint(options).status();
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(Text(status), Contains("'no_such'") && Contains("tcp;ofi_rxm"));
  options.provider = "";
  CHECK(absl::IsInvalidArgument(NewOfiEndpoint(options).status()));
}

TEST_CASE("ofi: the local address is the configured one, or that of the route to the cluster") {
  OfiOptions options = TestOfiOptions();
  options.address = "";
  options.towards = "localhost";
  const auto endpoint = NewOfiEndpoint(options);
  REQUIRE(endpoint.ok());
  CHECK_THAT((*endpoint)->device(), Contains("127.0.0.1") || Contains("::1"));
  options.towards = "no-such-host.invalid";
  CHECK(absl::IsUnavailable(NewOfiEndpoint(options).status()));
  options.address = "203.0.113.9";  // of nobody here (RFC 5737)
  const absl::Status status = NewOfiEndpoint(options).status();
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(Text(status), Contains("203.0.113.9"));
}

TEST_CASE("ofi: over IPv6") {
  OfiOptions options = TestOfiOptions();
  options.address = "::1";
  auto made = NewOfiEndpoint(options);
  if (!made.ok()) {
    WARN("no IPv6 on loopback: " << Text(made.status()));
    return;
  }
  const TransportUnderTest v6 = {"v6", [] { return std::make_unique<OfiHarness>(); }};
  Stage stage(v6);
  Party& client = stage.Add("client");
  Party& server = stage.Add("server");
  client.endpoint = *std::move(made);
  server.endpoint = NewTestOfiEndpoint(options);
  const std::string address = server.endpoint->Listen().value();
  CHECK_THAT(address, Catch::Matchers::StartsWith("[::1]:"));
  const ConnectionId c = client.endpoint->Create({4, 4}).value();
  REQUIRE(client.endpoint->Connect(c, address, "six").ok());
  REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  const ConnectionId s = server.Find(Kind::kRequest)->connection;
  REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
  REQUIRE(server.endpoint->Accept(s).ok());
  CHECK(stage.Until([&] { return client.Count(Kind::kEstablished, c) == 1; }));
}

// ---- keys and domains ---------------------------------------------------------------------------

const TransportUnderTest& Ofi() { return TransportsUnderTest()[0]; }

TEST_CASE("ofi: keys are 64 random bits, one for each exposure") {
  Stage stage(Ofi());
  Party& party = stage.Add("a");
  const ConnectionId id = party.endpoint->Create({1, 1}).value();
  const auto block = TestBlock(4096);
  std::set<uint64_t> keys, upper;
  for (int i = 0; i < 64; ++i) {
    const uint64_t key = party.endpoint->Expose(id, block, 0, 4096).value().key;
    keys.insert(key);
    upper.insert(key >> 40);
  }
  CHECK(keys.size() == 64);
  CHECK(upper.size() >= 60);
}

// Two clients of one server; the second one has learned the first one's key.
TEST_CASE("regression: ofi: memory of any size is exposed in pieces of at most 72 MiB") {
  constexpr size_t kMiB = size_t{1} << 20;
  Stage stage(Ofi());
  Pair pair(&stage);
  const auto sizes = pair.client.endpoint->exposure_pieces();
  CHECK(sizes.bytes <= 72 * kMiB);
  CHECK(sizes.bytes - sizes.stride == 8 * kMiB);
  const auto block = *MemoryBlock::Allocate(150 * kMiB, "large");
  // The largest chunk, over the border of the first two pieces.
  const size_t at = sizes.stride - 4 * kMiB;
  const size_t begin = at / sizes.stride * sizes.stride;
  const auto memory = pair.client.endpoint->Expose(pair.c, block, begin, sizes.bytes);
  REQUIRE(memory.ok());
  FillPattern(*pair.server_block, 0, 4096, 3);
  const Segment segment = {pair.server_block->data(), 4096, pair.server_block.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  for (const size_t offset : {at, at + 8 * kMiB - 4096}) {
    request.remote = {memory->address + offset - begin, memory->key};
    REQUIRE(pair.server.endpoint->PostWrite(pair.s, request).ok());
    REQUIRE(stage.Until([&] {
      return std::equal(block->data() + offset, block->data() + offset + 4096,
                        pair.server_block->data());
    }));
  }
}

TEST_CASE("ofi: a key of another domain gives no access") {
  Stage stage(Ofi());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  struct Side {
    Party* party;
    ConnectionId there{}, here{};
    RemoteMemory memory;
  };
  Side sides[2];
  const auto block = TestBlock(8192);
  size_t seen = 0;
  for (size_t i = 0; i < 2; ++i) {
    Side& side = sides[i];
    side.party = &stage.Add("client");
    side.there = side.party->endpoint->Create({4, 4}).value();
    REQUIRE(side.party->endpoint->Connect(side.there, address, "x").ok());
    const auto next_request = [&] {
      for (; seen < server.events.size(); ++seen) {
        if (server.events[seen].kind == Kind::kRequest) return true;
      }
      return false;
    };
    REQUIRE(stage.Until(next_request));
    side.here = server.events[seen++].connection;
    REQUIRE(server.endpoint->Prepare(side.here, {4, 4, /*domain=*/i + 1}).ok());
    side.memory = server.endpoint->Expose(side.here, block, i * 4096, 4096).value();
    REQUIRE(server.endpoint->Accept(side.here).ok());
    REQUIRE(stage.Until([&] { return side.party->Count(Kind::kEstablished, side.there) == 1; }));
  }
  const auto source = TestBlock(64);
  FillPattern(*source, 0, 64, 3);
  const Segment segment = {source->data(), 64, source.get()};
  WriteRequest request;
  request.segments = absl::MakeConstSpan(&segment, 1);
  request.remote = sides[0].memory;
  REQUIRE(sides[1].party->endpoint->PostWrite(sides[1].there, request).ok());
  REQUIRE(stage.Until([&] { return server.Count(Kind::kLost, sides[1].here) == 1; }));
  CHECK(block->data()[0] == std::byte{0});
  // The first one's own lane has not suffered.
  REQUIRE(sides[0].party->endpoint->PostWrite(sides[0].there, request).ok());
  REQUIRE(stage.Until([&] { return HasPattern(*block, 0, 64, 3); }));
  CHECK(server.Count(Kind::kLost, sides[0].here) == 0);
}

// ---- sleeping -----------------------------------------------------------------------------------

double CpuSeconds() {
  timespec t = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Sleeps until there is something, at most `limit_ms`; returns how often it was woken for nothing.
int SleepUntil(Party* party, const std::function<bool()>& condition, int limit_ms) {
  int idle = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  while (!condition() && std::chrono::steady_clock::now() < end) {
    const size_t before = party->events.size() + party->completions.size();
    party->PollEvents();
    party->Poll();
    if (condition()) return idle;
    if (!party->endpoint->Arm(SleepUntil::kAnything)) continue;
    std::vector<int> fds;
    party->endpoint->AppendDescriptors(&fds);
    std::vector<pollfd> polled;
    for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
    poll(polled.data(), polled.size(), limit_ms);
    party->endpoint->Disarm();
    if (party->events.size() + party->completions.size() == before) ++idle;
  }
  return idle;
}

TEST_CASE("ofi: an idle endpoint sleeps: nothing wakes it, nothing uses the processor") {
  Stage stage(Ofi());
  Pair pair(&stage, {.client_receives = 4, .server_receives = 4});
  REQUIRE(pair.established);
  REQUIRE(pair.Push(0, 100, 1, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  stage.Settle();
  for (Party* party : {&pair.server, &pair.client}) {
    const double before = CpuSeconds();
    const int woken = SleepUntil(
        party, [] { return false; }, 1000);
    CHECK(woken <= 3);
    CHECK(CpuSeconds() - before < 0.1);
  }
}

TEST_CASE("ofi: a sleeping endpoint is woken by each write and by the peer's end") {
  Stage stage(Ofi());
  Pair pair(&stage, {.server_receives = 64});
  REQUIRE(pair.established);
  stage.Settle();
  for (uint32_t i = 0; i < 50; ++i) {
    // Both small and longer than a socket takes at once.
    REQUIRE(pair.Push(0, i % 5 == 4 ? 60000 : 8, i, i).ok());
    REQUIRE(stage.Until([&] {
      pair.client.PollEvents();
      pair.client.Poll();
      SleepUntil(
          &pair.server, [&] { return pair.server.Immediates(pair.s).size() == i + 1; }, 50);
      return pair.server.Immediates(pair.s).size() == i + 1;
    }));
  }
  pair.client.endpoint.reset();
  SleepUntil(
      &pair.server, [&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }, 10000);
  CHECK(pair.server.Count(Kind::kLost, pair.s) == 1);
}

// ---- strangers ----------------------------------------------------------------------------------

TEST_CASE("ofi: connections of non-peers are dropped, and peers still connect") {
  Stage stage(Ofi());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  std::vector<UniqueFd> strangers;
  for (int what = 0; what < 6; ++what) {
    strangers.push_back(OfiConnect(address, "").value());
    OfiMessage hello;
    hello.provider = TestOfiOptions().provider;
    hello.name = std::string(16, '\0');
    if (what == 0) hello.provider = "efa";
    if (what == 1) hello.name = "not an address";
    if (what == 2) {  // of somebody else: 203.0.113.9
      const unsigned char bytes[16] = {2, 0, 1, 1, 203, 0, 113, 9};
      hello.name.assign(reinterpret_cast<const char*>(bytes), sizeof(bytes));
    }
    if (what == 3) hello.type = OfiMessageType::kAccept;
    OfiMessageBytes bytes = EncodeOfiMessage(hello);
    if (what == 4) bytes.fill('x');
    size_t length = bytes.size();
    if (what == 5) length = 17;  // and then nothing more
    REQUIRE(stage.Until([&] {
      return send(strangers.back().get(), bytes.data(), length, MSG_NOSIGNAL) ==
             static_cast<ssize_t>(length);
    }));
  }
  // All but the last, whose message is not complete yet, are closed.
  for (int what = 0; what < 5; ++what) {
    pollfd p = {strangers[static_cast<size_t>(what)].get(), POLLRDHUP, 0};
    CHECK(stage.Until([&] { return poll(&p, 1, 0) == 1; }));
  }
  CHECK(server.events.empty());
  Party& client = stage.Add("client");
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  CHECK(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
}

TEST_CASE("ofi: many silent connections do not keep peers out") {
  Stage stage(Ofi());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(OfiConnect(address, "").value());
    if (i % 50 == 0) stage.Until([&] { return true; });
  }
  Party& client = stage.Add("client");
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, address, "").ok());
  CHECK(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
  int ended = 0;
  for (const UniqueFd& one : silent) {
    pollfd p = {one.get(), POLLRDHUP, 0};
    ended += poll(&p, 1, 0) == 1 ? 1 : 0;
  }
  CHECK(ended > 40);  // of the oldest
  CHECK(ended < 60);
}

// Writes large blocks until it is killed.
[[noreturn]] void WriteForever(int commands) {
  char address[64] = {};
  RemoteMemory memory;
  Party party;
  party.endpoint = NewTestOfiEndpoint();
  if (party.endpoint == nullptr || read(commands, address, sizeof(address)) <= 0) _exit(1);
  const ConnectionId id = party.endpoint->Create({4, 4}).value();
  const auto block = TestBlock(size_t{8} << 20);
  if (!party.endpoint->Connect(id, address, "").ok()) _exit(1);
  while (party.Find(Kind::kRequest) == nullptr) {
    party.PollEvents();
    party.Poll();
    if (party.Count(Kind::kEstablished, id) == 0) continue;
    static const bool told = read(commands, &memory, sizeof(memory)) == sizeof(memory);
    if (!told) _exit(1);
    const Segment segment = {block->data(), static_cast<uint32_t>(block->size()), block.get()};
    WriteRequest request;
    request.segments = absl::MakeConstSpan(&segment, 1);
    request.remote = memory;
    (void)party.endpoint->PostWrite(id, request);
  }
  _exit(1);
}

// ofi_rxm of libfabric 1.17, left to itself, crashes in both cases.
TEST_CASE("ofi: a close of either side during a large write is harmless") {
  const bool killed = GENERATE(true, false);
  for (int round = 0; round < 5; ++round) {
    int commands[2];
    REQUIRE(pipe(commands) == 0);
    const pid_t child = fork();
    if (child == 0) WriteForever(commands[0]);
    REQUIRE(child > 0);
    Stage stage(Ofi());
    Party& server = stage.Add("server");
    std::string address = server.endpoint->Listen().value();
    address.resize(64);
    REQUIRE(write(commands[1], address.data(), address.size()) == 64);
    REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
    const ConnectionId s = server.Find(Kind::kRequest)->connection;
    const auto block = TestBlock(size_t{8} << 20);
    REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
    const RemoteMemory memory = server.endpoint->Expose(s, block, 0, block->size()).value();
    REQUIRE(server.endpoint->Accept(s).ok());
    REQUIRE(write(commands[1], &memory, sizeof(memory)) == sizeof(memory));
    block->data()[1000] = std::byte{1};
    REQUIRE(stage.Until([&] { return block->data()[1000] == std::byte{0}; }));
    for (int i = 0; i < 3 + 7 * round; ++i) stage.Step();
    if (!killed) server.endpoint->Close(s);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    if (killed) CHECK(stage.Until([&] { return server.Count(Kind::kLost, s) == 1; }));
    CHECK(server.endpoint->Dead(s));
    std::memset(block->data(), 0x5a, block->size());
    stage.Settle();
    CHECK(block->data()[1000] == std::byte{0x5a});
    for (const int fd : commands) close(fd);
  }
}

TEST_CASE("ofi: an encoded message is decoded unchanged, and other bytes are refused") {
  OfiMessage message;
  message.type = OfiMessageType::kReject;
  message.secret = 0xdeadbeef;
  message.doorbell = {77, ~uint64_t{0} - 1};
  message.name = "name";
  message.provider = "tcp;ofi_rxm";
  message.text = std::string(1000, 't');
  OfiMessageBytes bytes = EncodeOfiMessage(message);
  const auto decoded = DecodeOfiMessage({bytes.data(), bytes.size()});
  REQUIRE(decoded.ok());
  CHECK(decoded->type == message.type);
  CHECK(decoded->secret == message.secret);
  CHECK(decoded->doorbell.address == 77);
  CHECK(decoded->doorbell.key == message.doorbell.key);
  CHECK(decoded->name == "name");
  CHECK(decoded->provider == message.provider);
  CHECK(decoded->text == std::string(kOfiTextBytes, 't'));  // cut to the maximum length
  CHECK(absl::IsInvalidArgument(DecodeOfiMessage({bytes.data(), 511}).status()));
  bytes[4] = 9;  // version
  CHECK_THAT(Text(DecodeOfiMessage({bytes.data(), bytes.size()}).status()),
             Contains("version 9") && Contains("version 1"));
  bytes[0] = 0;
  CHECK(absl::IsInvalidArgument(DecodeOfiMessage({bytes.data(), bytes.size()}).status()));
}

}  // namespace
}  // namespace verbena::rdma
