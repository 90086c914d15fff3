// A coordinator that did not run ends no lease, however long it stood still; a client that did not
// run while it joined has a lease when it has.
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/coordinator/failpoints.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint32_t kLeaseMs = 2000;

// Two servers and three workers, all of which are well throughout.
class Members {
 public:
  explicit Members(uint64_t seed) : cluster_(Options(seed)) {
    for (int i = 0; i < 3; ++i) {
      SimWorker* worker = cluster_.AddWorker("worker-" + std::to_string(i),
                                             {.expected_workers = 3, .seed = seed * 10 + i});
      worker->core().Join(worker->At(20 * kSecond), [this](absl::Status status) {
        if (status.ok()) ++joined_;
      });
    }
    REQUIRE(cluster_.RunUntil([this] { return joined_ == 3 && AllAlive(); }, 20 * kSecond));
  }

  SimCluster& cluster() { return cluster_; }
  // Whether some member lost its lease within the next `leases` leases.
  bool SomeLeaseEnds(int leases) {
    return cluster_.RunUntil([this] { return !AllAlive(); },
                             cluster_.now() + leases * kLeaseMs * kMilli);
  }
  void Run(int64_t ns) {
    cluster_.RunUntil([] { return false; }, cluster_.now() + ns);
  }

 private:
  static ClusterOptions Options(uint64_t seed) {
    ClusterOptions options;
    options.seed = seed;
    options.lease_ms = kLeaseMs;
    options.drift_ppm = 200;
    return options;
  }
  bool AllAlive() const {
    int alive = 0;
    for (const v1::Server& server : cluster_.view().servers()) {
      if (server.state() == v1::Server::ALIVE) ++alive;
    }
    return alive == 2 && cluster_.view().jobs_size() == 1 &&
           cluster_.view().jobs(0).members_size() == 3;
  }

  SimCluster cluster_;
  int joined_ = 0;
};

const double kStalls[] = {0.3, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 3, 20};

// Stalls the coordinator for the duration of so many leases. Two stalls follow each other after a
// short time: the second one meets the state that the first one has left.
bool StallEndsLease(uint64_t seed, double leases) {
  Members members(seed);
  const auto stall = static_cast<int64_t>(leases * kLeaseMs * kMilli);
  for (int i = 0; i < 2; ++i) {
    members.cluster().StallCoordinatorUntil(members.cluster().now() + stall);
    members.Run(stall + 100 * kMilli + static_cast<int64_t>(seed) * 37 * kMilli);
  }
  return members.SomeLeaseEnds(3);
}

TEST_CASE("regression: a coordinator stall of any length ends no lease") {
  for (const double leases : kStalls) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      INFO(leases << " leases, seed " << seed);
      CHECK_FALSE(StallEndsLease(seed, leases));
    }
  }
}

TEST_CASE("a stall that counts against leases is found") {
  server::failpoints().count_pauses = true;
  int found = 0;
  for (const double leases : kStalls) found += StallEndsLease(1, leases) ? 1 : 0;
  server::failpoints().count_pauses = false;
  CHECK(found > 0);
}

TEST_CASE("regression: a slow or failing write of the coordinator's store ends no lease") {
  for (const double leases : kStalls) {
    INFO(leases << " leases");
    Members members(7);
    SimCluster& cluster = members.cluster();
    StoreFaults faults;
    faults.checkpoint_ns = static_cast<int64_t>(leases * kLeaseMs * kMilli);
    cluster.store().set_faults(faults);
    // A change to save: a worker of another job.
    SimWorker* other = cluster.AddWorker("other", {.job = "other", .seed = 99});
    std::optional<absl::Status> joined;
    other->core().Join(other->At(cluster.now() + 200 * kSecond),
                       [&](absl::Status status) { joined = std::move(status); });
    const auto other_joined = [&] { return cluster.view().jobs_size() == 2; };
    REQUIRE(cluster.RunUntil(other_joined, cluster.now() + 20 * kSecond));
    members.Run(faults.checkpoint_ns + 100 * kMilli);
    cluster.store().set_faults({.fail_checkpoints = true});
    members.Run(3 * kLeaseMs * kMilli);
    cluster.store().set_faults({});
    members.Run(3 * kLeaseMs * kMilli);
    int members_left = 0;
    for (const v1::Job& job : cluster.view().jobs()) members_left += job.members_size();
    CHECK(members_left == 4);
    for (const v1::Server& server : cluster.view().servers()) {
      CHECK(server.state() == v1::Server::ALIVE);
    }
    CHECK(joined == absl::OkStatus());
  }
}

TEST_CASE("regression: a client that did not run while it joined has a lease when it has joined") {
  for (const bool held : {false, true}) {
    for (const double leases : {0.3, 0.6, 1.1, 3.0}) {
      INFO((held ? "held for " : "stalled for ") << leases << " leases");
      Members members(5);
      SimCluster& cluster = members.cluster();
      SimWorker* other = cluster.AddWorker("other", {.job = "other", .seed = 99});
      std::optional<absl::Status> joined;
      other->core().Join(other->At(cluster.now() + 20 * kSecond),
                         [&](absl::Status status) { joined = std::move(status); });
      REQUIRE(cluster.RunUntil([&] { return cluster.view().jobs_size() == 2; },
                               cluster.now() + kSecond));
      const auto until = cluster.now() + static_cast<int64_t>(leases * kLeaseMs * kMilli);
      if (held) other->HoldUntil(until);
      if (!held) other->StallUntil(until);
      REQUIRE(cluster.RunUntil([&] { return joined.has_value(); }, cluster.now() + 20 * kSecond));
      CHECK(joined->ok());
      members.Run(3 * kLeaseMs * kMilli);
      std::optional<absl::Status> listed;
      other->core().ListTables(
          other->At(cluster.now() + kSecond),
          [&](const absl::StatusOr<std::vector<v1::Table>>& tables) { listed = tables.status(); });
      REQUIRE(cluster.RunUntil([&] { return listed.has_value(); }, cluster.now() + 2 * kSecond));
      CHECK(listed->ok());
    }
  }
}

TEST_CASE("a member that is gone loses its lease also where the coordinator keeps stalling") {
  Members members(3);
  SimCluster& cluster = members.cluster();
  cluster.CrashWorker(cluster.workers()[0].get());
  bool ended = false;
  for (int i = 0; i < 8 && !ended; ++i) {
    cluster.StallCoordinatorUntil(cluster.now() + 6 * kLeaseMs / 10 * kMilli);
    members.Run(9 * kLeaseMs / 10 * kMilli);
    ended = cluster.view().jobs(0).members_size() == 2;
  }
  CHECK(ended);
  CHECK(cluster.view().jobs(0).members_size() == 2);
}

}  // namespace
}  // namespace verbena::test
