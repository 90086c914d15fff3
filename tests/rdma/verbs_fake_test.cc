// Limits and failures of real RDMA devices that soft-RoCE does not have (fake_verbs/): outcome and
// message of each.
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/rdma/fake_verbs/fake_world.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;
using World = FakeWorld;

TEST_CASE("the fake device connects two endpoints and writes between them") {
  World world;
  Pair pair(&world.stage, Receives(4, 8));
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 4096, 3);
  REQUIRE(pair.Push(0, 4096, 9).ok());
  REQUIRE(world.stage.Until([&] { return !pair.server.Immediates(pair.s).empty(); }));
  CHECK(HasPattern(*pair.server_block, 0, 4096, 3));
  pair.client.endpoint->Close(pair.c);
  CHECK(pair.client.endpoint->Dead(pair.c));
  CHECK(world.stage.Until([&] { return pair.server.Count(Kind::kLost, pair.s) == 1; }));
  CHECK(fake_verbs().live_queue_pairs.empty());
}

// ---- memory windows -----------------------------------------------------------------------------

TEST_CASE("a region of more than 2 GiB is reached through windows that mlx5 binds") {
  World world;
  fake_verbs().max_bind_bytes = uint64_t{1} << 31;
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  const size_t most = pair.client.endpoint->max_exposure();
  CHECK(most == uint64_t{1} << 31);
  const size_t bytes = (size_t{5} << 30) + 4096;
  // Pages that nobody touches take no memory.
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(data != MAP_FAILED);
  {
    const auto large = MemoryBlock::Register(data, bytes).value();
    // At once it is more than a window takes; the pieces that a lane makes are not.
    const auto whole = pair.client.endpoint->Expose(pair.c, large, 0, bytes);
    CHECK(whole.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(Says(whole.status(), "2147483648"));
    uint32_t arrived = 0;
    for (const size_t begin : {size_t{0}, most / 2, most, bytes - 4096}) {
      const size_t piece = std::min(most, bytes - begin);
      const auto memory = pair.client.endpoint->Expose(pair.c, large, begin, piece);
      INFO(memory.status());
      REQUIRE(memory.ok());
      FillPattern(*pair.server_block, 0, 4096, 5);
      const Segment segment = {pair.server_block->data(), 4096, pair.server_block.get()};
      WriteRequest write;
      write.segments = absl::MakeConstSpan(&segment, 1);
      write.remote = {memory->address + piece - 4096, memory->key};
      write.immediate = 1;
      REQUIRE(pair.server.endpoint->PostWrite(pair.s, write).ok());
      ++arrived;
      REQUIRE(world.stage.Until([&] { return pair.client.Immediates(pair.c).size() == arrived; }));
      CHECK(HasPattern(*large, begin + piece - 4096, 4096, 5));
    }
  }
  for (const FakeVerbs::Bind& bind : fake_verbs().binds) CHECK(bind.bytes <= uint64_t{1} << 31);
  munmap(data, bytes);
}

TEST_CASE("a bind that the provider refuses is an error of that call, and the lane lives") {
  World world;
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  fake_verbs().max_bind_bytes = 65536;
  const auto block = TestBlock(1 << 20);
  const auto refused = pair.client.endpoint->Expose(pair.c, block, 0, 1 << 20);
  CHECK(Says(refused.status(), "memory window"));
  CHECK(pair.client.endpoint->Expose(pair.c, block, 0, 65536).ok());
  world.stage.Settle();
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
}

TEST_CASE("a window that lies in no single piece of its block has a region of its own") {
  VerbsOptions options;
  options.max_registration = 65536;
  World world(options);
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  CHECK(pair.client.endpoint->max_exposure() == 65536);
  const auto block = TestBlock(1 << 20);
  // Pieces begin every 32768 bytes.
  const auto memory = pair.client.endpoint->Expose(pair.c, block, 36864, 65536);
  INFO(memory.status());
  REQUIRE(memory.ok());
  FillPattern(*pair.server_block, 0, 65536, 5);
  const Segment segment = {pair.server_block->data(), 65536, pair.server_block.get()};
  WriteRequest write;
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = *memory;
  write.immediate = 1;
  REQUIRE(pair.server.endpoint->PostWrite(pair.s, write).ok());
  REQUIRE(world.stage.Until([&] { return pair.client.Immediates(pair.c).size() == 1; }));
  CHECK(HasPattern(*block, 36864, 65536, 5));
}

TEST_CASE("relaxed ordering is requested for regions only: a provider may ignore it for windows") {
  VerbsOptions options;
  options.relaxed_ordering = GENERATE(true, false);
  World world(options);
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  REQUIRE(pair.Push(0, 4096, 1).ok());
  REQUIRE(world.stage.Until([&] { return !pair.server.Immediates(pair.s).empty(); }));
  REQUIRE_FALSE(fake_verbs().registrations.empty());
  for (const unsigned access : fake_verbs().registrations) {
    CHECK(((access & IBV_ACCESS_RELAXED_ORDERING) != 0) == options.relaxed_ordering);
    CHECK((access & IBV_ACCESS_REMOTE_WRITE) == 0);
  }
  REQUIRE_FALSE(fake_verbs().binds.empty());
  // No provider may refuse a bind for a flag that it does not know.
  for (const FakeVerbs::Bind& bind : fake_verbs().binds) {
    CHECK(bind.access == IBV_ACCESS_REMOTE_WRITE);
  }
}

// ---- teardown that fails ------------------------------------------------------------------------

TEST_CASE("a connection whose queue pair cannot be destroyed is not dead") {
  World world;
  Pair pair(&world.stage, Receives(4, 8));
  REQUIRE(pair.established);
  const bool by_owner = GENERATE(true, false);
  bool refuses = true;
  fake_verbs().destroy_qp = [&](const ibv_qp&) { return refuses ? EBUSY : 0; };
  fake_verbs().modify_qp = [&](const ibv_qp&, ibv_qp_state) { return refuses ? EIO : 0; };
  if (by_owner) {
    pair.client.endpoint->Close(pair.c);
  } else {
    pair.server.endpoint->Close(pair.s);
    REQUIRE(world.stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
  }
  world.stage.Settle();
  CHECK_FALSE(pair.client.endpoint->Dead(pair.c));
  CHECK(pair.client.Receives(pair.c).empty());  // a flushed completion gives memory back
  CHECK(pair.client_block.use_count() == 2);
  CHECK(world.logs.Have("cannot take down a queue pair"));
  CHECK(world.logs.Have("its buffers are not used again"));
  refuses = false;
  for (int i = 0; i < 3; ++i) {
    fake_verbs().skipped_ns += 1'000'000'000;
    world.stage.Settle();
  }
  CHECK(pair.client.endpoint->Dead(pair.c));
  CHECK(pair.client.Receives(pair.c).size() == 4);
  CHECK(fake_verbs().live_queue_pairs.empty());
}

TEST_CASE("memory of a destroyed connection is kept until its queue pair is destroyed") {
  World world;
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  bool refuses = true;
  fake_verbs().destroy_qp = [&](const ibv_qp&) { return refuses ? EBUSY : 0; };
  pair.client.endpoint->Destroy(pair.c);
  CHECK(pair.client_block.use_count() == 2);
  SECTION("the device destroys it later") {
    refuses = false;
    fake_verbs().skipped_ns += 1'000'000'000;
    world.stage.Settle();
    CHECK(pair.client_block.use_count() == 1);
  }
  SECTION("the device never destroys it") {
    pair.client.endpoint.reset();
    CHECK(pair.client_block.use_count() == 2);
    CHECK(world.logs.Have("restart it"));
  }
  fake_verbs().destroy_qp = nullptr;
}

TEST_CASE("a removed device destroys its queue pairs") {
  World world;
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  fake_verbs().destroy_qp = [](const ibv_qp&) { return EIO; };
  pair.client.endpoint->Close(pair.c);
  CHECK_FALSE(pair.client.endpoint->Dead(pair.c));  // EIO alone proves nothing
  ibv_async_event fatal = {};
  fatal.event_type = IBV_EVENT_DEVICE_FATAL;
  fake_verbs().events.push_back(fatal);
  CHECK(world.stage.Until([&] { return pair.client.endpoint->Dead(pair.c); }));
}

// ---- asynchronous events ------------------------------------------------------------------------

TEST_CASE("a completion queue in error ends its connections, and new ones use another queue") {
  World world;
  Pair pair(&world.stage, Receives(4, 8));
  REQUIRE(pair.established);
  REQUIRE(fake_verbs().live_queues.size() == 2);
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = fake_verbs().live_queues[0];
  fake_verbs().events.push_back(event);
  REQUIRE(world.stage.Until([&] {
    return pair.client.Count(Kind::kLost, pair.c) == 1 &&
           pair.server.Count(Kind::kLost, pair.s) == 1;
  }));
  const bool clients = Says(pair.client.Find(Kind::kLost)->status, "completion queue");
  const Party& owner = clients ? pair.client : pair.server;
  for (const ConnectionEvent& e : owner.events) {
    if (e.kind != Kind::kLost) continue;
    CHECK(e.status.code() == absl::StatusCode::kUnavailable);
    CHECK(Says(e.status, "IBV_EVENT_CQ_ERR"));
    CHECK(Says(e.status, "open again on a new queue"));
  }
  world.stage.Settle();
  CHECK(fake_verbs().live_queues.size() == 1);  // the broken one is gone
  CHECK(owner.endpoint->Create({64, 64}).ok());
  CHECK(fake_verbs().live_queues.size() == 2);
  CHECK(fake_verbs().acknowledged == 1);
}

TEST_CASE("events of objects that another library has on the context are left alone") {
  World world;
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  // Their contexts are that library's: nothing of them may be read.
  ibv_qp theirs = {};
  theirs.qp_context = reinterpret_cast<void*>(8);
  ibv_cq queue = {};
  queue.cq_context = reinterpret_cast<void*>(8);
  for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_PATH_MIG_ERR}) {
    ibv_async_event event = {};
    event.event_type = type;
    event.element.qp = &theirs;
    fake_verbs().events.push_back(event);
  }
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = &queue;
  fake_verbs().events.push_back(event);
  world.stage.Settle();
  CHECK(fake_verbs().acknowledged == 5);
  CHECK(pair.client.Count(Kind::kLost, pair.c) == 0);
  // Our own are found.
  event.event_type = IBV_EVENT_QP_FATAL;
  event.element.qp = fake_verbs().live_queue_pairs[0];
  fake_verbs().events.push_back(event);
  CHECK(world.stage.Until([&] { return pair.client.Count(Kind::kLost, pair.c) == 1; }));
}

// ---- queue pairs --------------------------------------------------------------------------------

TEST_CASE("a queue pair refused with ENOMEM is requested with less inline data, then reported") {
  World world;
  SECTION("less inline data fits") {
    fake_verbs().create_qp = [](const ibv_qp_init_attr& asked) {
      return asked.cap.max_inline_data > 64 ? ENOMEM : 0;
    };
    Pair pair(&world.stage, Receives(4, 8));
    REQUIRE(pair.established);
    CHECK(pair.client.endpoint->settings().find("inline 64 bytes") != std::string::npos);
    CHECK(pair.Push(0, 200, 1).ok());
    CHECK(world.stage.Until([&] { return !pair.server.Immediates(pair.s).empty(); }));
  }
  SECTION("nothing fits, though max_qp_wr allows it") {
    Party& party = world.stage.Add("a");
    fake_verbs().create_qp = [](const ibv_qp_init_attr&) { return ENOMEM; };
    const absl::Status status = party.endpoint->Create({64, 64}).status();
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    for (const char* text : {"fake0", "112 sends", "64 receives", "max_qp_wr 16384", "errno 12",
                             "--slots", "--operations", "ulimit -l"}) {
      CHECK(Says(status, text));
    }
    fake_verbs().create_qp = nullptr;
    CHECK(party.endpoint->Create({64, 64}).ok());  // nothing is left of it
  }
}

TEST_CASE("the requested GID index is set in the queue pair and reported") {
  VerbsOptions options;
  options.gid_index = GENERATE(-1, 3, 2);
  ResetFakeVerbs();
  World world(options);
  fake_verbs().gid_indexes = {2, 3};  // RoCE v1 and v2 of one address
  fake_verbs().cm_gid_index = 2;
  Pair pair(&world.stage);
  REQUIRE(pair.established);
  const int expected = options.gid_index < 0 ? 2 : options.gid_index;
  CHECK(fake_verbs().gid_indexes_used == std::vector<int>{expected, expected});
  CHECK(pair.client.endpoint->settings().find("GID index " + std::to_string(expected) +
                                              (expected == 3 ? " (RoCE v2)" : " (RoCE v1)")) !=
        std::string::npos);
}

// ---- slow set-up --------------------------------------------------------------------------------

TEST_CASE("the connect timeout applies to each stage") {
  VerbsOptions options;
  options.connect_timeout = absl::Seconds(5);
  World world(options);
  // Each stage takes 4 s.
  fake_verbs().on_cm_event = [](rdma_cm_event_type) { fake_verbs().skipped_ns += 4'000'000'000; };
  Pair pair(&world.stage);
  if (pair.client.Find(Kind::kFailed) != nullptr) INFO(pair.client.Find(Kind::kFailed)->status);
  CHECK(pair.established);
}

TEST_CASE("a thousand lanes at 2 ms for each event and queue pair all connect") {
  VerbsOptions options;
  options.backlog = 1000;  // those beyond it are refused for now
  World world(options);
  fake_verbs().on_cm_event = [](rdma_cm_event_type) { fake_verbs().skipped_ns += 2'000'000; };
  fake_verbs().create_qp = [](const ibv_qp_init_attr&) {
    fake_verbs().skipped_ns += 2'000'000;
    return 0;
  };
  Party& server = world.stage.Add("server");
  Party& client = world.stage.Add("client");
  const std::string address = server.endpoint->Listen().value();
  constexpr size_t kLanes = 1000;
  for (size_t i = 0; i < kLanes; ++i) {
    const ConnectionId c = client.endpoint->Create({4, 4}).value();
    REQUIRE(client.endpoint->Connect(c, address, "").ok());
  }
  size_t seen = 0;
  size_t established = 0;
  size_t failed = 0;
  const bool all = world.stage.Until([&] {
    for (; seen < server.events.size(); ++seen) {
      const ConnectionEvent& event = server.events[seen];
      if (event.kind != Kind::kRequest) continue;
      if (!server.endpoint->Prepare(event.connection, {4, 4}).ok()) continue;
      (void)server.endpoint->Accept(event.connection);
    }
    established = failed = 0;
    for (const ConnectionEvent& event : client.events) {
      established += event.kind == Kind::kEstablished ? 1 : 0;
      if (event.kind == Kind::kFailed) {
        ++failed;
        UNSCOPED_INFO(event.status);
      }
    }
    return established + failed == kLanes;
  });
  CHECK(all);
  CHECK(established == kLanes);
}

}  // namespace
}  // namespace verbena::rdma
