// Lanes of a client with transports verbs and ofi (auto) where RDMA connections are slow to set up:
// verbs over a device in memory (tests/rdma/fake_verbs), on virtual time.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/core/lane_set.h"
#include "client/core/session.h"
#include "proto/wire/record_check.h"
#include "rdma/lane/shard_lane.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "tests/client/fake_cluster.h"
#include "tests/rdma/fake_verbs/fake_verbs.h"

namespace verbena::test {
namespace {

constexpr uint64_t kServer = 10;
constexpr uint32_t kShards = 1000;

std::unique_ptr<rdma::Endpoint> NewVerbs() {
  auto endpoint = rdma::NewVerbsEndpoint({});
  INFO(endpoint.status());
  REQUIRE(endpoint.ok());
  return *std::move(endpoint);
}

// The shards' side of all lanes: grants the first request, and accepts connections.
class Shards {
 public:
  Shards() : endpoint_(NewVerbs()) {
    config_.small_slots = 4;
    config_.large_slots = 0;
    config_.operations = 4;
    address_ = endpoint_->Listen().value();
  }

  absl::StatusOr<v1::OpenLaneResponse> OpenLane(const v1::OpenLaneRequest& request) {
    if (request.offers(0).transport() != "verbs") {
      ++without_verbs;
      return absl::UnavailableError("only verbs is served");
    }
    rdma::ShardLane::Params params;
    params.lane = next_lane_++;
    params.generation = params.lane;
    params.incarnation = request.incarnation();
    params.config = config_;
    granted_[params.lane] = params;
    v1::OpenLaneResponse response;
    response.set_lane(params.lane);
    response.set_generation(params.generation);
    std::string token(16, '\0');
    std::memcpy(token.data(), &params.lane, sizeof(params.lane));
    response.set_token(token);
    response.set_protocol(kProtocolVersion);
    response.set_transport("verbs");
    response.set_address(address_);
    response.set_rails(1);
    response.set_small_slots(config_.small_slots);
    response.set_small_slot_bytes(config_.small_slot_bytes);
    response.set_large_slots(config_.large_slots);
    response.set_large_slot_bytes(config_.large_slot_bytes);
    response.set_operations(config_.operations);
    return response;
  }

  void RunOnce() {
    events_.resize(64);
    const size_t n = endpoint_->PollEvents(absl::MakeSpan(events_));
    for (size_t i = 0; i < n; ++i) {
      const auto lane = lanes_.find(events_[i].connection);
      if (events_[i].kind == rdma::ConnectionEvent::Kind::kRequest) {
        Accept(events_[i]);
      } else if (lane != lanes_.end()) {
        lane->second->OnEvent(events_[i]);
      }
    }
    completions_.resize(64);
    const size_t c = endpoint_->Poll(absl::MakeSpan(completions_));
    rdma::ShardLane::Arrival arrival;
    std::vector<uint64_t> written;
    for (size_t i = 0; i < c; ++i) {
      const auto lane = lanes_.find(completions_[i].connection);
      if (lane != lanes_.end()) lane->second->OnCompletion(completions_[i], &arrival, &written);
    }
    std::erase_if(lanes_, [](const auto& lane) {
      lane.second->RunOnce();
      return lane.second->state() == rdma::ShardLane::State::kDead;
    });
  }

  void CloseLane(const v1::CloseLaneRequest& request) { granted_.erase(request.lane()); }
  // Not given back: open lanes, and those that are being opened.
  size_t granted() const { return granted_.size(); }

  int without_verbs = 0;

 private:
  void Accept(const rdma::ConnectionEvent& event) {
    const auto hello = ParseHello(event.private_data);
    REQUIRE(hello.ok());
    uint32_t id = 0;
    std::memcpy(&id, hello->token, sizeof(id));
    if (granted_.count(id) == 0) return endpoint_->Reject(event.connection, "given back");
    auto lane = rdma::ShardLane::Accept(endpoint_.get(), event.connection, *hello, granted_.at(id));
    // Accept() fails for a client that has given up meanwhile.
    if (lane.ok()) lanes_[event.connection] = *std::move(lane);
  }

  std::unique_ptr<rdma::Endpoint> endpoint_;
  rdma::LaneConfig config_;
  std::string address_;
  uint32_t next_lane_ = 1;
  std::map<uint32_t, rdma::ShardLane::Params> granted_;
  std::map<rdma::ConnectionId, std::unique_ptr<rdma::ShardLane>> lanes_;
  std::vector<rdma::ConnectionEvent> events_;
  std::vector<rdma::Completion> completions_;
};

// A client that wants a lane to each of 1,000 shards.
class Lanes final : public client::LaneListener {
 public:
  Lanes() {
    v1::Server* server = view_.add_servers();
    server->set_incarnation(kServer);
    server->set_address("server:1");
    server->set_shards(kShards);
    view_.set_cluster_id("fake");
    view_.set_revision(1);
    control_.Serve("JoinWorker",
                   [this](auto&, auto&, auto* response, int64_t) -> std::optional<absl::Status> {
                     auto* join = static_cast<v1::JoinWorkerResponse*>(response);
                     join->set_incarnation(100);
                     join->set_lease_ms(600'000);
                     *join->mutable_view() = view_;
                     return absl::OkStatus();
                   });
    control_.Serve("OpenLane",
                   [this](auto&, const std::string& bytes, auto* response,
                          int64_t) -> std::optional<absl::Status> {
                     v1::OpenLaneRequest request;
                     request.ParseFromString(bytes);
                     auto opened = shards.OpenLane(request);
                     if (opened.ok()) *static_cast<v1::OpenLaneResponse*>(response) = *opened;
                     return opened.status();
                   });
    control_.Serve(
        "CloseLane",
        [this](auto&, const std::string& bytes, auto*, int64_t) -> std::optional<absl::Status> {
          v1::CloseLaneRequest request;
          request.ParseFromString(bytes);
          shards.CloseLane(request);
          return absl::OkStatus();
        });
    session_.Join(clock_.NowNanos() + 10 * kSecond, [](absl::Status) {});
    control_.RunOnce();
    REQUIRE(session_.state() == client::Session::State::kJoined);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      lanes_.Want(lanes_.Get(kServer, shard)->rails[0]);
    }
  }

  // The server runs once in `turns` turns of the client.
  bool AllOpen(int turns = 1) {
    // Each turn lets a little time pass, in addition to the time of the events.
    for (int turn = 0; turn < 40'000 && open < kShards; ++turn) {
      fake_skip(kMilli);
      control_.RunOnce();
      session_.RunOnce(clock_.NowNanos());
      lanes_.RunTimers(clock_.NowNanos());
      lanes_.Poll();
      if (turn % turns == 0) shards.RunOnce();
    }
    return open == kShards;
  }

  void BeginTurn() override {}
  bool TurnIsFull() const override { return false; }
  void OnLaneOpen(client::Stream* /*stream*/) override { ++open; }
  void OnCredit(client::Stream* /*stream*/) override {}
  void OnAnswer(client::Stream* /*stream*/, uint64_t /*cookie*/, const Reply& /*reply*/) override {}
  void OnLaneDead(client::Stream* stream) override {
    ++dead;
    if (absl::IsAborted(stream->last_error)) return;  // for now, and at once
    ++timed_out;
    last_error = stream->last_error;
  }
  void OnLaneRefused(client::Stream* /*stream*/, const absl::Status& /*status*/) override {}

  uint32_t open = 0, dead = 0, timed_out = 0;
  absl::Status last_error;
  Shards shards;

 private:
  static void fake_skip(int64_t ns) { rdma::fake_verbs().skipped_ns += ns; }

  MonotonicClock clock_;
  Random random_{7};
  v1::ClusterView view_;
  FakeControl control_{&clock_};
  client::LeaseKeeper keeper_{"coordinator:1", &control_, &clock_, nullptr};
  client::Session session_{
      {"coordinator:1", "job", "w0", 1, 0, -1, false},    &control_, &clock_, &random_, &keeper_,
      {[](const ViewDifference&) {}, [](absl::Status) {}}};
  std::unique_ptr<rdma::Endpoint> verbs_ = NewVerbs();
  rdma::SimNetwork network_{7, {}};
  rdma::ForwardingEndpoint ofi_{network_.NewEndpoint("worker")};
  client::Registrar registrar_{&clock_, nullptr};
  client::LaneSet lanes_{{{verbs_.get(), ""}, {OfiNamed(), ""}},
                         {},
                         &session_,
                         &control_,
                         &clock_,
                         &random_,
                         keeper_.current_call(),
                         &registrar_,
                         this};
  rdma::Endpoint* OfiNamed() {
    ofi_.name = "ofi";
    return &ofi_;
  }
};

// Time passes by `skipped_ns` alone: a slow machine has the same timeouts as a fast one.
struct Device {
  Device() {
    rdma::ResetFakeVerbs();
    rdma::fake_verbs().stopped_at_ns = MonotonicClock().NowNanos();
  }
  ~Device() { rdma::ResetFakeVerbs(); }
};

TEST_CASE("a thousand lanes at 2 ms for each event and queue pair are all over verbs") {
  const Device device;
  rdma::fake_verbs().on_cm_event = [](rdma_cm_event_type) {
    rdma::fake_verbs().skipped_ns += 2 * kMilli;
  };
  rdma::fake_verbs().create_qp = [](const ibv_qp_init_attr&) {
    rdma::fake_verbs().skipped_ns += 2 * kMilli;
    return 0;
  };
  Lanes lanes;
  CHECK(lanes.AllOpen());
  INFO(lanes.last_error);
  // Each of the stages is within its timeout, though all of them together are not.
  CHECK(lanes.timed_out == 0);
  CHECK(lanes.shards.without_verbs == 0);
}

TEST_CASE("a thousand lanes of a server that needs twice the timeout stay on verbs") {
  const Device device;
  rdma::fake_verbs().on_cm_event = [](rdma_cm_event_type type) {
    rdma::fake_verbs().skipped_ns +=
        type == RDMA_CM_EVENT_CONNECT_REQUEST ? 14 * kMilli : kMilli / 10;
  };
  Lanes lanes;
  CHECK(lanes.AllOpen(/*turns=*/10));
  INFO(lanes.last_error);
  CHECK(lanes.timed_out > 0);  // which is not to be taken for a fault of verbs
  CHECK(lanes.shards.without_verbs == 0);
  CHECK(lanes.shards.granted() == kShards);  // grants that were not taken up are given back
}

}  // namespace
}  // namespace verbena::test
