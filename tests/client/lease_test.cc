// The lease is kept while the owner of the core is in a call that takes long.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "client/core/failpoints.h"
#include "client/core/lease_keeper.h"
#include "rdma/sim/sim_network.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace lease_test {

using client::CurrentCall;
using client::LeaseKeeper;

constexpr int64_t kLease = 2 * kSecond;

// A coordinator that ends a lease that is not renewed in time, and a channel of any thread.
class Coordinator final : public ControlChannel {
 public:
  explicit Coordinator(const rdma::SimNetwork* network) : network_(network) {}

  void Unary(const std::string&, const std::string& method, const google::protobuf::Message&,
             std::shared_ptr<google::protobuf::Message>, absl::Duration, Done done) override {
    CHECK(method == "/verbena.v1.Cluster/Heartbeat");
    const int64_t now = network_->clock().NowNanos();
    ended_ |= now - renewed_ > kLease;
    renewed_ = now;
    ++heartbeats;
    answers_.push_back(std::move(done));
  }
  // Nobody runs it while the owner of the core is busy.
  bool RunOnce() override {
    for (Done& done : answers_) done(absl::OkStatus());
    answers_.clear();
    return true;
  }
  bool any_thread() const override { return true; }
  int wake_fd() const override { return -1; }
  bool ended() const { return ended_ || network_->clock().NowNanos() - renewed_ > kLease; }

  int heartbeats = 0;

 private:
  const rdma::SimNetwork* network_;
  int64_t renewed_ = 0;
  bool ended_ = false;
  std::vector<Done> answers_;
};

struct World {
  World() : network(1, {}), coordinator(&network) { keeper.Start(100, kLease); }
  ~World() { client::failpoints() = {}; }
  int64_t now() const { return network.clock().NowNanos(); }
  // Its thread alone runs.
  void RunFor(int64_t ns) {
    const int64_t end = now() + ns;
    while (now() < end) network.Advance(std::min(end, keeper.RunOnce(now())));
  }

  rdma::SimNetwork network;
  Coordinator coordinator;
  std::vector<std::string> lines;
  LeaseKeeper keeper{"coordinator:1", &coordinator, &network.clock(),
                     [this](const std::string& line) { lines.push_back(line); }};
};

TEST_CASE("a registration that takes four leases ends no lease, and is reported") {
  const bool planted = GENERATE(false, true);
  World w;
  client::failpoints().heartbeats_need_owner = planted;
  {
    const CurrentCall::Scope scope(w.keeper.current_call(), "registering memory", 4096);
    w.RunFor(4 * kLease);
  }
  CHECK(w.coordinator.ended() == planted);
  REQUIRE(w.lines.size() >= 2);  // after 2 s, after 4 s, ...
  REQUIRE(w.lines.size() <= 3);
  CHECK_THAT(w.lines[0], Catch::Matchers::Contains("registering memory (4096 bytes)"));
  w.RunFor(4 * kLease);
  CHECK(w.lines.size() <= 3);
}

TEST_CASE("a session that renews the lease sends no other heartbeat") {
  World w;
  for (int i = 0; i < 16; ++i) {
    w.keeper.Renewed(w.now());
    w.RunFor(kLease / 4);
  }
  CHECK(w.coordinator.heartbeats == 0);
  w.keeper.Stop();
  w.RunFor(4 * kLease);
  CHECK(w.coordinator.heartbeats == 0);
}

TEST_CASE("short calls are not reported, however many") {
  World w;
  for (int i = 0; i < 100; ++i) {
    const CurrentCall::Scope scope(w.keeper.current_call(), "exposing memory", 1);
    w.RunFor(100 * kMilli);
  }
  CHECK(w.lines.empty());
}

}  // namespace lease_test
}  // namespace verbena::test
