// Selection of a lane's transport, its reason, and memory that a device does not register.
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

// A server with these transports; its incarnation and view make worker 100 a member.
class ChoiceFixture {
 public:
  void Add(const std::string& name, const std::string& host, const std::string& device = "") {
    auto endpoint = std::make_unique<rdma::ForwardingEndpoint>(network_.NewEndpoint("server"));
    endpoint->name = name;
    endpoint->device_name = device;
    endpoint->listen_status = listen_status;
    transports_.push_back({std::move(endpoint), host});
  }
  absl::Status Start() {
    auto created = ShardExecutor::Create(options, &network_.clock(), std::move(transports_));
    if (!created.ok()) return created.status();
    shard_ = *std::move(created);
    auto view = std::make_shared<v1::ClusterView>();
    view->set_cluster_id("test");
    view->set_revision(1);
    view->add_jobs()->add_members()->set_incarnation(100);
    shard_->SetIncarnation(kServer);
    shard_->ApplyView(view);
    return absl::OkStatus();
  }
  void Offer(const std::string& transport, const std::string& host) {
    v1::TransportOffer* offer = request_.add_offers();
    offer->set_transport(transport);
    offer->set_host(host);
  }
  void Missing(const std::string& transport, const std::string& reason) {
    v1::MissingTransport* missing = request_.add_missing();
    missing->set_transport(transport);
    missing->set_reason(reason);
  }
  absl::StatusOr<v1::OpenLaneResponse> Open() {
    if (absl::Status s = Start(); !s.ok()) return s;
    request_.set_incarnation(100);
    request_.set_server_incarnation(kServer);
    request_.set_oldest_protocol(kOldestProtocolVersion);
    request_.set_newest_protocol(kProtocolVersion);
    request_.set_revision(1);
    return shard_->OpenLane(request_);
  }
  ShardExecutor& shard() { return *shard_; }

  ShardExecutorOptions options;
  absl::Status listen_status;

 private:
  rdma::SimNetwork network_{1, {}};
  std::vector<ShardExecutor::Transport> transports_;
  std::unique_ptr<ShardExecutor> shard_;
  v1::OpenLaneRequest request_;
};

TEST_CASE("the best common transport is selected, with the reason against better ones") {
  ChoiceFixture fixture;
  std::string transport = "verbs", reason;
  SECTION("the same host") {
    fixture.Add("shm", "a");
    fixture.Add("verbs", "", "mlx5_0:1");
    fixture.Offer("verbs", "");
    fixture.Offer("shm", "a");
    transport = "shm";
    reason = "shm: same host";
  }
  SECTION("another host") {
    fixture.Add("shm", "a");
    fixture.Add("verbs", "", "mlx5_0:1");
    fixture.Offer("shm", "b");
    fixture.Offer("verbs", "");
    reason = "shm: other host; verbs: both have it";
  }
  SECTION("the worker has only the second") {
    fixture.Add("shm", "a");
    fixture.Add("verbs", "");
    fixture.Offer("verbs", "");
    fixture.Missing("shm", "only transport verbs was asked for");
    reason = "shm: not on the worker: only transport verbs was asked for; verbs: both have it";
  }
  SECTION("the server has only the second") {
    fixture.Add("verbs", "");
    fixture.options.missing = {{"shm", "no descriptors"}};
    fixture.Offer("shm", "a");
    fixture.Offer("verbs", "");
    reason = "shm: not on the server: no descriptors; verbs: both have it";
  }
  SECTION("neither has the first, for the same reason or another") {
    fixture.Add("verbs", "");
    const bool same = GENERATE(true, false);
    fixture.options.missing = {{"shm", "off"}};
    fixture.Offer("verbs", "");
    fixture.Missing("shm", same ? "off" : "broken");
    reason = same ? "shm: on neither side: off; verbs: both have it"
                  : "shm: on neither side: server: off, worker: broken; verbs: both have it";
  }
  SECTION("worse ones are not mentioned") {
    fixture.Add("shm", "a");
    fixture.options.missing = {{"verbs", "no RDMA device"}};
    fixture.Offer("shm", "a");
    fixture.Missing("verbs", "no RDMA device");
    transport = "shm";
    reason = "shm: same host";
  }
  const auto granted = fixture.Open();
  REQUIRE(granted.ok());
  CHECK(granted->transport() == transport);
  CHECK(granted->transport_reason() == reason);
  if (reason == "shm: other host; verbs: both have it") CHECK(granted->device() == "mlx5_0:1");
}

TEST_CASE("no common transport: the error has both sides' reasons") {
  ChoiceFixture fixture;
  fixture.Add("shm", "a");
  fixture.options.missing = {{"verbs", "no RDMA device: /dev/infiniband is empty"}};
  fixture.Offer("verbs", "");
  fixture.Missing("shm", "only transport verbs was asked for");
  const absl::Status status = fixture.Open().status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(status.message() ==
        "no common transport: this server has [shm], the worker offers [verbs]; "
        "shm: not on the worker: only transport verbs was asked for; "
        "verbs: not on the server: no RDMA device: /dev/infiniband is empty");
}

TEST_CASE("a worker's text in the reason is bounded and printable") {
  ChoiceFixture fixture;
  fixture.Add("verbs", "");
  fixture.Offer("verbs", "");
  fixture.Missing("shm", "line\nbreak " + std::string(100'000, 'x'));
  for (int i = 0; i < 1000; ++i) fixture.Missing("t" + std::to_string(i), "y");
  const auto granted = fixture.Open();
  REQUIRE(granted.ok());
  CHECK(granted->transport_reason().size() < 400);
  CHECK_THAT(granted->transport_reason(), Contains("line?break") && !Contains("t999"));
}

TEST_CASE("a transport that cannot listen") {
  ChoiceFixture fixture;
  fixture.Add("shm", "a");
  fixture.listen_status = absl::UnavailableError("address 10.0.0.1 is gone");
  fixture.Add("verbs", "");
  fixture.Offer("verbs", "");
  SECTION("ends the start when it was asked for") {
    const absl::Status status = fixture.Open().status();
    CHECK(absl::IsUnavailable(status));
    CHECK_THAT(std::string(status.message()), Contains("verbs") && Contains("10.0.0.1 is gone"));
  }
  SECTION("is missing, with the reason, where others will do") {
    fixture.options.optional_transports = true;
    CHECK_THAT(std::string(fixture.Open().status().message()),
               Contains("verbs: not on the server: cannot listen: address 10.0.0.1 is gone"));
    const ShardSnapshot snapshot = fixture.shard().Snapshot();
    REQUIRE(snapshot.missing.size() == 1);
    CHECK(snapshot.missing[0].transport == "verbs");
  }
}

TEST_CASE("a lane is described with its device, and its memory belongs to its job's domain") {
  ShardFixture fixture;
  fixture.endpoint().device_name = "mlx5_0:1";
  fixture.SetWorkers({100, 101});
  fixture.Connected("a", 100);
  const uint64_t domain = fixture.endpoint().last_domain;
  CHECK(domain != 0);
  CHECK(fixture.endpoint().allocations == 2);
  fixture.Connected("b", 101);
  CHECK(fixture.endpoint().last_domain == domain);
  const ShardSnapshot snapshot = fixture.shard().Snapshot();
  REQUIRE(snapshot.lanes.size() == 2);
  CHECK(snapshot.lanes[0].device() == "mlx5_0:1");
}

TEST_CASE("a pull whose memory the device does not take is refused, and its lane lives on") {
  std::vector<std::string> log;
  ShardExecutorOptions options;
  options.log = [&](const std::string& text) { log.push_back(text); };
  ShardFixture fixture(options);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  fixture.endpoint().register_status =
      absl::ResourceExhaustedError("RLIMIT_MEMLOCK is 65536 bytes");
  for (uint64_t cookie : {2, 3}) {
    REQUIRE(worker.Pull(0, cookie).ok());
    REQUIRE(fixture.Answered(worker, cookie));
    CHECK(worker.Answer(cookie)->status == ReplyStatus::kResourceExhausted);
  }
  CHECK(std::count_if(log.begin(), log.end(), [](const std::string& line) {
          return line.find("RLIMIT_MEMLOCK is 65536 bytes") != std::string::npos;
        }) == 1);
  fixture.endpoint().register_status = absl::OkStatus();
  REQUIRE(worker.Pull(0, 4).ok());
  REQUIRE(fixture.Answered(worker, 4));
  CHECK(worker.Answer(4)->status == ReplyStatus::kOk);
  const int registrations = fixture.endpoint().registrations;
  REQUIRE(worker.Pull(0, 5).ok());
  REQUIRE(fixture.Answered(worker, 5));
  CHECK(fixture.endpoint().registrations == registrations);
  CHECK(fixture.counters().lanes_lost == 0);
  // Nothing stays pinned: an apply finds its chunk free.
  CHECK(fixture.counters().engine.pulls >= 2);
}

}  // namespace
}  // namespace verbena::server
