// Lanes: which workers get one, which one ends, and the reasons of refusals. Tests with the tag
// [verbs] also run over a real RDMA device (tests/softroce/cases/tokens.sh).
#include "proto/control/cluster_history.h"
#include "proto/control/failpoints.h"
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a lane is refused with its reason") {
  ShardFixture fixture;
  v1::OpenLaneRequest request = fixture.Request(100);
  SECTION("before the server has joined") {
    const absl::Status status = fixture.shard().OpenLane(request).status();
    CHECK(absl::IsUnavailable(status));
    CHECK_THAT(std::string(status.message()), Contains("not joined"));
    return;
  }
  fixture.SetWorkers({100});
  request = fixture.Request(100);
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  std::string says, also;
  SECTION("another server was meant") {
    request.set_server_incarnation(6);
    says = "incarnation 7, not 6";
  }
  SECTION("another shard") {
    request.set_shard(3);
    code = absl::StatusCode::kInvalidArgument;
    says = "shard 3 asked of shard 0";
  }
  SECTION("no common protocol version") {
    request.set_oldest_protocol(8);
    request.set_newest_protocol(9);
    says = "8 to 9";
    also = "this server 10 to 11; upgrade the caller";
  }
  SECTION("a worker whose lease has ended") {
    request.set_incarnation(99);
    code = absl::StatusCode::kNotFound;
    says = "99";
    also = "lease";
  }
  SECTION("a worker this server has not heard of yet") {
    request.set_incarnation(101);
    request.set_revision(5);
    code = absl::StatusCode::kUnavailable;
    says = "at revision 1, the caller's at 5";
  }
  SECTION("no common transport") {
    request.mutable_offers(0)->set_transport("verbs");
    says = "[sim]";
    also = "[verbs]";
  }
  SECTION("another host") {
    request.mutable_offers(0)->set_host("elsewhere");
    says = "sim: other host";
  }
  const absl::Status status = fixture.shard().OpenLane(request).status();
  CHECK(status.code() == code);
  CHECK_THAT(std::string(status.message()), Contains(says) && Contains(also));
}

TEST_CASE("a lane has the newest protocol version that both sides speak, and so do its records") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  v1::OpenLaneRequest request = fixture.Request(100);
  request.set_oldest_protocol(kOldestProtocolVersion - 1);
  const bool older = GENERATE(true, false);
  if (older) request.set_newest_protocol(kOldestProtocolVersion);
  if (!older) request.set_newest_protocol(kProtocolVersion + 1);
  const uint32_t wanted = older ? kOldestProtocolVersion : kProtocolVersion;
  auto granted = fixture.shard().OpenLane(request);
  REQUIRE(granted.ok());
  CHECK(granted->protocol() == wanted);
  const bool other = GENERATE(false, true);
  // A worker that writes records of another version loses its lane.
  if (other) granted->set_protocol(older ? kProtocolVersion : kOldestProtocolVersion);
  TestWorker& worker = fixture.NewWorker("here", 100);
  worker.Open(*granted);
  REQUIRE(fixture.Until([&] { return worker.open(); }));
  CHECK(fixture.shard().Snapshot().lanes.at(0).protocol() == wanted);
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(fixture.Until([&] { return worker.Answer(1) != nullptr || !worker.open(); }));
  CHECK(worker.open() != other);
}

TEST_CASE("regression: a worker of another history gets no lane by its number") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  fixture.SetWorkers({100});  // revision 2 of term 1
  v1::OpenLaneRequest request = fixture.Request(100);
  request.set_revision(5);
  v1::Seen* seen = request.mutable_seen();
  seen->set_cluster_id("test");
  seen->set_term(1);
  seen->set_term_id(kTermId);
  seen->set_revision(5);
  const auto open = [&] { return fixture.shard().OpenLane(request).status(); };
  const auto add_term = [&](uint64_t number, uint64_t id, uint64_t revision) {
    v1::Term* term = request.add_terms();
    term->set_number(number);
    term->set_id(id);
    term->set_revision(revision);
  };
  SECTION("it has seen more of the term that this server is in") { CHECK(open().ok()); }
  seen->set_term(2);
  seen->set_term_id(kTermId + 1);
  SECTION("it is in a term that follows the revision of this server") {
    add_term(1, kTermId, 1);
    add_term(2, kTermId + 1, 4);
    CHECK(open().ok());
  }
  SECTION("it is in a term that began from an older state") {
    add_term(1, kTermId, 1);
    add_term(2, kTermId + 1, 2);
    CHECK(absl::IsUnavailable(open()));
    CHECK_THAT(std::string(open().message()),
               Contains("revision 5 of term 2") && Contains("revision 2 of term 1"));
    history::failpoints().compare_revisions = true;
    CHECK(open().ok());
    history::failpoints().compare_revisions = false;
  }
  SECTION("the terms do not go back to the revision of this server") {
    add_term(2, kTermId + 1, 4);
    CHECK(absl::IsUnavailable(open()));
  }
  SECTION("it sends no terms") { CHECK(absl::IsUnavailable(open())); }
}

TEST_CASE("a lane is described with transport and reason", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  fixture.Connected("a", 100);
  const ShardSnapshot snapshot = fixture.shard().Snapshot();
  REQUIRE(snapshot.lanes.size() == 1);
  CHECK(snapshot.lanes[0].worker() == 100);
  CHECK(snapshot.lanes[0].transport() == TransportName());
  CHECK(snapshot.lanes[0].reason() == TransportName() + ": both have it");
  CHECK(snapshot.counters.lanes_open == 1);
  CHECK(snapshot.counters.lanes_opened == 1);
}

// The server works on: a worker with a good token trains.
void ExpectWorks(ShardFixture* fixture, uint64_t incarnation) {
  TestWorker& worker = fixture->Connected("works", incarnation);
  worker.values()[0] = 1;
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(fixture->Answered(worker, 1));
  CHECK(worker.Answer(1)->status == ReplyStatus::kOk);
}

TEST_CASE("a lane token is good once, for its worker, in time", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100, 101});
  v1::OpenLaneResponse grant = fixture.Grant(100);
  TestWorker& worker = fixture.NewWorker("a", 100);
  uint64_t other = 100;
  SECTION("unknown") {
    grant.mutable_token()->front() ^= 1;
    worker.Open(grant);
  }
  SECTION("used") {
    TestWorker& first = fixture.NewWorker("b", 100);
    first.Open(grant);
    REQUIRE(fixture.Until([&] { return first.open(); }));
    worker.Open(grant);
    other = 101;
  }
  SECTION("late") {
    fixture.Pass(absl::Seconds(21));
    worker.Open(grant);
  }
  SECTION("of a worker that is gone") {
    fixture.SetWorkers({101});
    worker.Open(grant);
    other = 101;
  }
  REQUIRE(fixture.Until([&] { return worker.dead(); }));
  CHECK_FALSE(worker.open());
  CHECK_THAT(std::string(worker.lane().error().message()),
             Contains("lane token unknown, used already or too late"));
  CHECK(fixture.counters().rejected_tokens == 1);
  ExpectWorks(&fixture, other);
}

TEST_CASE("another worker's token, of whatever job, is good for no record", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100, 101});
  TestWorker& thief = fixture.NewWorker("a", 101);
  thief.Open(fixture.Grant(100));
  REQUIRE(fixture.Until([&] { return thief.open(); }));
  thief.values()[0] = 1;
  REQUIRE(thief.Push(1, 1).ok());
  REQUIRE(fixture.Until([&] { return thief.dead(); }));
  CHECK(thief.Answer(1) == nullptr);
  CHECK(fixture.counters().engine.pushes == 0);
  ExpectWorks(&fixture, 100);
}

TEST_CASE("a connection without a lane hello is refused", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  const std::string address = fixture.Grant(100).address();
  TestWorker& stranger = fixture.NewWorker("a", 0);
  rdma::Endpoint& endpoint = stranger.endpoint();
  const auto connection = endpoint.Create({16, 16});
  REQUIRE(connection.ok());
  std::string hello;
  SECTION("nothing") {}
  SECTION("too short") { hello = "hello"; }
  SECTION("too long, and not one") { hello.assign(rdma::kMaxPrivateData, 'x'); }
  REQUIRE(endpoint.Connect(*connection, address, hello).ok());
  rdma::ConnectionEvent event = {};
  stranger.Watch(*connection, &event);
  REQUIRE(fixture.Until([&] { return event.connection == *connection; }));
  CHECK(event.kind == rdma::ConnectionEvent::Kind::kFailed);
  CHECK(absl::IsFailedPrecondition(event.status));
  // librdmacm pads short data, so a token of zeros can be read.
  CHECK_THAT(std::string(event.status.message()),
             Contains(OverVerbs() || hello.size() > sizeof(LaneHello)
                          ? "lane token unknown, used already or too late"
                          : "no lane hello in the private data"));
  CHECK(fixture.counters().rejected_tokens == 1);
  ExpectWorks(&fixture, 100);
}

TEST_CASE("the lanes of a worker whose lease ends are closed", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100, 101});
  TestWorker& gone = fixture.Connected("a", 100);
  TestWorker& stays = fixture.Connected("b", 101);
  fixture.SetWorkers({101});
  CHECK(fixture.Until([&] { return gone.dead(); }));
  REQUIRE(stays.Push(1, 1).ok());
  CHECK(fixture.Answered(stays, 1));
  CHECK(stays.Answer(1)->status == ReplyStatus::kOk);
  CHECK(fixture.counters().lanes_open == 1);
  CHECK(fixture.counters().lanes_lost == 1);
}

TEST_CASE("a worker that opens another lane has the older one closed, of which it alone knew") {
  ShardFixture fixture;
  fixture.SetWorkers({100, 101});
  TestWorker& other = fixture.Connected("b", 101);
  TestWorker& before = fixture.Connected("a", 100);
  TestWorker& after = fixture.Connected("a2", 100);
  CHECK(fixture.Until([&] { return before.dead(); }));
  CHECK(after.open());
  CHECK(other.open());
  CHECK(fixture.counters().lanes_open == 2);
  CHECK(fixture.counters().lanes_lost == 1);
}

TEST_CASE("a lane id comes back with a new generation once its lane is dead", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  const uint32_t id = worker.lane().ticket().lane;
  const uint32_t generation = worker.lane().ticket().generation;
  v1::CloseLaneRequest close;
  close.set_incarnation(100);
  close.set_lane(id);
  close.set_generation(generation);
  SECTION("only its worker can close it") {
    close.set_incarnation(101);
    CHECK(absl::IsNotFound(fixture.shard().CloseLane(close)));
    CHECK(fixture.counters().lanes_open == 1);
  }
  SECTION("closed and opened again") {
    REQUIRE(fixture.shard().CloseLane(close).ok());
    CHECK(fixture.Until([&] { return worker.dead(); }));
    const v1::OpenLaneResponse grant = fixture.Grant(100);
    CHECK(grant.lane() == id);
    CHECK(grant.generation() > generation);
    CHECK(fixture.counters().lanes_lost == 0);
  }
  SECTION("another lane meanwhile has another id") { CHECK(fixture.Grant(100).lane() != id); }
}

TEST_CASE("lanes share lane_memory_limit") {
  ShardExecutorOptions options;
  options.lane_memory_limit = 4 << 20;
  ShardFixture fixture(options);
  fixture.SetWorkers({100});
  std::vector<v1::OpenLaneResponse> grants;
  absl::Status status;
  while (grants.size() < 100) {
    auto grant = fixture.shard().OpenLane(fixture.Request(100));
    status = grant.status();
    if (!status.ok()) break;
    grants.push_back(*std::move(grant));
  }
  REQUIRE(grants.size() > 4);
  CHECK(grants.front().large_slots() == 4);
  CHECK(grants.back().large_slots() == 1);
  CHECK(grants.back().small_slots() < grants.front().small_slots());
  uint64_t total = 0;
  for (const auto& g : grants) {
    total += uint64_t{g.small_slots()} * g.small_slot_bytes() +
             uint64_t{g.large_slots()} * g.large_slot_bytes();
  }
  CHECK(total <= options.lane_memory_limit);
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()),
             Contains("4194304 bytes (--lane-memory-limit)") && Contains("smallest lane"));
  CHECK(fixture.shard().Snapshot().lanes_refused == status.message());
  // Grants that nobody takes up give their memory back.
  fixture.Pass(absl::Seconds(21));
  CHECK(fixture.shard().Snapshot().lanes_refused.empty());
  CHECK(fixture.Grant(100).large_slots() == 4);
}

TEST_CASE("large slots hold the largest chunk of any table") {
  ShardFixture fixture;
  fixture.set_chunk_bytes(1 << 20);
  fixture.SetWorkers({100});
  CHECK(fixture.Grant(100).large_slot_bytes() >= 4096 + (1 << 20));
}

TEST_CASE("regression: large slots hold a record of a table that the server does not know yet") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  const uint32_t known = fixture.Grant(100).large_slot_bytes();
  v1::OpenLaneRequest request = fixture.Request(100);
  request.set_record_bytes(known + 1);
  CHECK(fixture.shard().OpenLane(request)->large_slot_bytes() > known);
  // A caller's word alone gets slots for the largest chunk that a table may have.
  request.set_record_bytes(UINT32_MAX);
  CHECK(fixture.shard().OpenLane(request)->large_slot_bytes() == 4096 + (8 << 20));
}

TEST_CASE("a server with a new incarnation drops every lane of the old one", "[verbs]") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  worker.values()[0] = 1;
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  fixture.shard().SetIncarnation(kServer + 1);
  CHECK(fixture.Until([&] { return worker.dead(); }));
  const absl::Status status = fixture.shard().OpenLane(fixture.Request(100)).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(fixture.counters().engine.pushes == 0);
}

}  // namespace
}  // namespace verbena::server
