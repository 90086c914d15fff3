// Several rails of a shard: which endpoint a lane is granted on, and which lane ends which.
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

struct Rails {
  explicit Rails(uint32_t max_lanes = 4096, uint64_t workers = 1) : network(1, rdma::SimFaults()) {
    ShardExecutorOptions options;
    options.max_lanes = max_lanes;
    options.seed = 1;
    options.slab_bytes = 1 << 20;
    std::vector<ShardExecutor::Transport> transports;
    for (uint32_t rail = 0; rail < 2; ++rail) {
      transports.push_back({network.NewEndpoint("server"), "here", rail});
    }
    auto created = ShardExecutor::Create(options, &network.clock(), std::move(transports));
    REQUIRE(created.ok());
    shard = *std::move(created);
    auto view = std::make_shared<v1::ClusterView>();
    view->set_cluster_id("test");
    view->set_revision(1);
    v1::Job* job = view->add_jobs();
    job->set_name("job");
    for (uint64_t i = 0; i < workers; ++i) job->add_members()->set_incarnation(100 + i);
    shard->SetIncarnation(kServer);
    shard->ApplyView(view);
  }

  absl::StatusOr<v1::OpenLaneResponse> Ask(uint32_t rail, uint64_t worker = 100) {
    v1::OpenLaneRequest request;
    request.set_incarnation(worker);
    request.set_server_incarnation(kServer);
    request.set_oldest_protocol(kOldestProtocolVersion);
    request.set_newest_protocol(kProtocolVersion);
    request.set_revision(1);
    request.set_rail(rail);
    v1::TransportOffer* offer = request.add_offers();
    offer->set_transport("sim");
    offer->set_host("here");
    return shard->OpenLane(request);
  }
  TestWorker& Open(uint32_t rail) {
    auto granted = Ask(rail);
    REQUIRE(granted.ok());
    TestWorker& worker = *ends.emplace_back(std::make_unique<TestWorker>(&network, "worker", 100));
    worker.Open(*granted);
    Until([&] { return worker.open(); });
    REQUIRE(worker.open());
    return worker;
  }
  void Until(const std::function<bool()>& condition) {
    const int64_t end = network.clock().NowNanos() + 2'000'000'000;
    while (!condition() && network.clock().NowNanos() < end) {
      shard->RunOnce();
      for (const auto& worker : ends) worker->Pump();
      network.Advance(network.clock().NowNanos() + 10'000);
    }
  }

  rdma::SimNetwork network;
  std::unique_ptr<ShardExecutor> shard;
  std::vector<std::unique_ptr<TestWorker>> ends;
};

TEST_CASE("a lane is granted on the requested rail, and the answer has the number of rails") {
  Rails rails;
  const auto first = rails.Ask(0), second = rails.Ask(1);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->rails() == 2);
  CHECK(second->rails() == 2);
  CHECK(first->address() != second->address());
  const absl::Status third = rails.Ask(2).status();
  CHECK(absl::IsInvalidArgument(third));
  CHECK_THAT(std::string(third.message()), Contains("rail 2") && Contains("allowed: 0 to 1"));
}

TEST_CASE("regression: lanes on other rails leave one on rail 0 for each worker") {
  Rails rails(/*max_lanes=*/5, /*workers=*/3);
  REQUIRE(rails.Ask(0, 100).ok());
  REQUIRE(rails.Ask(1, 100).ok());
  REQUIRE(rails.Ask(1, 101).ok());
  const absl::Status refused = rails.Ask(1, 102).status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(refused.message()), Contains("rail 1") && Contains("rail 0 of 2"));
  CHECK(rails.Ask(0, 101).ok());
  CHECK(rails.Ask(0, 102).ok());
}

TEST_CASE("a worker's next lane ends the one before on its rail, and no other") {
  Rails rails;
  TestWorker& first = rails.Open(0);
  TestWorker& second = rails.Open(1);
  CHECK(first.open());
  std::vector<v1::LaneStatistics> lanes = rails.shard->Snapshot().lanes;
  REQUIRE(lanes.size() == 2);
  CHECK(lanes[0].rail() + lanes[1].rail() == 1);
  TestWorker& again = rails.Open(1);
  rails.Until([&] { return second.dead(); });
  CHECK(second.dead());
  CHECK(first.open());
  CHECK(again.open());
  CHECK(rails.shard->Snapshot().lanes.size() == 2);
}

TEST_CASE("a transport of which one rail cannot listen is missing as a whole") {
  rdma::SimNetwork network(1, rdma::SimFaults());
  const uint32_t deaf = GENERATE(0u, 1u);
  std::vector<ShardExecutor::Transport> transports;
  transports.push_back({network.NewEndpoint("server"), "", 0});
  for (uint32_t rail = 0; rail < 2; ++rail) {
    auto endpoint = std::make_unique<rdma::ForwardingEndpoint>(network.NewEndpoint("server"));
    endpoint->name = "verbs";
    if (rail == deaf) endpoint->listen_status = absl::UnavailableError("no port");
    transports.push_back({std::move(endpoint), "", rail});
  }
  ShardExecutorOptions options;
  options.optional_transports = true;
  auto shard = ShardExecutor::Create(options, &network.clock(), std::move(transports));
  REQUIRE(shard.ok());
  const ShardSnapshot snapshot = (*shard)->Snapshot();
  REQUIRE(snapshot.missing.size() == 1);
  CHECK(snapshot.missing[0].transport == "verbs");
  (*shard)->SetIncarnation(kServer);
  auto view = std::make_shared<v1::ClusterView>();
  view->set_revision(1);
  view->add_jobs()->add_members()->set_incarnation(100);
  (*shard)->ApplyView(view);
  v1::OpenLaneRequest request;
  request.set_incarnation(100);
  request.set_server_incarnation(kServer);
  request.set_oldest_protocol(kOldestProtocolVersion);
  request.set_newest_protocol(kProtocolVersion);
  request.set_revision(1);
  request.add_offers()->set_transport("verbs");
  const absl::Status refused = (*shard)->OpenLane(request).status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()), Contains("cannot listen: no port"));
}

}  // namespace
}  // namespace verbena::server
