// Automatic balance: when it begins and ends, and what it waits for.
#include "server/balance/rebalancer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/configurations.h"

namespace verbena::server {
namespace rebalancer_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now; }
  int64_t now = kSecond;
};

// A cluster whose moves wait until Finish() or Fail().
class FakeCluster final : public ControlChannel {
 public:
  FakeCluster() {
    view.set_replicas(1);
    AddServer();
    AddServer();
    for (uint32_t p = 0; p < 60; ++p) {
      v1::Partition* partition = view.add_partitions();
      partition->set_id(p);
      partition->set_primary(1 + p % 2);
    }
  }

  void AddServer() {
    v1::Server* server = view.add_servers();
    server->set_incarnation(static_cast<uint64_t>(view.servers_size()));
    server->set_name(absl::StrCat("s", view.servers_size()));
    server->set_address(server->name());
    server->set_state(v1::Server::ALIVE);
  }
  int Moving() const {
    return static_cast<int>(std::count_if(view.partitions().begin(), view.partitions().end(),
                                          [](const auto& p) { return p.move_to() != 0; }));
  }
  int On(uint64_t server) const {
    return static_cast<int>(std::count_if(view.partitions().begin(), view.partitions().end(),
                                          [&](const auto& p) { return p.primary() == server; }));
  }
  void Finish() {
    for (v1::Partition& p : *view.mutable_partitions()) {
      if (p.move_to() != 0 && p.move_from() == 0) p.set_primary(p.move_to());
      for (v1::Replica& r : *p.mutable_followers()) {
        if (p.move_to() != 0 && r.server() == p.move_from()) r.set_server(p.move_to());
      }
      p.clear_move_to();
      p.clear_move_from();
    }
  }
  void Fail() {
    for (v1::Partition& p : *view.mutable_partitions()) {
      if (p.move_to() != 0) p.set_last_move(v1::MOVE_END_NO_MEMORY);
      p.clear_move_to();
    }
  }

  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration,
             Done done) override {
    absl::Status status;
    if (method == "/verbena.v1.Cluster/GetView") {
      if (down) status = absl::UnavailableError("connection refused");
      v1::GetViewResponse answer;
      *answer.mutable_view() = view;
      response->CopyFrom(answer);
    } else if (method == "/verbena.v1.Shard/GetStatistics") {
      response->CopyFrom(Report(address));
    } else if (method == "/verbena.v1.Cluster/MovePartitions") {
      if (refuses) status = absl::UnavailableError("connection refused");
      if (!refuses)
        response->CopyFrom(Begin(dynamic_cast<const v1::MovePartitionsRequest&>(request)));
    }
    ended_.push_back([status, done = std::move(done)]() mutable { done(status); });
  }
  bool RunOnce() override {
    auto ended = std::exchange(ended_, {});
    for (auto& done : ended) done();
    return !ended.empty();
  }
  int wake_fd() const override { return -1; }

  v1::ClusterView view;
  bool down = false;
  bool refuses = false;  // moves

 private:
  v1::GetStatisticsResponse Report(const std::string& address) const {
    v1::GetStatisticsResponse report;
    v1::ShardStatistics* const shard = report.add_shards();
    for (const v1::Server& server : view.servers()) {
      if (server.address() == address) report.set_incarnation(server.incarnation());
    }
    for (const v1::Partition& p : view.partitions()) {
      const auto here = [&](const v1::Replica& r) { return r.server() == report.incarnation(); };
      if (p.primary() != report.incarnation() &&
          std::none_of(p.followers().begin(), p.followers().end(), here)) {
        continue;
      }
      v1::PartitionStatistics* const held = shard->add_partitions();
      held->set_partition(p.id());
      held->set_bytes(100);
    }
    return report;
  }
  v1::MovePartitionsResponse Begin(const v1::MovePartitionsRequest& request) {
    v1::MovePartitionsResponse response;
    for (const uint32_t p : request.partitions()) {
      for (const v1::Server& server : view.servers()) {
        if (server.name() == request.to()) {
          view.mutable_partitions(static_cast<int>(p))->set_move_to(server.incarnation());
          view.mutable_partitions(static_cast<int>(p))->clear_last_move();
        }
        if (!request.from().empty() && server.name() == request.from()) {
          view.mutable_partitions(static_cast<int>(p))->set_move_from(server.incarnation());
        }
      }
      response.add_partitions(p);
    }
    return response;
  }

  std::vector<absl::AnyInvocable<void()>> ended_;
};

struct Fixture {
  void Advance(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock.now += kSecond;
      while (rebalancer.RunOnce() || cluster.RunOnce()) {
      }
    }
  }
  // The looks that it takes to begin.
  void AdvanceToBegin() { Advance(10 * Rebalancer::kLooksAbove); }
  // Until nothing moves any more.
  void FinishAll() {
    for (int i = 0; i < 100; ++i) {
      cluster.Finish();
      Advance(2);
      if (cluster.Moving() == 0) return;
    }
    FAIL("it does not end");
  }
  int Logged(const std::string& text) const {
    return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.find(text) != std::string::npos;
    }));
  }

  ManualClock clock;
  FakeCluster cluster;
  bool active = true;
  std::vector<std::string> lines;
  Rebalancer rebalancer{{.coordinator = "c",
                         .every_ns = 10 * kSecond,
                         .seed = 1,
                         .active = [this] { return active; },
                         .log = [this](bool, const std::string& text) { lines.push_back(text); }},
                        &clock,
                        &cluster};
};

TEST_CASE("rebalancer: an empty server gets its share, some moves at a time") {
  Fixture f;
  f.AdvanceToBegin();
  CHECK(f.cluster.Moving() == 0);
  f.cluster.AddServer();
  f.Advance(20);
  // It may be a moment's.
  CHECK(f.cluster.Moving() == 0);
  f.Advance(10);
  CHECK(f.cluster.Moving() == kMovesAtOnce);
  f.Advance(60);
  CHECK(f.cluster.Moving() == kMovesAtOnce);
  f.FinishAll();
  CHECK(f.cluster.On(3) >= 18);
  CHECK(f.cluster.On(3) <= 20);
  CHECK(f.Logged("begins: the servers' bytes differ by 150.0 %") == 1);
  f.Advance(10);
  CHECK(f.Logged("balanced: ") == 1);
  CHECK(f.rebalancer.statistics().begun == static_cast<uint64_t>(f.cluster.On(3)));
  CHECK(f.rebalancer.statistics().imbalance <= kBalanced);
  f.Advance(200);
  CHECK(f.lines.size() == 2);
}

TEST_CASE("rebalancer: below the threshold nothing moves") {
  Fixture f;
  // 33 of 60: 20 % apart.
  for (int p = 1; p < 7; p += 2) f.cluster.view.mutable_partitions(p)->set_primary(1);
  f.Advance(200);
  CHECK(f.rebalancer.statistics().imbalance == Approx(0.2));
  CHECK(f.cluster.Moving() == 0);
  f.cluster.view.mutable_partitions(7)->set_primary(1);
  f.Advance(200);
  CHECK(f.cluster.Moving() > 0);
}

TEST_CASE("rebalancer: it waits while something else has to happen first") {
  Fixture f;
  f.cluster.AddServer();
  v1::Partition* const partition = f.cluster.view.mutable_partitions(0);
  SECTION("another process leads") {
    f.active = false;
    f.Advance(200);
    CHECK(f.cluster.Moving() == 0);
    f.active = true;
  }
  SECTION("the coordinator does not answer") {
    f.cluster.down = true;
    f.Advance(200);
    CHECK(f.Logged("the load is not known") > 0);
    f.cluster.down = false;
  }
  SECTION("a server is silent") {
    f.cluster.view.mutable_servers(1)->set_state(v1::Server::SILENT);
    f.Advance(200);
    CHECK(f.cluster.Moving() == 0);
    f.cluster.view.mutable_servers(1)->set_state(v1::Server::ALIVE);
  }
  SECTION("a partition has a learner") {
    partition->add_learners()->set_server(2);
    f.Advance(200);
    CHECK(f.cluster.Moving() == 0);
    partition->clear_learners();
  }
  SECTION("an operator's move is in progress") {
    partition->set_move_to(2);
    f.Advance(200);
    CHECK(f.cluster.Moving() == 1);
    partition->clear_move_to();
  }
  SECTION("a partition has too few replicas") {
    f.cluster.view.set_replicas(2);
    f.Advance(200);
    CHECK(f.cluster.Moving() == 0);
    f.cluster.view.set_replicas(1);
  }
  f.AdvanceToBegin();
  CHECK(f.cluster.Moving() == kMovesAtOnce);
}

TEST_CASE("rebalancer: an old end of a move that was not begun here is no reason to pause") {
  Fixture f;
  f.cluster.AddServer();
  // As after an operator's move that had no effect.
  for (v1::Partition& p : *f.cluster.view.mutable_partitions()) {
    p.set_last_move(v1::MOVE_END_CANCELLED);
  }
  f.cluster.refuses = true;
  f.AdvanceToBegin();
  CHECK(f.cluster.Moving() == 0);
  CHECK(f.Logged("moves are not begun") > 0);
  f.cluster.refuses = false;
  f.Advance(10);
  CHECK(f.cluster.Moving() == kMovesAtOnce);
  CHECK(f.Logged("a move had no effect") == 0);
}

TEST_CASE("rebalancer: primaries are exchanged when one server has none, and stay then") {
  Fixture f;
  f.cluster.AddServer();
  f.cluster.view.set_replicas(2);
  for (v1::Partition& p : *f.cluster.view.mutable_partitions()) {
    p.add_followers()->set_server(p.id() % 3 == 0 ? 3 - p.primary() : 3);
  }
  f.AdvanceToBegin();
  CHECK(f.cluster.Moving() == kMovesAtOnce);
  CHECK(f.Logged("150.0 % for primaries alone") == 1);
  f.FinishAll();
  CHECK(f.cluster.On(3) >= 17);
  CHECK(f.rebalancer.statistics().imbalance <= kBalanced);
  CHECK(f.rebalancer.statistics().imbalance_of_primaries <= kPrimariesBalanced);
  f.Advance(10);
  const size_t lines = f.lines.size();
  CHECK(f.Logged("balanced: ") == 1);
  // Far from where it begins again.
  for (int p = 0; p < 60; ++p) {
    v1::Partition* partition = f.cluster.view.mutable_partitions(p);
    if (partition->primary() != 3 || f.cluster.On(3) <= 15) continue;
    const uint64_t follower = partition->followers(0).server();
    partition->mutable_followers(0)->set_server(3);
    partition->set_primary(follower);
  }
  f.Advance(200);
  CHECK(f.lines.size() == lines);
}

TEST_CASE("rebalancer: after a move without effect it pauses") {
  Fixture f;
  f.cluster.AddServer();
  f.AdvanceToBegin();
  REQUIRE(f.cluster.Moving() == kMovesAtOnce);
  f.cluster.Fail();
  f.Advance(10 * Rebalancer::kPauseLooks);
  CHECK(f.cluster.Moving() == 0);
  CHECK(f.Logged("a move had no effect; the next plan is made in 60 s") == 1);
  f.Advance(10 * Rebalancer::kLooksAbove);
  CHECK(f.cluster.Moving() == kMovesAtOnce);
}

}  // namespace
}  // namespace rebalancer_test
}  // namespace verbena::server
