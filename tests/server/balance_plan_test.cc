// Plans of moves that balance the bytes of servers.
#include "server/balance/balance_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/balance/cluster_load.h"

namespace verbena::server {
namespace balance_plan_test {
namespace {

BalanceServer Named(uint64_t incarnation, const std::string& zone = "") {
  BalanceServer server;
  server.incarnation = incarnation;
  server.name = "s" + std::to_string(incarnation);
  server.zone = zone;
  return server;
}

BalancePartition On(uint32_t id, uint64_t bytes, uint64_t primary,
                    std::vector<uint64_t> followers = {}) {
  return {.id = id, .bytes = bytes, .primary = primary, .followers = std::move(followers)};
}

// Partitions of two servers with two replicas each, spread evenly; further servers are empty.
BalanceInput Pair(uint32_t partitions, uint64_t bytes, uint64_t servers) {
  BalanceInput input;
  for (uint64_t s = 1; s <= servers; ++s) input.servers.push_back(Named(s));
  for (uint32_t p = 0; p < partitions; ++p) {
    input.partitions.push_back(On(p, bytes, 1 + p % 2, {2 - p % 2}));
  }
  return input;
}

BalancePartition* Find(uint32_t id, BalanceInput* input) {
  for (BalancePartition& p : input->partitions) {
    if (p.id == id) return &p;
  }
  return nullptr;
}

const BalanceServer& ServerOf(uint64_t incarnation, const BalanceInput& input) {
  return *std::find_if(input.servers.begin(), input.servers.end(),
                       [&](const BalanceServer& s) { return s.incarnation == incarnation; });
}

std::vector<uint64_t> ReplicasOf(const BalancePartition& p) {
  std::vector<uint64_t> all = p.followers;
  all.push_back(p.primary);
  return all;
}

// Pairs of replicas that fail together.
int SharedZones(const BalancePartition& p, const BalanceInput& input) {
  int shared = 0;
  const std::vector<uint64_t> all = ReplicasOf(p);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      const std::string& zone = ServerOf(all[i], input).zone;
      shared += !zone.empty() && zone == ServerOf(all[j], input).zone ? 1 : 0;
    }
  }
  return shared;
}

// Carries the plan out. Returns the first broken rule, or an empty string.
std::string Carry(const BalancePlan& plan, BalanceInput* input) {
  std::set<uint32_t> moved;
  uint64_t bytes = 0;
  for (const BalanceMove& move : plan.moves) {
    BalancePartition* const p = Find(move.partition, input);
    if (p == nullptr || !p->movable) return "a partition that may not move";
    if (!moved.insert(move.partition).second) return "a partition moves twice";
    if (move.bytes != p->bytes) return "wrong bytes";
    const BalanceServer& to = ServerOf(move.to, *input);
    if (!to.counts || !to.accepts) return "the target may have no replicas";
    const std::vector<uint64_t> before = ReplicasOf(*p);
    if (std::count(before.begin(), before.end(), move.to) > 0) return "two replicas on a server";
    const int zones = SharedZones(*p, *input);
    if (move.primary) {
      if (p->primary != move.from) return "another server is primary";
      p->primary = move.to;
    } else {
      const auto follower = std::find(p->followers.begin(), p->followers.end(), move.from);
      if (follower == p->followers.end()) return "no such follower";
      *follower = move.to;
    }
    if (SharedZones(*p, *input) > zones) return "a zone has two replicas";
    bytes += move.bytes;
    for (BalanceServer& s : input->servers) {
      if (s.incarnation == move.to) s.memory_reserved += move.bytes;
      if (s.incarnation == move.to && s.memory_limit > 0 &&
          static_cast<double>(s.memory_reserved) >
              (1 - kMemoryKeptFree) * static_cast<double>(s.memory_limit)) {
        return "a server is full";
      }
    }
  }
  return bytes == plan.bytes ? "" : "wrong sum of bytes";
}

std::map<uint64_t, uint64_t> BytesOf(const BalanceInput& input) {
  std::map<uint64_t, uint64_t> bytes;
  for (const BalanceServer& s : input.servers) bytes[s.incarnation] = 0;
  for (const BalancePartition& p : input.partitions) {
    for (const uint64_t s : ReplicasOf(p)) bytes[s] += p.bytes;
  }
  return bytes;
}

// Falls with each move, so that plans do not go round in circles.
double Squares(const BalanceInput& input) {
  double sum = 0;
  const std::map<uint64_t, uint64_t> bytes = BytesOf(input);
  for (const BalanceServer& s : input.servers) {
    const auto load = static_cast<double>(bytes.at(s.incarnation));
    sum += load * load / static_cast<double>(std::max<uint64_t>(s.memory_limit, 1));
  }
  return sum;
}

// Also falls with an exchange. A primary counts by its bytes and as one.
double PrimarySquares(const BalanceInput& input) {
  std::map<uint64_t, double> bytes;
  double sum_of_all = 0;
  for (const BalancePartition& p : input.partitions) sum_of_all += static_cast<double>(p.bytes);
  const double average = sum_of_all / static_cast<double>(input.partitions.size());
  for (const BalancePartition& p : input.partitions)
    bytes[p.primary] += static_cast<double>(p.bytes) + average;
  double sum = 0;
  for (const BalanceServer& s : input.servers) {
    const double load = bytes[s.incarnation];
    sum += load * load / static_cast<double>(std::max<uint64_t>(s.memory_limit, 1));
  }
  return sum;
}

std::string Text(const BalanceMove& m) {
  return std::to_string(m.partition) + (m.primary ? "p" : "f") + std::to_string(m.from) + ">" +
         std::to_string(m.to) + " ";
}

std::string Text(const BalancePlan& plan) {
  std::string text;
  for (const BalanceMove& m : plan.moves) text += Text(m);
  return text;
}

TEST_CASE(
    "balance: an empty server gets its share of replicas and of primaries, and no more moves") {
  BalanceInput input = Pair(240, 1000, 3);
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.before == Approx(1.5));
  CHECK(plan.after <= 0.05);
  REQUIRE(Carry(plan, &input) == "");
  // 480 replicas, 160 each; the bound lets some of them stay.
  CHECK(plan.moves.size() <= 160);
  CHECK(plan.moves.size() >= 150);
  int primaries = 0;
  for (const BalanceMove& move : plan.moves) {
    CHECK(move.to == 3);
    primaries += move.primary ? 1 : 0;
  }
  CHECK(primaries >= 70);
  CHECK(primaries <= 90);
  for (const ServerBalance& s : plan.servers) {
    CHECK(s.bytes_after == BytesOf(input).at(s.server));
    CHECK(s.primary_after >= 70'000);
    CHECK(s.primary_after <= 90'000);
  }
  CHECK(PlanBalance(input, {}).moves.empty());
}

TEST_CASE("balance: primaries that are all on the servers that were restarted first are spread") {
  // As after a rolling restart: server 3 has followers alone.
  BalanceInput input;
  for (uint64_t s = 1; s <= 3; ++s) input.servers.push_back(Named(s));
  for (uint32_t p = 0; p < 240; ++p) {
    const uint64_t primary = 1 + p % 2;
    input.partitions.push_back(On(p, 1000 + p % 7, primary, {p % 3 == 0 ? 3 - primary : 3}));
  }
  for (BalanceServer& s : input.servers) s.memory_reserved = BytesOf(input)[s.incarnation];
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.before <= 0.05);
  CHECK(plan.primaries_before > 1);
  CHECK_FALSE(plan.balanced());
  CHECK(plan.after <= 0.05);
  CHECK(plan.primaries_after <= 0.1);
  // One primary and one follower for each role that changes its server.
  CHECK(plan.moves.size() <= 2 * 80);
  REQUIRE(Carry(plan, &input) == "");
  for (const ServerBalance& s : plan.servers) {
    size_t led = 0;
    for (const BalancePartition& p : input.partitions) led += p.primary == s.server ? 1 : 0;
    CHECK(s.primaries_after == led);
    CHECK(s.bytes_after == BytesOf(input).at(s.server));
    CHECK(s.load_after == Approx(1).margin(0.05));
  }
  CHECK(PlanBalance(input, {}).moves.empty());
}

TEST_CASE("regression: balance: primaries of small tables are spread after a rolling restart") {
  // A table has chunks in twelve of 240 partitions; server 3 leads four of these, and nothing else.
  BalanceInput input;
  for (uint64_t s = 1; s <= 3; ++s) input.servers.push_back(Named(s));
  for (uint32_t p = 0; p < 240; ++p) {
    if (p < 12) {
      input.partitions.push_back(On(p, 1 << 18, 1 + p % 3, {1 + (p + 1) % 3}));
    } else {
      const uint64_t primary = 1 + p % 2;
      input.partitions.push_back(On(p, 0, primary, {p % 3 == 0 ? 3 - primary : 3}));
    }
  }
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.before == 0);
  CHECK_FALSE(plan.balanced());
  CHECK(plan.bytes == 0);
  CHECK(plan.after == 0);
  CHECK(plan.primaries_after <= 0.1);
  REQUIRE(Carry(plan, &input) == "");
  for (const ServerBalance& s : plan.servers) {
    CHECK(s.primaries_after >= 64);
    CHECK(s.primaries_after <= 96);
    CHECK(s.primary_after == 4 << 18);
  }
  CHECK(PlanBalance(input, {}).moves.empty());
}

TEST_CASE("balance: a primary without bytes moves alone where there are no followers") {
  BalanceInput input;
  for (uint64_t s = 1; s <= 3; ++s) input.servers.push_back(Named(s));
  for (uint32_t p = 0; p < 90; ++p) {
    input.partitions.push_back(On(p, p < 6 ? 1000 : 0, p < 6 ? 1 + p % 3 : 1 + p % 2));
  }
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.bytes == 0);
  CHECK(plan.primaries_after <= 0.1);
  REQUIRE(Carry(plan, &input) == "");
}

TEST_CASE("balance: all rounds of a plan are those that follow when the ones before are done") {
  // A partition moves once at most in a round, and these come to server 3 over server 2.
  BalanceInput input = Pair(12, 1000, 6);
  BalancePlan whole = PlanAllRounds(input, {}, 16);
  std::string text;
  size_t rounds = 0;
  uint64_t bytes = 0;
  BalancePlan plan = PlanBalance(input, {});
  while (!plan.balanced() && !plan.moves.empty()) {
    ++rounds;
    text += Text(plan);
    bytes += plan.bytes;
    REQUIRE(Carry(plan, &input) == "");
    plan = PlanBalance(input, {});
  }
  CHECK(rounds > 1);
  CHECK(whole.rounds == rounds);
  CHECK(Text(whole) == text);
  CHECK(whole.bytes == bytes);
  CHECK(whole.after == Approx(plan.before));
  CHECK(whole.primaries_after == Approx(plan.primaries_before));
  for (const ServerBalance& s : whole.servers) CHECK(s.bytes_after == BytesOf(input).at(s.server));
  CHECK(whole.moves.back().round == rounds);
  CHECK(PlanAllRounds(input, {}, 16).rounds <= 1);
}

TEST_CASE("balance: servers with the same partitions exchange none, and the plan shows it") {
  BalanceInput input;
  input.servers = {Named(1), Named(2)};
  for (uint32_t p = 0; p < 10; ++p) input.partitions.push_back(On(p, 10, 1, {2}));
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.moves.empty());
  CHECK(plan.primaries_after == Approx(2));
  CHECK_FALSE(plan.balanced());
}

TEST_CASE("balance: an exchange needs memory on both sides, and is whole where moves are few") {
  BalanceInput input;
  for (uint64_t s = 1; s <= 3; ++s) input.servers.push_back(Named(s));
  for (uint32_t p = 0; p < 60; ++p) {
    input.partitions.push_back(On(p, 100, 1 + p % 2, {p % 3 == 0 ? 2 - p % 2 : 3}));
  }
  SECTION("an odd number of moves is allowed") {
    const BalancePlan plan = PlanBalance(input, {.most_moves = 3});
    CHECK(plan.moves.size() == 2);
  }
  SECTION("the server with followers has no room for more") {
    input.servers[2].accepts = false;
    CHECK(PlanBalance(input, {}).moves.empty());
  }
  SECTION("the other servers have no room") {
    input.servers[0].accepts = input.servers[1].accepts = false;
    CHECK(PlanBalance(input, {}).moves.empty());
  }
}

TEST_CASE("balance: a server whose memory limit holds no partition is left out") {
  BalanceInput input = Pair(120, 1000, 3);
  for (BalanceServer& server : input.servers) server.memory_limit = 1 << 20;
  input.servers[2].memory_limit = 1100;  // a tenth of it is kept free
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.moves.empty());
  CHECK(plan.before == 0);
  CHECK(plan.too_small == std::vector<uint64_t>{3});
  REQUIRE(plan.servers.size() == 2);
  CHECK(plan.servers[0].load_before == Approx(1));
  CHECK(plan.servers[0].memory_limit == 1 << 20);
}

TEST_CASE("regression: balance: a server whose limit holds less than it has is relieved") {
  BalanceInput input = {.servers = {Named(1), Named(2)},
                        .partitions = {On(0, 95, 1), On(1, 95, 2), On(2, 95, 2)}};
  input.servers[0].memory_limit = 100;
  input.servers[0].memory_reserved = 95;
  input.servers[1].memory_limit = 10'000;
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.too_small.empty());
  CHECK(plan.before > 1);
  REQUIRE(plan.moves.size() == 1);
  CHECK(plan.moves[0].partition == 0);
  CHECK(plan.moves[0].to == 2);
}

TEST_CASE("balance: a plan has at most the moves that are allowed, the same first ones") {
  const BalanceInput input = Pair(240, 1000, 3);
  const BalancePlan all = PlanBalance(input, {});
  const BalancePlan some = PlanBalance(input, {.most_moves = 8});
  REQUIRE(some.moves.size() == 8);
  CHECK(Text(all).starts_with(Text(some)));
  CHECK(some.bytes == 8000);
}

TEST_CASE("balance: without any contents partitions are spread by number") {
  BalanceInput input = Pair(30, 0, 3);
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(plan.moves.size() == 20);
  CHECK(plan.bytes == 0);
  REQUIRE(Carry(plan, &input) == "");
}

TEST_CASE("balance: zones stay apart where they were") {
  BalanceInput input;
  for (const auto& [server, zone] : {std::pair(1, "a"), std::pair(2, "b"), std::pair(3, "b")}) {
    input.servers.push_back(Named(static_cast<uint64_t>(server), zone));
  }
  for (uint32_t p = 0; p < 90; ++p) input.partitions.push_back(On(p, 10, 1 + p % 2, {2 - p % 2}));
  const BalancePlan plan = PlanBalance(input, {});
  REQUIRE(Carry(plan, &input) == "");
  // Zone a has one server, which keeps a replica of everything.
  CHECK(BytesOf(input) == std::map<uint64_t, uint64_t>{{1, 900}, {2, 450}, {3, 450}});
  CHECK(plan.after > kBalanced);
  SECTION("one zone for all is no reason to move nothing") {
    for (BalanceServer& server : input.servers) server.zone = "a";
    const BalancePlan more = PlanBalance(input, {});
    REQUIRE(Carry(more, &input) == "");
    CHECK(more.after <= 0.05);
  }
}

TEST_CASE("balance: drained, silent and full servers get nothing") {
  BalanceInput input = Pair(60, 100, 4);
  SECTION("one does not count") {
    input.servers[2].counts = input.servers[2].accepts = false;
    const BalancePlan plan = PlanBalance(input, {});
    REQUIRE(Carry(plan, &input) == "");
    CHECK(BytesOf(input)[3] == 0);
    CHECK(BytesOf(input)[4] > 3500);
    CHECK(plan.servers.size() == 3);
  }
  SECTION("one has no memory, and gets what fits") {
    for (BalanceServer& server : input.servers) server.memory_limit = 100'000;
    input.servers[2].memory_reserved = 89'000;
    REQUIRE(Carry(PlanBalance(input, {}), &input) == "");
    CHECK(BytesOf(input)[3] == 1000);
  }
  SECTION("one was refused a replica") {
    input.servers[2].accepts = false;
    REQUIRE(Carry(PlanBalance(input, {}), &input) == "");
    CHECK(BytesOf(input)[3] == 0);
  }
  SECTION("alone there is nothing to balance") {
    for (size_t i = 1; i < 4; ++i) input.servers[i].counts = false;
    CHECK(PlanBalance(input, {}).moves.empty());
    CHECK(PlanBalance(input, {}).before == 0);
  }
}

TEST_CASE("balance: shares follow the memory limits where every server has one") {
  BalanceInput input = Pair(120, 100, 3);
  input.servers[0].memory_limit = input.servers[1].memory_limit = 1 << 20;
  input.servers[2].memory_limit = 2 << 20;
  REQUIRE(Carry(PlanBalance(input, {}), &input) == "");
  CHECK(BytesOf(input)[3] > 11'500);
  CHECK(BytesOf(input)[3] <= 12'000);
}

TEST_CASE("balance: large partitions move only where that brings servers closer") {
  BalanceInput input;
  input.servers = {Named(1), Named(2)};
  input.partitions = {On(0, 1000, 1), On(1, 10, 1)};
  const BalancePlan plan = PlanBalance(input, {});
  CHECK(Text(plan) == "1p1>2 ");
  CHECK(plan.after > kBalanced);
  // Both ways would be as far apart.
  input.partitions = {On(0, 1000, 1)};
  CHECK(PlanBalance(input, {}).moves.empty());
}

TEST_CASE(
    "balance: plans for random clusters keep the rules, and each brings them nearer to balance") {
  int balanced = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
    BalanceInput input;
    const uint32_t servers = 2 + pick(7);
    const uint32_t zones = pick(4);
    const bool limits = pick(2) == 0;
    uint32_t counting = 0;
    for (uint64_t s = 1; s <= servers; ++s) {
      BalanceServer& server =
          input.servers.emplace_back(Named(s, zones == 0 ? "" : "z" + std::to_string(pick(zones))));
      server.counts = pick(8) > 0;
      server.accepts = server.counts && pick(8) > 0;
      if (limits) server.memory_limit = 40'000 + pick(3) * 40'000;
      counting += server.counts ? 1 : 0;
    }
    const uint32_t replicas = 1 + pick(std::min(servers, 3U));
    const bool alike = pick(2) == 0;
    for (uint32_t p = 0, count = 1 + pick(200); p < count; ++p) {
      std::vector<uint64_t> on;
      while (on.size() < replicas) {
        // The first servers have most.
        const uint64_t s = 1 + std::min(pick(servers), pick(servers));
        if (std::count(on.begin(), on.end(), s) == 0) on.push_back(s);
      }
      BalancePartition& partition = input.partitions.emplace_back(
          On(p, alike ? 100 : pick(400), on[0], {on.begin() + 1, on.end()}));
      partition.movable = pick(20) > 0;
    }
    for (BalanceServer& s : input.servers) s.memory_reserved = BytesOf(input)[s.incarnation];
    double before = PlanBalance(input, {}).before;
    int rounds = 0;
    while (true) {
      const BalancePlan plan = PlanBalance(input, {});
      REQUIRE(Text(plan) == Text(PlanBalance(input, {})));
      REQUIRE(plan.before == Approx(before));
      if (plan.moves.empty()) break;
      // Each way of a partition's replica once.
      REQUIRE(++rounds <= 20);
      BalanceInput after = input;
      REQUIRE(Carry(plan, &after) == "");
      // So no later plan leads back here.
      if (plan.before <= BalanceOptions().aim) {
        REQUIRE(plan.after <= BalanceOptions().aim);
        REQUIRE(PrimarySquares(after) < PrimarySquares(input));
      } else if (plan.after > BalanceOptions().aim) {
        const double squares = Squares(input), later = Squares(after);
        REQUIRE(later <= squares * (1 + 1e-12));
        if (later > squares * (1 - 1e-12)) REQUIRE(PrimarySquares(after) < PrimarySquares(input));
      }
      before = plan.after;
      input = std::move(after);
    }
    balanced += counting > 1 && before <= kBalanced ? 1 : 0;
  }
  // Others have zones, limits or sizes that allow no better.
  CHECK(balanced > 100);
}

TEST_CASE("balance: the input of a plan has what servers report of live partitions") {
  v1::ClusterView view;
  view.set_replicas(2);
  for (const auto& [id, state] :
       {std::pair(1, v1::Server::ALIVE), std::pair(2, v1::Server::ALIVE),
        std::pair(3, v1::Server::SILENT), std::pair(4, v1::Server::ALIVE)}) {
    v1::Server* server = view.add_servers();
    server->set_incarnation(static_cast<uint64_t>(id));
    server->set_state(state);
    server->set_memory_bytes(1000);
  }
  view.mutable_servers(3)->set_draining(true);
  for (uint32_t p = 0; p < 4; ++p) {
    v1::Partition* partition = view.add_partitions();
    partition->set_id(p);
    partition->set_primary(1);
    partition->add_followers()->set_server(2);
  }
  view.mutable_partitions(1)->set_move_to(2);
  view.mutable_partitions(2)->clear_followers();
  view.mutable_partitions(3)->set_unwanted(2);
  ServerReports reports;
  v1::ShardStatistics* shard = reports[1].add_shards();
  shard->set_memory_reserved_bytes(300);
  shard->set_memory_limit_bytes(1000);
  shard->add_partitions()->set_bytes(70);
  // A learner that has a part.
  reports[2].add_shards()->add_partitions()->set_bytes(20);
  reports[2].mutable_shards(0)->set_memory_full(true);
  const BalanceInput input = BalanceInputOf(view, reports, {});
  CHECK(input.servers[0].accepts);
  CHECK(input.servers[0].memory_reserved == 300);
  CHECK_FALSE(input.servers[1].accepts);
  CHECK(input.servers[1].counts);
  CHECK_FALSE(input.servers[2].counts);
  CHECK_FALSE(input.servers[3].counts);
  CHECK(input.partitions[0].bytes == 70);
  CHECK(input.partitions[0].movable);
  for (size_t p = 1; p < 4; ++p) CHECK_FALSE(input.partitions[p].movable);
  CHECK(PartitionsInMove(view) == 2);
  CHECK(PartitionsIncomplete(view) == 1);
  CHECK(MayBalance(view).message().find("moves are in progress (2 partitions)") !=
        std::string::npos);
  CHECK(MayPlanBalance(view).ok() == (input.servers[0].counts && input.servers[1].counts));
  CHECK_FALSE(BalanceInputOf(view, reports, {1}).servers[0].accepts);
}

TEST_CASE("balance: a partition that is moved counts where its move ends") {
  v1::ClusterView view;
  view.set_replicas(2);
  for (uint64_t id = 1; id <= 3; ++id) {
    v1::Server* server = view.add_servers();
    server->set_incarnation(id);
    server->set_state(v1::Server::ALIVE);
  }
  for (uint32_t p = 0; p < 4; ++p) {
    v1::Partition* partition = view.add_partitions();
    partition->set_id(p);
    partition->set_primary(1);
    partition->add_followers()->set_server(2);
  }
  view.mutable_partitions(0)->set_move_to(3);
  view.mutable_partitions(1)->set_move_to(3);
  view.mutable_partitions(1)->set_move_from(2);
  view.mutable_partitions(2)->set_move_to(2);
  view.mutable_partitions(3)->add_followers()->set_server(3);
  view.mutable_partitions(3)->set_unwanted(2);
  ServerReports reports;
  for (uint32_t p = 0; p < 4; ++p) {
    if (p == 0) reports[1].add_shards();
    v1::PartitionStatistics* held = reports[1].mutable_shards(0)->add_partitions();
    held->set_partition(p);
    held->set_bytes(10);
  }
  const BalanceInput input = BalanceInputOf(view, reports, {});
  CHECK(ReplicasOf(input.partitions[0]) == std::vector<uint64_t>{2, 3});
  CHECK(input.partitions[0].primary == 3);
  CHECK(ReplicasOf(input.partitions[1]) == std::vector<uint64_t>{3, 1});
  CHECK(input.partitions[2].primary == 2);
  CHECK(input.partitions[2].followers.empty());
  CHECK(ReplicasOf(input.partitions[3]) == std::vector<uint64_t>{3, 1});
  // Two copies are on their way.
  CHECK(input.servers[2].memory_reserved == 20);
  CHECK(MayPlanBalance(view).ok());
  CHECK_FALSE(MayBalance(view).ok());
}

TEST_CASE("balance: what a cluster lacks for it is an error with the fix") {
  v1::ClusterView view;
  CHECK(MayBalance(view).message().find("there are 0); start another server") != std::string::npos);
  for (uint64_t id : {1, 2}) {
    view.add_servers()->set_state(v1::Server::ALIVE);
    view.mutable_servers(static_cast<int>(id) - 1)->set_incarnation(id);
  }
  view.add_partitions();
  CHECK(MayBalance(view).message().find("no partition is on a server yet") != std::string::npos);
  view.mutable_partitions(0)->set_primary(1);
  CHECK(MayBalance(view).ok());
  view.mutable_servers(1)->set_draining(true);
  CHECK(MayBalance(view).message().find("there is 1)") != std::string::npos);
}

}  // namespace
}  // namespace balance_plan_test
}  // namespace verbena::server
