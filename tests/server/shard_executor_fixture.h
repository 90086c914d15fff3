// One shard executor and its workers in one thread: over the sim transport on virtual time, or,
// with VERBENA_TEST_TRANSPORT=verbs, over a real RDMA device. Then the clock follows real time but
// for Pass(), and only the tests with the tag [verbs] apply.
#ifndef VERBENA_TESTS_SERVER_SHARD_EXECUTOR_FIXTURE_H_
#define VERBENA_TESTS_SERVER_SHARD_EXECUTOR_FIXTURE_H_

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/table_spec.h"
#include "proto/wire/bags.h"
#include "rdma/base/clock.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/sim/sim_network.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "server/executor/shard_executor.h"
#include "tests/rdma/forwarding_endpoint.h"

namespace verbena::server {

inline constexpr uint64_t kServer = 7;  // the server's incarnation
inline constexpr uint32_t kTable = 1;
inline constexpr uint32_t kElements = 16;
inline constexpr uint32_t kBytes = kElements * sizeof(float);
inline constexpr uint32_t kRowTable = 2;       // an embedding table, beside the other
inline constexpr uint32_t kOtherRowTable = 3;  // the same of another job, if there is one
inline constexpr uint32_t kDim = 4;

inline bool OverVerbs() {
  const char* transport = std::getenv("VERBENA_TEST_TRANSPORT");
  return transport != nullptr && std::string(transport) == "verbs";
}
inline std::string TransportName() { return OverVerbs() ? "verbs" : "sim"; }

inline std::unique_ptr<rdma::Endpoint> NewTestEndpoint(rdma::SimNetwork* network,
                                                       const std::string& host) {
  if (!OverVerbs()) return network->NewEndpoint(host);
  rdma::VerbsOptions options;
  if (const char* device = std::getenv("VERBENA_VERBS_DEVICE")) options.device = device;
  auto endpoint = rdma::NewVerbsEndpoint(options);
  INFO(endpoint.status());
  REQUIRE(endpoint.ok());
  return *std::move(endpoint);
}

// A worker's end: an endpoint, one lane, its answers.
class TestWorker {
 public:
  TestWorker(rdma::SimNetwork* network, const std::string& host, uint64_t incarnation)
      : incarnation_(incarnation), endpoint_(NewTestEndpoint(network, host)) {
    auto block = rdma::MemoryBlock::Allocate(4096, "test-worker");
    REQUIRE(block.ok());
    block_ = *std::move(block);
  }

  void Open(const v1::OpenLaneResponse& grant) {
    rdma::LaneTicket ticket;
    ticket.lane = grant.lane();
    ticket.generation = grant.generation();
    ticket.incarnation = incarnation_;
    REQUIRE(grant.token().size() == sizeof(ticket.token));
    std::memcpy(ticket.token, grant.token().data(), sizeof(ticket.token));
    ticket.address = grant.address();
    ticket.config.small_slots = grant.small_slots();
    ticket.config.small_slot_bytes = grant.small_slot_bytes();
    ticket.config.large_slots = grant.large_slots();
    ticket.config.large_slot_bytes = grant.large_slot_bytes();
    ticket.config.operations = grant.operations();
    ticket.protocol = grant.protocol();
    auto lane = rdma::WorkerLane::Open(endpoint_.get(), ticket);
    REQUIRE(lane.ok());
    lane_ = *std::move(lane);
  }

  void Pump() {
    rdma::ConnectionEvent event;
    while (endpoint_->PollEvents({&event, 1}) == 1) {
      if (watcher_ != nullptr && event.connection == watched_) *watcher_ = event;
      if (lane_ != nullptr && event.connection == lane_->connection()) lane_->OnEvent(event);
    }
    rdma::Completion completion;
    while (endpoint_->Poll({&completion, 1}) == 1) {
      if (lane_ != nullptr && completion.connection == lane_->connection()) {
        lane_->OnCompletion(completion, &answers_);
      }
    }
    if (lane_ != nullptr) lane_->RunOnce();
  }

  // For records sent from now on.
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  float* values() { return reinterpret_cast<float*>(block_->data()); }
  float* pulled() { return reinterpret_cast<float*>(block_->data() + 2048); }

  absl::Status Push(uint64_t sequence, uint64_t cookie, uint32_t elements = kElements) {
    rdma::WorkerLane::Request request = Base(RecordType::kPush, sequence, cookie);
    group_.count = elements;
    request.payload = {block_->data(), elements * 4, block_.get()};
    return lane_->Post(request);
  }
  absl::Status Pull(uint64_t min_version, uint64_t cookie) {
    rdma::WorkerLane::Request request = Base(RecordType::kPull, 0, cookie);
    auto remote = lane_->Expose(block_);
    if (!remote.ok()) return remote.status();
    request.header.min_version = min_version;
    request.header.destination = remote->address + 2048;
    request.header.destination_key = remote->key;
    return lane_->Post(request);
  }
  absl::Status EndStep(uint64_t step, uint32_t pushed, uint64_t cookie) {
    rdma::WorkerLane::Request request = Base(RecordType::kEndStep, step, cookie);
    group_.count = pushed;
    return lane_->Post(request);
  }
  absl::Status Await(uint64_t version, uint64_t cookie) {
    rdma::WorkerLane::Request request = Base(RecordType::kAwait, 0, cookie);
    request.header.min_version = version;
    return lane_->Post(request);
  }

  // `keys` ascend; row i is at values() + i * kDim.
  absl::Status PushRows(uint64_t sequence, const std::vector<uint64_t>& keys, uint64_t cookie,
                        uint32_t table = kRowTable) {
    rdma::WorkerLane::Request request = Rows(RecordType::kPushRows, sequence, keys, cookie);
    request.header.table = table;
    const uint64_t bytes = KeyBytes(keys.size());
    std::memcpy(packed() + bytes, values(), keys.size() * kDim * sizeof(float));
    request.payload.bytes = static_cast<uint32_t>(bytes + keys.size() * kDim * sizeof(float));
    return lane_->Post(request);
  }
  absl::Status Lookup(const std::vector<uint64_t>& keys, uint64_t min_version, uint64_t cookie) {
    rdma::WorkerLane::Request request = Rows(RecordType::kLookup, 0, keys, cookie);
    request.payload.bytes = static_cast<uint32_t>(keys.size() * sizeof(uint64_t));
    request.header.min_version = min_version;
    const absl::Status status = SetDestination(&request);
    return status.ok() ? lane_->Post(request) : status;
  }
  // `keys` do not descend; key i is in bag uses[i].bag of `bags`.
  absl::Status LookupBags(const std::vector<uint64_t>& keys, const std::vector<BagUse>& uses,
                          uint32_t bags, uint64_t min_version, uint64_t cookie) {
    rdma::WorkerLane::Request request = Rows(RecordType::kLookupBags, 0, keys, cookie);
    std::memcpy(packed() + KeyBytes(keys.size()), uses.data(), uses.size() * sizeof(BagUse));
    request.payload.bytes = static_cast<uint32_t>(BagPayloadBytes(keys.size()));
    request.header.bags = bags;
    request.header.min_version = min_version;
    const absl::Status status = SetDestination(&request);
    return status.ok() ? lane_->Post(request) : status;
  }
  absl::Status Prefetch(const std::vector<uint64_t>& keys, uint64_t cookie) {
    rdma::WorkerLane::Request request = Rows(RecordType::kPrefetch, 0, keys, cookie);
    request.payload.bytes = static_cast<uint32_t>(keys.size() * sizeof(uint64_t));
    return lane_->Post(request);
  }
  absl::Status Scan(uint64_t cursor, uint32_t count, uint64_t cookie) {
    rdma::WorkerLane::Request request = Rows(RecordType::kScan, cursor, {}, cookie);
    group_.count = count;
    request.payload = {};
    const absl::Status status = SetDestination(&request);
    return status.ok() ? lane_->Post(request) : status;
  }
  absl::Status EndStepOfRows(uint64_t step, uint32_t pushed, uint64_t cookie) {
    rdma::WorkerLane::Request request = Base(RecordType::kEndStep, step, cookie);
    request.header.table = kRowTable;
    group_.count = pushed;
    return lane_->Post(request);
  }

  // The reply to `cookie`; null while there is none.
  const Reply* Answer(uint64_t cookie) const {
    for (const auto& answer : answers_) {
      if (answer.cookie == cookie) return &answer.reply;
    }
    return nullptr;
  }
  rdma::WorkerLane& lane() { return *lane_; }
  bool open() const { return lane_ != nullptr && lane_->state() == rdma::WorkerLane::State::kOpen; }
  bool dead() const { return lane_->state() == rdma::WorkerLane::State::kDead; }
  uint64_t incarnation() const { return incarnation_; }
  rdma::Endpoint& endpoint() { return *endpoint_; }
  // For a connection that is no lane: its last event goes there.
  void Watch(rdma::ConnectionId connection, rdma::ConnectionEvent* event) {
    watched_ = connection;
    watcher_ = event;
  }

 private:
  std::byte* packed() { return block_->data() + 1024; }
  absl::Status SetDestination(rdma::WorkerLane::Request* request) {
    auto remote = lane_->Expose(block_);
    if (!remote.ok()) return remote.status();
    request->header.destination = remote->address + 2048;
    request->header.destination_key = remote->key;
    return absl::OkStatus();
  }
  rdma::WorkerLane::Request Rows(RecordType type, uint64_t sequence,
                                 const std::vector<uint64_t>& keys, uint64_t cookie) {
    rdma::WorkerLane::Request request = Base(type, sequence, cookie);
    request.header.table = kRowTable;
    request.header.dtype = ElementType::kF32;
    group_.count = static_cast<uint32_t>(keys.size());
    if (!keys.empty()) std::memcpy(packed(), keys.data(), keys.size() * sizeof(uint64_t));
    request.payload = {packed(), 0, block_.get()};
    return request;
  }
  rdma::WorkerLane::Request Base(RecordType type, uint64_t sequence, uint64_t cookie) {
    group_ = {.partition = 0,
              .index = 0,
              .epoch = epoch_,
              .sequence = sequence,
              .count = 0,
              .admission = 0};
    rdma::WorkerLane::Request request;
    request.header.type = type;
    request.header.table = kTable;
    request.header.dtype = type == RecordType::kPush || type == RecordType::kPull
                               ? ElementType::kF32
                               : ElementType::kNone;
    request.groups = absl::MakeConstSpan(&group_, 1);
    request.cookie = cookie;
    return request;
  }

  uint64_t incarnation_;
  std::unique_ptr<rdma::Endpoint> endpoint_;
  std::shared_ptr<rdma::MemoryBlock> block_;
  std::unique_ptr<rdma::WorkerLane> lane_;
  Group group_ = {};
  uint64_t epoch_ = 1;
  std::vector<rdma::WorkerLane::Answer> answers_;
  rdma::ConnectionId watched_ = rdma::ConnectionId::kNone;
  rdma::ConnectionEvent* watcher_ = nullptr;
};

inline constexpr uint64_t kTermId = 11;

class ShardFixture {
 public:
  explicit ShardFixture(ShardExecutorOptions options = {},
                        v1::Consistency consistency = v1::CONSISTENCY_ASYNC)
      : network_(1, rdma::SimFaults()), consistency_(consistency) {
    options.seed = 1;
    options.slab_bytes = 1 << 20;
    std::vector<ShardExecutor::Transport> transports;
    auto endpoint =
        std::make_unique<rdma::ForwardingEndpoint>(NewTestEndpoint(&network_, "server"));
    endpoint->name = TransportName();
    endpoint_ = endpoint.get();
    transports.push_back({std::move(endpoint), "here"});
    auto created = ShardExecutor::Create(options, &network_.clock(), std::move(transports));
    REQUIRE(created.ok());
    shard_ = *std::move(created);
  }

  // The cluster as of the next revision: this server with one table, and these workers.
  void SetWorkers(const std::vector<uint64_t>& workers) {
    workers_ = workers;
    auto view = std::make_shared<v1::ClusterView>();
    view->set_cluster_id("test");
    view->set_revision(++revision_);
    view->set_term(1);
    v1::Term* term = view->add_terms();
    term->set_number(1);
    term->set_id(kTermId);
    term->set_revision(1);
    v1::Job* job = view->add_jobs();
    job->set_name("job");
    job->set_generation(1);
    job->set_expected_workers(expected_workers_);
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      v1::Worker* worker = job->add_members();
      worker->set_incarnation(workers[rank]);
      worker->set_rank(static_cast<int32_t>(rank));
    }
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.set_job("job");
    spec.add_shape(kElements);
    spec.set_consistency(consistency_);
    spec.set_reduction(v1::REDUCTION_SUM);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    spec.set_chunk_bytes(chunk_bytes_);
    auto normalised = NormalizeTableSpec(spec);
    REQUIRE(normalised.ok());
    v1::Table* table = view->add_tables();
    table->set_id(kTable);
    *table->mutable_spec() = *normalised;
    spec.set_name("rows");
    spec.clear_shape();
    spec.set_dim(kDim);
    spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
    spec.mutable_initializer()->set_b(1);
    *spec.mutable_eviction() = eviction_;
    normalised = NormalizeTableSpec(spec);
    REQUIRE(normalised.ok());
    v1::Table* rows = view->add_tables();
    rows->set_id(kRowTable);
    *rows->mutable_spec() = *normalised;
    *job->mutable_limits() = limits_;
    if (!other_workers_.empty()) AddOtherJob(*normalised, view.get());
    v1::Partition* partition = view->add_partitions();
    partition->set_epoch(1);
    partition->set_primary(kServer);
    shard_->SetIncarnation(kServer);
    shard_->ApplyView(view);
    REQUIRE(shard_->view_status().ok());
  }
  void set_expected_workers(uint32_t expected) { expected_workers_ = expected; }
  void set_chunk_bytes(uint32_t bytes) { chunk_bytes_ = bytes; }
  // The limits of SetWorkers()'s job.
  v1::JobLimits* mutable_limits() { return &limits_; }
  // The workers of a second job, "other".
  void set_other_workers(const std::vector<uint64_t>& workers) { other_workers_ = workers; }

  v1::OpenLaneRequest Request(uint64_t worker) const {
    v1::OpenLaneRequest request;
    request.set_incarnation(worker);
    request.set_server_incarnation(kServer);
    request.set_oldest_protocol(kOldestProtocolVersion);
    request.set_newest_protocol(kProtocolVersion);
    request.set_revision(revision_);
    v1::TransportOffer* offer = request.add_offers();
    offer->set_transport(TransportName());
    offer->set_host("here");
    return request;
  }
  v1::OpenLaneResponse Grant(uint64_t worker) {
    auto granted = shard_->OpenLane(Request(worker));
    REQUIRE(granted.ok());
    return *std::move(granted);
  }

  TestWorker& NewWorker(const std::string& host, uint64_t incarnation) {
    test_workers_.push_back(std::make_unique<TestWorker>(&network_, host, incarnation));
    return *test_workers_.back();
  }
  // A worker with an open lane.
  TestWorker& Connected(const std::string& host, uint64_t incarnation) {
    TestWorker& worker = NewWorker(host, incarnation);
    worker.Open(Grant(incarnation));
    REQUIRE(Until([&] { return worker.open(); }));
    return worker;
  }

  // Runs everything until `condition` holds; false when `limit` of virtual time is over first.
  bool Until(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(2)) {
    if (OverVerbs()) return UntilReally(condition);
    const int64_t end = network_.clock().NowNanos() + absl::ToInt64Nanoseconds(limit);
    for (;;) {
      Run();
      if (condition()) return true;
      if (network_.clock().NowNanos() >= end) return false;
      network_.Advance(
          std::min(end, std::max(shard_->NextTimerNanos(), network_.clock().NowNanos() + 1000)));
    }
  }
  bool Answered(const TestWorker& worker, uint64_t cookie) {
    return Until([&] { return worker.Answer(cookie) != nullptr; });
  }
  // The eviction of the table of rows; before SetWorkers().
  void SetEviction(const v1::Eviction& eviction) { eviction_ = eviction; }

  void Pass(absl::Duration time) {
    if (OverVerbs()) {
      network_.Advance(network_.clock().NowNanos() + absl::ToInt64Nanoseconds(time));
      return Run();
    }
    Until([] { return false; }, time);
  }

  ShardExecutor& shard() { return *shard_; }
  rdma::ForwardingEndpoint& endpoint() { return *endpoint_; }  // the server's
  rdma::SimNetwork& network() { return network_; }
  uint64_t revision() const { return revision_; }
  ShardCounters counters() const { return shard_->Snapshot().counters; }

 private:
  void AddOtherJob(v1::TableSpec spec, v1::ClusterView* view) {
    v1::Job* job = view->add_jobs();
    job->set_name("other");
    job->set_generation(1);
    job->set_expected_workers(static_cast<uint32_t>(other_workers_.size()));
    for (size_t rank = 0; rank < other_workers_.size(); ++rank) {
      v1::Worker* worker = job->add_members();
      worker->set_incarnation(other_workers_[rank]);
      worker->set_rank(static_cast<int32_t>(rank));
    }
    v1::Table* table = view->add_tables();
    table->set_id(kOtherRowTable);
    spec.set_name("other rows");
    spec.set_job("other");
    *table->mutable_spec() = spec;
  }
  void Run() {
    while (shard_->RunOnce()) {
    }
    for (auto& worker : test_workers_) worker->Pump();
  }
  // The limit is for a hang: an emulated machine is slow.
  bool UntilReally(const std::function<bool()>& condition) {
    const MonotonicClock real;
    const int64_t start = real.NowNanos();
    for (int64_t before = start, now = start; now - start < 60'000'000'000; before = now) {
      Run();
      if (condition()) return true;
      now = real.NowNanos();
      network_.Advance(network_.clock().NowNanos() + now - before);
    }
    return false;
  }

  rdma::SimNetwork network_;
  v1::Consistency consistency_;
  rdma::ForwardingEndpoint* endpoint_ = nullptr;
  std::unique_ptr<ShardExecutor> shard_;
  std::vector<std::unique_ptr<TestWorker>> test_workers_;
  std::vector<uint64_t> workers_, other_workers_;
  v1::Eviction eviction_;
  v1::JobLimits limits_;
  uint64_t revision_ = 0;
  uint32_t expected_workers_ = 1;
  uint32_t chunk_bytes_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_SHARD_EXECUTOR_FIXTURE_H_
