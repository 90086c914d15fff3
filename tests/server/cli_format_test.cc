// Output of the operator's program: columns, units, escapes, verdicts, rates, JSON. Tables and
// their options: cli_tables_test.cc.
#include <catch2/catch.hpp>

#include "proto/protocol_version.h"
#include "server/cli/verbena/coordinator_call.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/partition_report.h"
#include "server/cli/verbena/shard_load.h"
#include "server/cli/verbena/text_report.h"
#include "server/cli/verbena/text_table.h"
#include "tests/server/cli_states.h"

namespace verbena::cli {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

void Set(v1::ShardStatistics* shard, uint64_t pushes, uint64_t bytes, double cpu) {
  shard->set_pushes(pushes);
  shard->set_push_bytes(bytes);
  shard->set_cpu_seconds(cpu);
}

TEST_CASE(
    "status names the protocol version in force, and the programs that hold a newer one back") {
  ClusterState state = Healthy();
  CHECK_THAT(StatusText(state), Contains("\nprotocol version 10 in force\n\nSERVER"));
  SetProtocols({10, 11}, &state.coordinator_protocol);
  state.coordinator_version = "0.9";
  state.view.set_protocol(10);
  for (ServerState& server : state.servers) {
    server.server.set_version("0.9\n");
    SetProtocols({10, 11}, server.server.mutable_protocol());
  }
  for (v1::Server& server : *state.view.mutable_servers()) {
    SetProtocols({10, 11}, server.mutable_protocol());
  }
  CHECK_THAT(StatusText(state),
             Contains("protocol version 10 in force; 11 follows when all expected "
                      "servers have joined\n") &&
                 Contains(" 0.9\\n    10 to 11  "));
  SetProtocols({10, 10}, state.view.mutable_servers(1)->mutable_protocol());
  CHECK_THAT(StatusText(state), Contains("protocol version 10 in force; 11 follows when these are "
                                         "upgraded: s6\n"));
  CHECK_THAT(StatusJson(state),
             Contains(R"("protocol": {"in_force": 10, "newest": 11, "older": ["s6"], )"
                      R"("coordinator_version": "0.9"})") &&
                 Contains(R"("version": "0.9\n", "protocol_newest": 11)"));
  state.coordinator_protocol.Clear();
  CHECK_THAT(StatusText(state), Contains("when these are upgraded: coordinator, s6\n"));
}

TEST_CASE("amounts have units that fit them") {
  CHECK(Bytes(0) == "0 B");
  CHECK(Bytes(999) == "999 B");
  CHECK(Bytes(1000) == "1.0 kB");
  CHECK(Bytes(999'949) == "999.9 kB");
  CHECK(Bytes(999'950) == "1.0 MB");
  CHECK(Bytes(12'345'678) == "12.3 MB");
  CHECK(Bytes(UINT64_MAX) == "18.4 EB");
  CHECK(Count(0) == "0");
  CHECK(Count(9'999'999) == "9999999");
  CHECK(Count(10'000'000) == "10.0 M");
  CHECK(Count(UINT64_MAX) == "18446.7 P");
  CHECK(Seconds(0.016) == "0.02 s");
  CHECK(Seconds(12.34) == "12.3 s");
  CHECK(Seconds(2 * 3600 + 5 * 60 + 59) == "2 h 05 min");
  CHECK(Seconds(-1) == "-");
  CHECK(Ranges({}) == "-");
  CHECK(Ranges({7, 3, 1, 2, 0}) == "0-3, 7");
  CHECK(Ranges({4, 5}) == "4, 5");
  CHECK(Ranges({1, 3, 5, 7}, 2) == "1, 3, ...");
}

TEST_CASE("control characters in a peer's text are escaped, and the text stays on one line") {
  CHECK(Printable("server-0 é \xe2\x82\xac") == "server-0 é \xe2\x82\xac");
  CHECK(Printable("a\nb\tc\x1b[2J\x7f") == "a\\nb\\tc\\x1b[2J\\x7f");
  CHECK(Printable("\xe2\x80\xaegnp.exe") == "\\u202egnp.exe");  // right-to-left override
  CHECK(Printable("\xc2\x9b") == "\\u009b");                    // C1: CSI
  CHECK(Printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(Printable("\\x1b") == "\\\\x1b");
}

TEST_CASE("columns are aligned by characters, without spaces at the end") {
  TextTable table({{"NAME"}, {"N", TextTable::Align::kRight}, {"LAST"}});
  table.AddRow({"é", "10", "x"});
  table.AddRow({"long", "7"});
  CHECK(table.ToString() ==
        "NAME   N  LAST\n"
        "é     10  x\n"
        "long   7\n");
}

TEST_CASE("status of a healthy cluster begins with \"healthy\"") {
  const ClusterState state = Healthy();
  CHECK(Problems(state).empty());
  CHECK_THAT(StatusText(state), StartsWith("healthy\n") && Contains("no jobs\n") &&
                                    Contains("no tables\n") &&
                                    Contains("s5      alive      0           1"));
  CHECK_THAT(StatusJson(state), StartsWith(R"({"healthy": true, "problems": [], "cluster": {)"));
}

TEST_CASE("servers at their memory limit are named, also where copies are missing") {
  ClusterState state = Healthy();
  state.view.set_replicas(2);
  state.view.add_tables()->mutable_spec()->set_name("t");
  v1::ShardStatistics* shard = state.servers[1].statistics->mutable_shards(1);
  shard->set_memory_full(true);
  for (v1::ShardStatistics& s : *state.servers[1].statistics->mutable_shards()) {
    s.set_memory_limit_bytes(uint64_t{64} << 20);
    s.set_memory_reserved_bytes(uint64_t{57} << 20);
  }
  const std::vector<std::string> problems = Problems(state);
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("4 partitions have fewer replicas than the 2 wanted; 0 being "
                                   "copied; no memory for replicas on s6"));
  CHECK_THAT(problems[1], StartsWith("server 's6' at s6:1 is at its memory limit of 64 MiB (57 MiB "
                                     "are taken)") &&
                              Contains("--memory-limit"));
}

TEST_CASE("status reports each kind of problem") {
  ClusterState state = Healthy();
  std::string says;
  SECTION("silent") {
    state.servers[1].server.set_state(v1::Server::SILENT);
    says =
        "server 's6' at s6:1 is silent: it has left or its lease has ended; its data (2 "
        "partitions)";
    CHECK(StateWord(state.servers[1]) == "silent");
  }
  SECTION("alive by its lease, but no answer") {
    state.servers[1].statistics = absl::UnavailableError("Connection refused");
    says = "server 's6' at s6:1 does not answer: Connection refused";
    CHECK(StateWord(state.servers[1]) == "no answer");
  }
  SECTION("another process at its address") {
    state.servers[1].statistics = absl::FailedPreconditionError("incarnation 9 answers there");
    says = "server 's6' at s6:1 has been replaced: incarnation 9 answers there";
    CHECK(StateWord(state.servers[1]) == "replaced");
  }
  SECTION("lost partitions") {
    v1::Table* table = state.view.add_tables();
    table->mutable_spec()->set_name("we\x1bights");
    for (const uint32_t lost : {0, 1, 3}) table->add_lost_partitions(lost);
    says = "table 'we\\x1bights' has lost 3 partitions (0, 1, 3): calls on them return DATA_LOSS";
    CHECK(PlacementOf(state).all.lost == 3);
    CHECK(PlacementOf(state).Of(6, 1).lost == 1);
  }
  SECTION("servers that have not joined") {
    state.view.set_expected_servers(3);
    says =
        "2 of 3 expected servers are alive: no table can be created or restored until 1 more joins";
  }
  SECTION("partitions on no server") {
    state.view.mutable_partitions(2)->set_primary(0);
    CHECK(Problems(state).empty());  // as it is before there is a table
    state.view.add_tables();
    says = "1 of 4 partitions are on no server";
  }
  SECTION("checkpoints fail") {
    v1::FailingCheckpoint failing;
    failing.set_job("de\x1bmo");
    failing.set_directory("/c/demo");
    failing.set_failures(3);
    failing.set_failing_ms(125'000);
    failing.set_error("/c/demo/LOCK: Read-only file system");
    state.failing_checkpoints.push_back(failing);
    says =
        "checkpoints of job 'de\\x1bmo' in /c/demo have failed for 2m5s (3 times): "
        "/c/demo/LOCK: Read-only file system; the newest that is complete is older than that: "
        "remove "
        "the cause, or save elsewhere ('verbena checkpoint save DIR --job de\\x1bmo')";
    CHECK(Settled(state));  // nothing that a restart of servers has to wait for
  }
  SECTION("a server without a disk for a table's rows") {
    v1::Table* table = state.view.add_tables();
    table->mutable_spec()->set_name("items");
    table->mutable_spec()->mutable_cold_tier()->set_hot_bytes(1 << 20);
    state.view.mutable_servers(0)->set_cold_tier(true);
    says = "table 'items' keeps rows on disk, and these servers have no --cold-dir: s6; its";
  }
  SECTION("a table that a server has no memory for") {
    v1::Table* table = state.view.add_tables();
    table->set_id(7);
    table->mutable_spec()->set_name("items");
    v1::TableStatistics* here = state.servers[1].statistics->add_shards()->add_tables();
    here->set_table(7);
    here->set_unserved("out of mem\x1bory");
    says = "table 'items' is not served in part by server 's6': out of mem\\x1bory; drop a table";
  }
  SECTION("a disk of cold rows that is full") {
    state.servers[0].statistics->mutable_shards(0)->set_cold_unwritten(
        "cannot write cold rows: IO error: No space left on device: /c\x1bold/0");
    says =
        "server 's5' at s5:1 cannot write rows to its disk (--cold-dir): shard 0: cannot write "
        "cold "
        "rows: IO error: No space left on device: /c\\x1bold/0; requests that need rows which are "
        "not in memory are refused or wait: free space there ('df -h DIR' on that machine), or "
        "drop "
        "tables ('verbena table drop NAME')";
    CHECK_FALSE(Settled(state));
  }
  SECTION("no room for lanes") {
    state.servers[0].statistics->mutable_shards(0)->set_lanes_refused(
        "shard 0: lanes have 9 of 9 bytes (--lane-memory-limit), and the smallest lane needs 3");
    says =
        "server 's5' at s5:1 refuses further lanes: shard 0: lanes have 9 of 9 bytes "
        "(--lane-memory-limit), and the smallest lane needs 3";
    CHECK(Settled(state));  // nothing that a restart of servers has to wait for
  }
  SECTION("the coordinator, while watching") {
    state.coordinator_status = absl::UnavailableError("the coordinator c:7000 cannot be reached");
    says = "the coordinator c:7000 cannot be reached";
    CHECK_THAT(RatesText(state, ShardLoads(state, nullptr), "now"), Contains(says));
  }
  REQUIRE(Problems(state).size() == 1);
  CHECK_THAT(Problems(state).front(), StartsWith(says));
  CHECK_THAT(StatusText(state), StartsWith("1 thing is wrong:\n  - " + says));
  CHECK_THAT(StatusJson(state), StartsWith(R"({"healthy": false, "problems": [")"));
}

// Both servers have all partitions, one of them as a follower.
ClusterState Replicated() {
  ClusterState state = Healthy();
  state.view.set_replicas(2);
  state.view.add_tables()->mutable_spec()->set_name("w");
  for (v1::Partition& partition : *state.view.mutable_partitions()) {
    partition.add_followers()->set_server(partition.primary() == 5 ? 6 : 5);
  }
  return state;
}

TEST_CASE("a server that had no memory for replicas is named, and when one is tried again") {
  ClusterState state = Replicated();
  for (v1::Partition& partition : *state.view.mutable_partitions()) partition.clear_followers();
  v1::FullServer& full = state.full_servers.emplace_back();
  full.set_incarnation(6);
  for (const uint32_t id : {0, 1, 3}) full.add_partitions(id);
  full.set_retry_ms(40'000);
  REQUIRE(Problems(state).size() == 1);
  CHECK_THAT(Problems(state)[0],
             EndsWith("no memory for replicas on s6 (one is tried again in 40.0 s, or when a table "
                      "is dropped)"));
  CHECK_THAT(
      PartitionsText(state),
      Contains("\nserver 's6' has no memory for replicas of 3 partitions (0, 1, 3); one is "
               "tried again in 40.0 s, or when a table is dropped; raise its --memory-limit, "
               "add a server, or drop tables\n"));
  CHECK_THAT(PartitionsJson(state),
             Contains(R"("full_servers": [{"server": "s6", "incarnation": 6, "partitions": )"
                      R"([0, 1, 3], "retry_ms": 40000}])"));
}

void Silence(ClusterState* state, int server) {
  state->view.mutable_servers(server)->set_state(v1::Server::SILENT);
  state->servers[server].server.set_state(v1::Server::SILENT);
  state->servers[server].statistics = absl::UnavailableError("Connection refused");
}

TEST_CASE("replicas on a server that is not present as in the view do not count") {
  ClusterState state = Replicated();
  CHECK(Settled(state));
  CHECK_THAT(CopiesText(state), Contains("; 0 partitions have fewer, 0 being copied"));
  SECTION("silent, though its process answers") {
    state.view.mutable_servers(1)->set_state(v1::Server::SILENT);
    state.servers[1].server.set_state(v1::Server::SILENT);
  }
  SECTION("killed, within its lease") {
    state.servers[1].statistics = absl::UnavailableError("Connection refused");
  }
  SECTION("another process has taken its place") {
    state.servers[1].statistics = absl::FailedPreconditionError("incarnation 9 answers there");
  }
  SECTION("the view has forgotten it") {
    state.servers.pop_back();
    state.view.mutable_servers()->RemoveLast();
  }
  CHECK_FALSE(Settled(state));
  CHECK(PlacementOf(state).incomplete == 4);
  CHECK(PlacementOf(state).dead == 0);
  CHECK_THAT(CopiesText(state), Contains("; 4 partitions have fewer, 0 being copied"));
  CHECK_THAT(StatusText(state), Contains("1 of 2 expected servers alive and answering") &&
                                    Contains("4 partitions have fewer replicas than the 2 wanted"));
  CHECK_THAT(StatusJson(state), Contains(R"("incomplete": 4, "dead": 0,)"));
  CHECK_THAT(PartitionsText(state), Contains("4 partitions have fewer"));
}

TEST_CASE("when all copies of partitions are dead, nothing takes them over") {
  ClusterState state = Replicated();
  Silence(&state, 0);
  CHECK_THAT(StatusText(state),
             Contains("followers have 2 partitions of it, and take them over") &&
                 Contains("1 of 2 expected servers are alive: no table can be created or restored "
                          "until 1 more joins") &&
                 !Contains("no living replica"));
  Silence(&state, 1);
  CHECK_THAT(StatusText(state),
             Contains("4 partitions have no living replica: calls on them wait") &&
                 Contains("the followers of 2 partitions of it do not respond either") &&
                 Contains("0 of 2 expected servers alive and answering") &&
                 !Contains("take them over if") && !Contains("fewer replicas than"));
}

TEST_CASE("regression: status of a silent server with replicas elsewhere names the commands") {
  const char* says = "start it again, or remove it if it will not come back ('verbena server";
  ClusterState state = Replicated();
  CHECK_THAT(StatusText(state), !Contains(says));
  Silence(&state, 1);
  CHECK_THAT(StatusText(state), Contains(says));
  // Removing a server whose data have no replica would lose them: status gives other advice.
  for (v1::Partition& partition : *state.view.mutable_partitions()) partition.clear_followers();
  CHECK_THAT(StatusText(state), Contains("start a server under its name") && !Contains(says));
}

TEST_CASE("a server that may be stopped: workers over shm wait for its process") {
  ClusterState state = Healthy();
  const char* says = "workers that use shm wait until it is killed or continues";
  state.servers[1].statistics = absl::DeadlineExceededError("no statistics within 5s");
  CHECK_THAT(StatusText(state), Contains(says));
  state.servers[1].server.set_state(v1::Server::SILENT);
  CHECK_THAT(StatusText(state), Contains(says));
  state.servers[1].statistics = absl::UnavailableError("Connection refused");
  CHECK_THAT(StatusText(state), !Contains(says));
}

TEST_CASE("a coordinator that answered with a refusal was reached") {
  const Coordinator coordinator = {nullptr, "c:7000", absl::Seconds(1), -1};
  const absl::Status away =
      Explain(absl::UnavailableError("c:7000: failed to connect to all addresses"), coordinator);
  CHECK(absl::IsUnavailable(away));
  CHECK_THAT(std::string(away.message()), Contains("cannot be reached: failed to connect"));
  for (const absl::Status& answer :
       {absl::UnavailableError("c:7000: coordinator state: it was loaded 3 ms ago"),
        absl::FailedPreconditionError("c:7000: coordinator state: it is not the one")}) {
    const absl::Status refused = Explain(answer, coordinator);
    CHECK(absl::IsUnknown(refused));
    CHECK_THAT(std::string(refused.message()),
               StartsWith("the coordinator c:7000 answered with an error: coordinator state: it"));
  }
}

TEST_CASE("the hottest shard is the one that used most processor time to serve requests") {
  ClusterState before = Healthy(10);
  ClusterState now = Healthy(12);
  // Busy long ago; idle but polling; half as busy; busiest.
  Set(Shard(&before, 0, 0), 1000, 5000, 50);
  Set(Shard(&now, 0, 0), 1000, 5000, 50);
  Set(Shard(&now, 0, 1), 0, 0, 1.9);
  Set(Shard(&now, 1, 0), 10, 4'000'000, 0.5);
  Set(Shard(&now, 1, 1), 20, 2'000'000, 1);

  std::vector<ShardLoad> loads = ShardLoads(now, &before);
  REQUIRE(loads.size() == 4);
  CHECK_FALSE(loads[0].hottest);
  CHECK_FALSE(loads[1].hottest);
  CHECK_FALSE(loads[2].hottest);
  CHECK(loads[3].hottest);
  REQUIRE(loads[2].rates);
  CHECK(loads[2].rates->push_bytes == Approx(2'000'000));
  CHECK(loads[2].rates->pushes == Approx(5));
  CHECK(loads[2].rates->cpu == Approx(0.25));
  CHECK_THAT(RatesText(now, loads, "12:00:00, over 2.0 s"),
             StartsWith("12:00:00, over 2.0 s\nSERVER") &&
                 Contains("s6          1        1.0        0.0        10        0") &&
                 Contains("50.0  <- hottest\n"));

  loads = ShardLoads(now, nullptr);
  CHECK(loads[0].hottest);
  CHECK_FALSE(loads[0].rates);
}

TEST_CASE("an idle cluster has no hottest shard") {
  for (const ShardLoad& load : ShardLoads(Healthy(), nullptr)) CHECK_FALSE(load.hottest);
}

TEST_CASE("there are no rates across a restart") {
  ClusterState before = Healthy(10);
  ClusterState now = Healthy(12);
  Set(Shard(&before, 0, 0), 1000, 5000, 50);
  Set(Shard(&now, 0, 0), 10, 50, 0.5);  // counters went back
  now.servers[1] = Answering(7, "s6", 2, 12);
  const std::vector<ShardLoad> loads = ShardLoads(now, &before);
  CHECK_FALSE(loads[0].rates);
  CHECK(loads[1].rates);
  CHECK_FALSE(loads[2].rates);
  CHECK_THAT(ShardsJson(now, loads, 2.0), Contains(R"("rates": null)"));
}

TEST_CASE("a server that does not answer is one row among the others") {
  ClusterState state = Healthy();
  state.servers[0].statistics = absl::UnavailableError("Connection refused");
  const std::vector<ShardLoad> loads = ShardLoads(state, nullptr);
  CHECK(loads.size() == 3);
  CHECK_THAT(ShardsText(state, loads),
             Contains("s5          -") && Contains("s6          0") && Contains("no answer\n") &&
                 Contains("s5 at s5:1 did not answer: Connection refused\n"));
  CHECK_THAT(ShardsJson(state, loads, std::nullopt),
             Contains(R"("answers": false, "error": "Connection refused", "shards": []})"));
  CHECK(Unanswered(state) == 1);
}

TEST_CASE("the output for an invalid view has a bounded length") {
  ClusterState state = Healthy();
  state.servers[0].server.set_shards(UINT32_MAX);
  CHECK(StatusText(state).size() < 200'000);
  CHECK(StatusJson(state).size() < 200'000);
  v1::Table* table = state.view.add_tables();
  table->mutable_spec()->add_shape(UINT64_MAX);
  table->mutable_spec()->set_dtype(static_cast<v1::DType>(99));
  CHECK_THAT(TablesText(state), Contains(" 99 "));
}

TEST_CASE("status and partition list show each replica's server, and missing replicas") {
  ClusterState state = Healthy();
  state.view.set_replicas(2);
  state.view.set_min_replicas(1);
  state.view.mutable_servers(1)->set_zone("b\n");
  state.view.mutable_servers(1)->set_state(v1::Server::SILENT);
  state.view.mutable_partitions(0)->add_followers()->set_server(6);
  v1::Replica* learner = state.view.mutable_partitions(2)->add_learners();
  learner->set_server(5);
  learner->set_shard(1);
  state.view.mutable_partitions(3)->set_primary(0);
  state.view.mutable_partitions(1)->set_configuration(4);
  v1::Table* table = state.view.add_tables();
  table->mutable_spec()->set_name("weights");
  table->add_lost_partitions(1);
  const Placement placement = PlacementOf(state);
  CHECK(placement.incomplete == 2);
  CHECK(placement.Of(6, 0).followers == 1);
  CHECK(placement.Of(5, 1).learners == 1);
  CHECK_THAT(PartitionsText(state),
             StartsWith("2 replicas of each partition wanted, 1 to take pushes; 2 partitions have "
                        "fewer, 1 being copied\n") &&
                 Contains("s6 shard 0 (zone b\\n, silent)") && Contains("s5 shard 1") &&
                 Contains("weights\n"));
  CHECK_THAT(PartitionsJson(state),
             Contains(R"("replicas": 2, "min_replicas": 1})") &&
                 Contains(R"("followers": [{"server": "s6", "incarnation": 6, "shard": 0, )"
                          R"("zone": "b\n", "state": "silent"}])") &&
                 Contains(R"("configuration": 4,)") && Contains(R"("lost_by": ["weights"])") &&
                 Contains(R"("primary": null)"));
  CHECK_THAT(StatusText(state),
             Contains("2 partitions have fewer replicas than the 2 wanted; 1 being"));
  CHECK_THAT(StatusJson(state), Contains(R"("incomplete": 2, "dead": 0, "learners": 1})"));
  state.view.set_replicas(0);  // of a coordinator that knows no replicas
  CHECK(PlacementOf(state).incomplete == 0);
  CHECK_THAT(StatusText(state), Contains("1 replica of each partition wanted, 1 to take pushes"));
}

TEST_CASE("a job's limits are shown beside its use of each server") {
  ClusterState state = Healthy();
  v1::Job* job = state.view.add_jobs();
  job->set_name("ads");
  job->mutable_limits()->set_memory_bytes(4'000'000);
  job->mutable_limits()->set_lanes(2);
  v1::Table* table = state.view.add_tables();
  table->mutable_spec()->set_name("t");
  table->mutable_spec()->set_job("ads");
  table->mutable_spec()->set_dim(4);
  for (uint32_t lanes : {1, 2}) {
    v1::JobStatistics* part = state.servers[0].statistics->add_shards()->add_jobs();
    part->set_job("ads");
    part->set_memory_bytes(1000);
    part->set_lanes(lanes);
  }
  CHECK_THAT(LimitsText(state, "ads"),
             StartsWith("job ads\n") && Contains("memory             4.0 MB  2.0 kB\n") &&
                 Contains("tables               none       1\n") &&
                 Contains("lanes of a shard        2       2\n") &&
                 Contains("s5            2.0 MB         2.0 kB                 2\n"));
  CHECK_THAT(JobsText(state), Contains("memory 4.0 MB, 2 lanes a shard"));
  CHECK_THAT(JobsJson(state),
             Contains(R"("limits": {"memory_bytes": 4000000, "tables": null, "lanes": 2})"));
  CHECK_THAT(LimitsJson(state, "ads"),
             Contains(R"("in_use": {"memory_bytes": 2000, "tables": 1, "lanes": 2})"));
}

}  // namespace
}  // namespace verbena::cli
