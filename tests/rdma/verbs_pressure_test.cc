// Many peers at once, or one that does not do its part: limits on resources, and the effect on
// others.
#include <netinet/in.h>
#include <poll.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/rdma/fake_verbs/fake_world.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;
using World = FakeWorld;

TEST_CASE("a completion queue refused with ENOMEM is made smaller, then reported") {
  World world;
  Party& party = world.stage.Add("a");
  SECTION("less fits, though max_cqe allows more") {
    fake_verbs().create_cq = [](int entries) { return entries > 1000 ? ENOMEM : 0; };
    CHECK(party.endpoint->Create({64, 64}).ok());
    CHECK(fake_verbs().live_queues[0]->cqe <= 1000);
  }
  SECTION("nothing fits") {
    std::vector<int> sizes;
    fake_verbs().create_cq = [&](int entries) {
      sizes.push_back(entries);
      return ENOMEM;
    };
    const absl::Status status = party.endpoint->Create({64, 64}).status();
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(sizes.back() == 176);  // the connection's need: 112 sends, 64 receives
    for (const char* text : {"176 entries", "fake0", "errno 12"}) CHECK(Says(status, text));
  }
}

TEST_CASE("exposing memory on a connection whose binds hang delays no other one") {
  World world;
  Pair pair(&world.stage, Receives(4, 8));
  REQUIRE(pair.established);
  fake_verbs().binds_hang = true;
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(TestBlock(4096));
    REQUIRE(pair.client.endpoint->Expose(pair.c, blocks.back(), 0, 4096).ok());
  }
  fake_verbs().poll_ns = 100'000;
  const int64_t before = fake_verbs().skipped_ns;
  for (int i = 0; i < 1000; ++i) {
    const absl::Status status = pair.client.endpoint->Expose(pair.c, blocks[0], 0, 4096).status();
    CHECK(IsNotNow(status));
  }
  // All of them together look little more often than once each.
  CHECK(fake_verbs().skipped_ns - before < 1100 * fake_verbs().poll_ns);
}

TEST_CASE("a device that fails wakes every endpoint on it") {
  World world;
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  const auto wakes = [](const Party& party) {
    std::vector<int> fds;
    party.endpoint->AppendDescriptors(&fds);
    std::vector<pollfd> polls;
    for (const int fd : fds) polls.push_back({fd, POLLIN, 0});
    return poll(polls.data(), polls.size(), 0) > 0;
  };
  CHECK_FALSE(wakes(pair.server));
  ibv_async_event fatal = {};
  fatal.event_type = IBV_EVENT_DEVICE_FATAL;
  fake_verbs().events.push_back(fatal);
  // One endpoint takes the event from the device; the other one sleeps.
  for (int i = 0; i < 100 && !fake_verbs().events.empty(); ++i) pair.client.PollEvents();
  REQUIRE(fake_verbs().events.empty());
  CHECK(wakes(pair.server));
}

// ---- connection requests ------------------------------------------------------------------------

// A peer that connects again and again, as fast as its requests are read.
class Flood {
 public:
  Flood(const std::string& address, int pending) : channel_(rdma_create_event_channel()) {
    to_.sin_family = AF_INET;
    to_.sin_port = htobe16(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    fake_verbs().on_cm_event = [this](rdma_cm_event_type type) {
      if (type != RDMA_CM_EVENT_CONNECT_REQUEST) return;
      ++read;
      Connect();
    };
    for (int i = 0; i < pending; ++i) Connect();
  }
  ~Flood() {
    fake_verbs().on_cm_event = nullptr;
    for (rdma_cm_id* id : ids_) rdma_destroy_id(id);
    rdma_destroy_event_channel(channel_);
  }

  size_t read = 0;  // of its requests

 private:
  void Connect() {
    rdma_cm_id* id = nullptr;
    rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP);
    rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to_), 0);
    rdma_conn_param parameters = {};
    rdma_connect(id, &parameters);
    ids_.push_back(id);
  }

  rdma_event_channel* const channel_;
  sockaddr_in to_ = {};
  std::vector<rdma_cm_id*> ids_;
};

TEST_CASE("a flood of connection requests delays no timer") {
  World world;
  Party& busy = world.stage.Add("busy");
  Party& silent = world.stage.Add("silent");
  const std::string address = busy.endpoint->Listen().value();
  // Events of this endpoint are never polled.
  const std::string nobody = silent.endpoint->Listen().value();
  const ConnectionId c = busy.endpoint->Create({4, 4}).value();
  REQUIRE(busy.endpoint->Connect(c, nobody, "").ok());
  for (int i = 0; i < 4; ++i) busy.PollEvents();
  Flood flood(address, 200);
  fake_verbs().skipped_ns += 6'000'000'000;
  std::vector<ConnectionEvent> events(64);
  bool failed = false;
  for (int turn = 0; turn < 2000 && !failed; ++turn) {
    const size_t n = busy.endpoint->PollEvents(absl::MakeSpan(events));
    for (size_t i = 0; i < n; ++i) {
      if (events[i].kind == Kind::kRequest) busy.endpoint->Reject(events[i].connection, "flood");
      failed |= events[i].kind == Kind::kFailed && events[i].connection == c;
    }
  }
  CHECK(failed);
}

TEST_CASE("unread connection requests stay in librdmacm, which limits their number") {
  World world;
  Party& busy = world.stage.Add("busy");
  Flood flood(busy.endpoint->Listen().value(), 200);
  std::vector<ConnectionEvent> events(8);
  size_t seen = 0;
  for (int turn = 0; turn < 500; ++turn) {
    const size_t n = busy.endpoint->PollEvents(absl::MakeSpan(events));
    for (size_t i = 0; i < n; ++i) busy.endpoint->Reject(events[i].connection, "flood");
    seen += n;
  }
  CHECK(seen == 500 * events.size());
  CHECK(flood.read - seen <= 64);
}

TEST_CASE("a request beyond the backlog is refused temporarily") {
  VerbsOptions options;
  options.backlog = 2;
  World world(options);
  Party& server = world.stage.Add("server");
  Party& client = world.stage.Add("client");
  const std::string address = server.endpoint->Listen().value();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(client.endpoint->Connect(client.endpoint->Create({4, 4}).value(), address, "").ok());
  }
  for (int i = 0; i < 8; ++i) client.PollEvents();
  REQUIRE(client.events.size() == 1);
  const absl::Status status = client.events[0].status;
  INFO(status);
  CHECK(absl::IsAborted(status));
  CHECK(Says(status, "too many connection requests wait there; try again"));
}

}  // namespace
}  // namespace verbena::rdma
