// A coordinator on a clock the test owns, called as if calls returned.
#ifndef VERBENA_TESTS_SERVER_COORDINATOR_FIXTURE_H_
#define VERBENA_TESTS_SERVER_COORDINATOR_FIXTURE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "proto/control/cluster_history.h"
#include "proto/protocol_version.h"
#include "server/coordinator/coordinator.h"

namespace verbena::server {

inline constexpr int64_t kLeaseMs = 5000;

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_; }
  void AdvanceMs(int64_t ms) { AdvanceTo(now_ + ms * 1000000); }
  // Machines take their turns on the way, but not the one at the end.
  void AdvanceTo(int64_t now) {
    int64_t turn = 0;
    while (next_turn_ && (turn = std::max(next_turn_(), now_ + 1)) < now) {
      now_ = turn;
      run_();
    }
    now_ = std::max(now_, now);
  }
  // Nobody takes a turn: the process is stopped, or in a call that blocks.
  void StallMs(int64_t ms) { now_ += ms * 1000000; }
  void Drive(std::function<int64_t()> next_turn, std::function<void()> run) {
    next_turn_ = std::move(next_turn);
    run_ = std::move(run);
  }

 private:
  std::function<int64_t()> next_turn_;
  std::function<void()> run_;
  int64_t now_ = 1000000000;
};

// A MemoryStore whose disk can be full or slow.
class FaultyStore final : public Store {
 public:
  absl::StatusOr<CoordinatorState> Load() override { return inner_.Load(); }
  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override {
    if (slow_ms > 0) clock->StallMs(slow_ms);
    if (full) return absl::UnavailableError("the disk is full");
    ++saves;
    return inner_.SaveAll(state, changes);
  }
  bool full = false;
  int64_t slow_ms = 0;  // how long each SaveAll() takes, by *clock
  ManualClock* clock = nullptr;
  int saves = 0;

 private:
  MemoryStore inner_;
};

// The answer of a call; empty while it waits (GetView).
template <typename Response>
using Answer = std::shared_ptr<std::optional<absl::StatusOr<Response>>>;

// The view without its entries.
inline v1::ClusterView SettingsOf(v1::ClusterView view) {
  view.clear_servers();
  view.clear_partitions();
  view.clear_tables();
  view.clear_jobs();
  view.clear_terms();
  return view;
}

class TestCoordinator {
 public:
  explicit TestCoordinator(CoordinatorOptions options = {}, Store* store = nullptr,
                           const std::string& cluster = "test")
      : options_(std::move(options)), store_(store != nullptr ? store : &memory_) {
    options_.cluster_id = cluster;
    options_.random = [this] { return random_(); };
    Restart();
    clock.Drive([this] { return coordinator_->NextTimerNanos(); },
                [this] { coordinator_->RunOnce(); });
  }
  TestCoordinator(const TestCoordinator&) = delete;  // its clock runs it

  // As a killed and restarted process: only the store survives. Its servers are heard.
  void Restart() {
    RestartUnheard();
    for (const v1::Server& server : view().servers()) {
      if (server.state() != v1::Server::ALIVE) continue;
      REQUIRE(Heartbeat(server.incarnation(), &view(), true).ok());
    }
  }
  void RestartUnheard() {
    coordinator_.reset();
    auto created = Coordinator::Create(options_, &clock, store_);
    REQUIRE(created.ok());
    coordinator_ = *std::move(created);
  }

  CoordinatorOptions& options() { return options_; }  // of the next Restart()

  template <typename Response, typename Request>
  Answer<Response> Start(void (Coordinator::*method)(const Request&, Coordinator::Reply<Response>),
                         const Request& request) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<Response>>>();
    (coordinator_.get()->*method)(request, [answer](absl::StatusOr<Response> response) {
      REQUIRE(!answer->has_value());
      answer->emplace(std::move(response));
    });
    return answer;
  }
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(void (Coordinator::*method)(const Request&,
                                                            Coordinator::Reply<Response>),
                                const Request& request) {
    const Answer<Response> answer = Start(method, request);
    REQUIRE(answer->has_value());
    return **answer;
  }

  std::string NewId() {
    std::string id(16, '\0');
    const uint64_t number = ++ids_;
    for (int i = 0; i < 8; ++i) id[i] = static_cast<char>(number >> (8 * i));
    return id;
  }

  v1::JoinServerRequest ServerRequest(const std::string& name, uint32_t shards = 1,
                                      const std::string& address = "") {
    v1::JoinServerRequest request;
    request.set_request_id(NewId());
    request.set_name(name);
    request.set_address(address.empty() ? name + ":7000" : address);
    request.set_shards(shards);
    // Of the version in force, which stays.
    SetProtocols({ProtocolInForce(view()), ProtocolInForce(view())}, request.mutable_protocol());
    return request;
  }
  uint64_t JoinServer(const std::string& name, uint32_t shards = 1, const std::string& zone = "") {
    v1::JoinServerRequest request = ServerRequest(name, shards);
    request.set_zone(zone);
    auto response = Call(&Coordinator::JoinServer, request);
    REQUIRE(response.ok());
    return response->incarnation();
  }

  v1::JoinWorkerRequest WorkerRequest(const std::string& job, uint32_t expected, int rank = -1,
                                      bool observer = false) {
    v1::JoinWorkerRequest request;
    request.set_request_id(NewId());
    request.set_job(job);
    request.set_expected_workers(expected);
    request.set_rank(rank);
    request.set_observer(observer);
    return request;
  }
  absl::StatusOr<v1::JoinWorkerResponse> JoinWorker(const std::string& job, uint32_t expected,
                                                    int rank = -1, bool observer = false) {
    return Call(&Coordinator::JoinWorker, WorkerRequest(job, expected, rank, observer));
  }

  // `view`: the view that the member has seen; null: not given.
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(uint64_t incarnation,
                                                  const v1::ClusterView* view = nullptr,
                                                  bool server = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    if (view != nullptr) *request.mutable_seen() = SeenOf(*view);
    request.set_server(server);
    return Call(&Coordinator::Heartbeat, request);
  }
  absl::Status Leave(uint64_t incarnation) {
    v1::LeaveRequest request;
    request.set_request_id(NewId());
    request.set_incarnation(incarnation);
    return Call(&Coordinator::Leave, request).status();
  }

  static v1::TableSpec Spec(const std::string& name, uint64_t elements,
                            v1::Consistency consistency = v1::CONSISTENCY_SYNC,
                            const std::string& job = "job") {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_job(job);
    spec.add_shape(elements);
    spec.set_consistency(consistency);
    spec.set_chunk_bytes(256);  // 64 elements
    spec.mutable_optimizer()->set_rate(0.1);
    return spec;
  }
  absl::StatusOr<v1::Table> CreateTable(const v1::TableSpec& spec) {
    v1::CreateTableRequest request;
    request.set_request_id(NewId());
    *request.mutable_spec() = spec;
    auto response = Call(&Coordinator::CreateTable, request);
    if (!response.ok()) return response.status();
    return response->table();
  }
  absl::Status DropTable(const std::string& name) {
    v1::DropTableRequest request;
    request.set_request_id(NewId());
    request.set_name(name);
    return Call(&Coordinator::DropTable, request).status();
  }
  absl::StatusOr<v1::RemoveServerResponse> RemoveServer(const std::string& name) {
    v1::RemoveServerRequest request;
    request.set_request_id(NewId());
    request.set_name(name);
    return Call(&Coordinator::RemoveServer, request);
  }
  absl::StatusOr<v1::ResetTableResponse> ResetTable(const std::string& name,
                                                    const std::vector<uint32_t>& partitions = {}) {
    v1::ResetTableRequest request;
    request.set_request_id(NewId());
    request.set_name(name);
    request.mutable_partitions()->Add(partitions.begin(), partitions.end());
    return Call(&Coordinator::ResetTable, request);
  }

  using Kind = v1::ConfigurationChange::Kind;
  // A change of the configuration that the partition has now.
  v1::ConfigurationChange Change(Kind kind, uint32_t partition, uint64_t server = 0) const {
    v1::ConfigurationChange change;
    change.set_kind(kind);
    change.set_partition(partition);
    change.set_server(server);
    if (partition < static_cast<uint32_t>(view().partitions_size())) {
      change.set_configuration(view().partitions(static_cast<int>(partition)).configuration());
    }
    return change;
  }
  // With a ticket of this moment.
  absl::StatusOr<v1::ReconfigureResponse> Reconfigure(
      uint64_t incarnation, const std::vector<v1::ConfigurationChange>& changes) {
    const auto asked = Reconfigure(incarnation, {}, {});
    return asked.ok() ? Reconfigure(incarnation, changes, asked->ticket()) : asked;
  }
  absl::StatusOr<v1::ReconfigureResponse> Reconfigure(
      uint64_t incarnation, const std::vector<v1::ConfigurationChange>& changes,
      const v1::ReconfigureTicket& ticket) {
    v1::ReconfigureRequest request;
    request.set_request_id(NewId());
    request.set_incarnation(incarnation);
    request.mutable_changes()->Add(changes.begin(), changes.end());
    *request.mutable_ticket() = ticket;
    return Call(&Coordinator::Reconfigure, request);
  }
  const v1::Partition& Partition(uint32_t id) const {
    return view().partitions(static_cast<int>(id));
  }

  Answer<v1::GetViewResponse> Poll(uint64_t known, uint32_t wait_ms) {
    v1::GetViewRequest request;
    request.set_known_revision(known);
    request.set_wait_ms(wait_ms);
    return Start(&Coordinator::GetView, request);
  }

  const v1::ClusterView& view() const { return coordinator_->view(); }
  const v1::Server& Server(const std::string& name) const {
    for (const v1::Server& server : view().servers()) {
      if (server.name() == name) return server;
    }
    FAIL("no server " << name);
    return view().servers(0);
  }
  const v1::Job& Job(const std::string& name) const {
    for (const v1::Job& job : view().jobs()) {
      if (job.name() == name) return job;
    }
    FAIL("no job " << name);
    return view().jobs(0);
  }
  Coordinator& operator*() { return *coordinator_; }
  Coordinator* operator->() { return coordinator_.get(); }

  ManualClock clock;

 private:
  CoordinatorOptions options_;
  MemoryStore memory_;
  Store* store_;
  std::unique_ptr<Coordinator> coordinator_;
  uint64_t ids_ = 0;
  std::mt19937_64 random_{1};
};

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
#define REQUIRE_STATUS(status_expression, wanted_code, part)                           \
  do {                                                                                 \
    const absl::Status checked_status = (status_expression);                           \
    INFO(checked_status.ToString());                                                   \
    REQUIRE(checked_status.code() == absl::StatusCode::wanted_code);                   \
    REQUIRE(::verbena::server::Contains(std::string(checked_status.message()), part)); \
  } while (false)

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_COORDINATOR_FIXTURE_H_
