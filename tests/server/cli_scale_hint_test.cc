// The arithmetic of `verbena scale-hint`.
#include <catch2/catch.hpp>

#include "server/cli/verbena/scale_hint.h"
#include "tests/server/cli_states.h"

namespace verbena::cli {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Two readings, ten seconds apart, of two servers of two shards with a limit of 10 GiB. Each
// partition has two replicas.
struct Readings {
  ClusterState before = Healthy(10), now = Healthy(20);

  Readings() {
    for (ClusterState* state : {&before, &now}) {
      state->view.set_replicas(2);
      for (v1::Partition& p : *state->view.mutable_partitions()) {
        p.add_followers()->set_server(p.primary() == 5 ? 6 : 5);
      }
    }
    for (int server = 0; server < 2; ++server) Memory(server, kGiB, kGiB);
  }
  // Every shard of the server used this share of a processor.
  void Cpu(int server, double share) {
    for (int shard = 0; shard < 2; ++shard) {
      Shard(&now, server, shard)->set_cpu_seconds(share * 10);
      Shard(&now, server, shard)->set_pushes(100);
      Shard(&now, server, shard)->set_push_bytes(1000);
    }
  }
  void Memory(int server, uint64_t then, uint64_t later) {
    for (int shard = 0; shard < 2; ++shard) {
      for (auto [state, bytes] : {std::pair(&before, then), std::pair(&now, later)}) {
        Shard(state, server, shard)->set_memory_limit_bytes(10 * kGiB);
        Shard(state, server, shard)->set_memory_reserved_bytes(bytes);
      }
    }
  }
  // Two more servers, so that one may go.
  void AddTwo() {
    for (ClusterState* state : {&before, &now}) {
      for (uint64_t incarnation : {7, 8}) {
        state->servers.push_back(
            Answering(incarnation, "s" + std::to_string(incarnation), 2, state->read_at));
        *state->view.add_servers() = state->servers.back().server;
      }
    }
    for (int server = 2; server < 4; ++server) Memory(server, kGiB, kGiB);
  }
  ScaleHint Hint(const ScaleOptions& options = {}) const {
    return Suggest(now, ServerUses(now, before), options);
  }
};

TEST_CASE("scale hint: rates are sums of a server's shards, CPU is their mean") {
  Readings readings;
  readings.Cpu(0, 0.5);
  const std::vector<ServerUse> uses = ServerUses(readings.now, readings.before);
  REQUIRE(uses.size() == 2);
  REQUIRE(uses[0].rates);
  CHECK(uses[0].rates->cpu == Approx(0.5));
  CHECK(uses[0].rates->pushes == Approx(20));
  CHECK(uses[0].rates->push_bytes == Approx(200));
  CHECK(uses[1].rates->cpu == 0);
}

TEST_CASE("scale hint: time to full follows from the growth of memory") {
  Readings readings;
  readings.Memory(0, 2 * kGiB, 3 * kGiB);  // a GiB in ten seconds, seven are left
  readings.Memory(1, 3 * kGiB, 2 * kGiB);
  const std::vector<ServerUse> uses = ServerUses(readings.now, readings.before);
  REQUIRE(uses[0].full_in_s);
  CHECK(*uses[0].full_in_s == Approx(70));
  CHECK(*uses[1].growth == Approx(-0.1 * static_cast<double>(kGiB)));
  CHECK_FALSE(uses[1].full_in_s);
}

TEST_CASE("scale hint: servers are added for load, memory, and memory that will be full") {
  Readings readings;
  readings.Cpu(0, 0.95);
  readings.Cpu(1, 0.85);
  ScaleHint hint = readings.Hint();
  CHECK(hint.action == ScaleAction::kAdd);
  CHECK(hint.wanted_servers == 3);  // 1.8 servers of work at 0.75 each
  CHECK(hint.reason.find("90% of their processors") != std::string::npos);
  CHECK(readings.Hint({.max_servers = 2}).action == ScaleAction::kNone);

  Readings full;
  for (int server = 0; server < 2; ++server) full.Memory(server, 9 * kGiB, 9 * kGiB);
  hint = full.Hint();
  CHECK(hint.wanted_servers == 3);  // 18 GiB at 8 each
  CHECK(hint.reason.find("90% of the memory") != std::string::npos);

  Readings grows;
  grows.Memory(0, 2 * kGiB, 3 * kGiB);
  hint = grows.Hint({.full_within_s = 300});  // 3 + 30 + 1 GiB at 10 each
  CHECK(hint.wanted_servers == 4);
  CHECK(hint.reason.find("full within") != std::string::npos);
  CHECK(grows.Hint({.full_within_s = 10}).action == ScaleAction::kNone);
}

TEST_CASE("scale hint: servers are removed only where nothing is lost and the rest stays below") {
  Readings readings;
  readings.AddTwo();
  readings.Cpu(0, 0.3);
  readings.Cpu(1, 0.3);
  ScaleHint hint = readings.Hint();
  CHECK(hint.action == ScaleAction::kRemove);
  CHECK(hint.servers == 4);
  CHECK(hint.wanted_servers == 2);
  CHECK(readings.Hint({.min_servers = 3}).wanted_servers == 3);
  CHECK(readings.Hint({.cpu_low = 0.14}).action == ScaleAction::kNone);
  // With fewer servers than it expects the cluster makes no tables.
  readings.now.view.set_expected_servers(3);
  CHECK(readings.Hint().wanted_servers == 3);
  readings.now.view.set_expected_servers(0);

  Readings silent = readings;
  silent.now.servers[3].statistics = absl::UnavailableError("away");
  CHECK(silent.Hint().action == ScaleAction::kNone);
  CHECK(silent.Hint().reason.find("s8 has not answered") != std::string::npos);

  Readings incomplete = readings;
  incomplete.now.view.mutable_partitions(0)->clear_followers();
  CHECK(incomplete.Hint().reason.find("1 partitions have too few replicas") != std::string::npos);

  Readings single = readings;
  single.now.view.set_replicas(1);
  CHECK(single.Hint().action == ScaleAction::kNone);
  CHECK(single.Hint().reason.find("one replica") != std::string::npos);
}

TEST_CASE("scale hint: fewer servers than replicas are too few") {
  Readings readings;
  readings.now.servers.pop_back();
  const ScaleHint hint = readings.Hint();
  CHECK(hint.action == ScaleAction::kAdd);
  CHECK(hint.wanted_servers == 2);
}

TEST_CASE("scale hint: workers have states, and options that contradict are refused") {
  Readings readings;
  v1::Job* job = readings.now.view.add_jobs();
  job->set_name("demo");
  job->add_members()->set_rank(0);
  v1::Worker* joining = job->add_members();
  joining->set_rank(1);
  joining->set_joining(true);
  job->add_members()->set_rank(-1);
  const std::string json = ScaleHintJson(readings.now, readings.before, {});
  for (const char* state : {"working", "joining", "observer"}) {
    CHECK(json.find(std::string("\"state\": \"") + state + "\"") != std::string::npos);
  }
  CHECK(json.find("\"action\": \"none\"") != std::string::npos);
  CHECK(WrongScaleOptions({.cpu_high = 0.2, .cpu_low = 0.3}).find("--cpu-low") == 0);
  CHECK(WrongScaleOptions({}).empty());
}

}  // namespace
}  // namespace verbena::cli
