// Workers that push as fast as they can to a shard whose copy takes less than that.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_REPLICA_LOAD_H_
#define VERBENA_TESTS_SHARD_REPLICA_LOAD_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "proto/wire/routing.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_bytes.h"

namespace verbena::shard {

inline constexpr uint32_t kLoadRows = 8;
inline constexpr uint32_t kLoadPartitions = 32;
inline constexpr uint32_t kLoadChunks = 64;
inline constexpr uint32_t kLoadElements = 256;  // 1 KiB
inline constexpr uint32_t kLoadDim = 16;
inline constexpr uint32_t kLoadKeys = 2048;
inline constexpr uint32_t kLoadPushKeys = 4;
inline constexpr uint32_t kGrowingPushKeys = 32;
inline constexpr uint64_t kLoadCopy = kServer + 1;
// Limit of one record: a chunk, or a group of rows, with its part in the log.
inline constexpr uint64_t kLoadRecord = 2048;

struct LoadPlan {
  uint32_t clients = 3;
  v1::Consistency consistency = v1::CONSISTENCY_ASYNC;
  v1::DType dtype = v1::DTYPE_F32;  // of the dense table
  uint32_t window = 24;             // requests that a client has unanswered
  uint64_t bytes_of_round = 32768;  // that the copy takes in a round
  ReplicaLogLimits limits = {64 << 10, 512 << 10, 16 << 10};
  // The first client pushes rows of so many partitions at once, and the others chunks; 0: each
  // client pushes both, of one partition at a time.
  uint32_t wide = 0;
  // Each push of rows makes some, with so many arrays of optimizer state.
  bool grows = false;
};

// A primary, a copy of all its partitions, clients, and between them rounds of virtual time.
class Load {
 public:
  explicit Load(const LoadPlan& plan) : plan_(plan) {
    view_.set_revision(1);
    for (uint32_t p = 0; p < kLoadPartitions; ++p) {
      v1::Partition* partition = view_.add_partitions();
      partition->set_id(p);
      partition->set_epoch(1);
      partition->set_primary(kServer);
    }
    v1::Job* job = view_.add_jobs();
    job->set_name("job");
    job->set_generation(1);
    job->set_expected_workers(plan.clients);
    for (uint32_t c = 0; c < plan.clients; ++c) {
      v1::Worker* worker = job->add_members();
      worker->set_incarnation(kFirstWorker + c);
      worker->set_rank(static_cast<int>(c));
    }
    AddTable(kTable, false);
    AddTable(kLoadRows, true);
    primary_ = Start(kServer);
    sequences_.assign(plan.clients, std::vector<uint64_t>(2 * kLoadPartitions, 0));
    for (uint32_t c = 0; c < plan.clients; ++c) next_.push_back(c * 7);
    out_.assign(plan.clients, 0);
  }

  // Until each key has a row.
  void Fill() {
    for (uint32_t round = 0; round < 4000 && filled_ < kLoadKeys; ++round) Round(true);
    REQUIRE(filled_ == kLoadKeys);
  }

  void AddLearner() {
    copy_ = Start(kLoadCopy);
    for (v1::Partition& partition : *view_.mutable_partitions()) {
      v1::Replica* learner = partition.add_learners();
      learner->set_server(kLoadCopy);
      learner->set_since(2);
    }
    Apply();
  }

  // In how many rounds all are followers; 0: not within `most`.
  uint32_t CatchUp(bool pushes, uint32_t most) {
    for (uint32_t round = 1; round <= most; ++round) {
      Round(pushes);
      bool admitted = false, all = true;
      for (v1::Partition& partition : *view_.mutable_partitions()) {
        if (partition.learners().empty()) continue;
        all = false;
        if (!primary_->replicas().CaughtUp(partition.id())) continue;
        *partition.add_followers() = partition.learners(0);
        partition.clear_learners();
        admitted = true;
      }
      if (admitted) Apply();
      if (all) return round;
    }
    return 0;
  }

  void Round(bool pushes) {
    const uint64_t before = answered_;
    if (primary_->TakeRoom()) RetryWaiting();
    for (uint32_t c = 0; pushes && c < plan_.clients; ++c) {
      for (uint32_t i = 0; i < plan_.window && out_[c] < plan_.window; ++i) Send(c);
    }
    TakeEvents();
    if (copy_ != nullptr) Deliver();
    CheckBounds();
    idle_ = answered_ > before ? 0 : idle_ + 1;
    most_idle_ = std::max(most_idle_, idle_);
  }

  // The job begins again and again, while nothing reaches the copy.
  void BeginGenerations(uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
      v1::Job* job = view_.mutable_jobs(0);
      job->set_generation(job->generation() + 1);
      Apply();
      CheckBounds();
    }
    sequences_.assign(plan_.clients, std::vector<uint64_t>(2 * kLoadPartitions, 0));
  }

  // All that was sent is answered, and the copy has it.
  void Drain() {
    for (uint32_t round = 0; round < 20'000; ++round) {
      Round(false);
      const bool answered = std::all_of(out_.begin(), out_.end(), [](auto n) { return n == 0; });
      if (answered && link_.empty() && Settled()) return;
    }
    FAIL("something is never answered");
  }

  // Every number is the sum of the pushes.
  void CheckSums(Engine* engine) {
    for (uint32_t chunk = 0; chunk < kLoadChunks; ++chunk) {
      PullRequest r;
      r.worker = kFirstWorker;
      r.table = kTable;
      r.group = {DensePartition(chunk), chunk, Epoch(), 0, kLoadElements, 0};
      if (plan_.dtype == v1::DTYPE_BF16) r.dtype = ElementType::kBf16;
      const PullOutcome out = engine->Pull(r);
      REQUIRE(out.kind == PullOutcome::Kind::kReady);
      float value = 0;
      if (plan_.dtype == v1::DTYPE_BF16) {
        uint32_t bits = 0;
        std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, out.view.buffer.data, 2);
        std::memcpy(&value, &bits, sizeof(value));
      } else {
        std::memcpy(&value, out.view.buffer.data, sizeof(value));
        CHECK(value == -static_cast<float>(dense_pushes_[chunk]));
      }
      CHECK(out.view.version == dense_pushes_[chunk]);
      engine->Unpin(out.view.pin);
    }
    uint64_t rows = 0;
    for (uint32_t p = 0; p < kLoadPartitions; ++p) {
      const PullOutcome out =
          engine->Scan({kFirstWorker, kLoadRows, {p, 0, Epoch(), 0, kLoadKeys, 0}});
      REQUIRE(out.kind == PullOutcome::Kind::kReady);
      const uint32_t count = out.answer.detail;
      for (uint32_t i = 0; i < count; ++i) {
        uint64_t key = 0;
        float value = 0;
        std::memcpy(&key, out.view.buffer.data + i * sizeof(key), sizeof(key));
        std::memcpy(&value, out.view.buffer.data + KeyBytes(count) + i * kLoadDim * sizeof(float),
                    sizeof(value));
        CHECK(value == -static_cast<float>(row_pushes_[key]));
      }
      rows += count;
      engine->Unpin(out.view.pin);
    }
    CHECK(rows == row_pushes_.size());
  }

  // All rows of the partition.
  void ScanInto(Engine* engine, uint32_t partition, std::map<uint64_t, std::vector<float>>* rows) {
    uint64_t cursor = 0;
    while (true) {
      const PullOutcome out =
          engine->Scan({kFirstWorker, kLoadRows, {partition, 0, Epoch(), cursor, kLoadKeys, 0}});
      REQUIRE(out.kind == PullOutcome::Kind::kReady);
      const uint32_t count = out.answer.detail;
      for (uint32_t i = 0; i < count; ++i) {
        uint64_t key = 0;
        std::memcpy(&key, out.view.buffer.data + i * sizeof(key), sizeof(key));
        std::vector<float>& row = (*rows)[key];
        row.resize(kLoadDim);
        std::memcpy(row.data(),
                    out.view.buffer.data + KeyBytes(count) + i * kLoadDim * sizeof(float),
                    kLoadDim * sizeof(float));
      }
      engine->Unpin(out.view.pin);
      if (count == 0) return;
      cursor = out.answer.version;  // where the next scan begins
    }
  }

  Engine* primary() { return primary_.get(); }
  Engine* Promote() {
    for (v1::Partition& partition : *view_.mutable_partitions()) {
      REQUIRE(!partition.followers().empty());
      partition.set_primary(kLoadCopy);
      partition.set_epoch(2);
      partition.clear_followers();
    }
    primary_.reset();
    Apply();
    return copy_.get();
  }
  uint64_t answered() const { return answered_; }
  uint64_t wide_answered() const { return wide_answered_; }
  uint32_t most_idle() const { return most_idle_; }
  uint64_t most_bytes() const { return most_bytes_; }
  bool within_bounds() const { return within_bounds_; }
  bool differs() const { return differs_; }  // with a failpoint: the replica has reported it

 private:
  struct Request {
    uint32_t client = 0;
    bool rows = false;
    std::vector<Group> groups;
    std::vector<uint64_t> keys;
    std::vector<float> values;
  };

  void AddTable(uint32_t id, bool rows) {
    v1::Table* table = view_.add_tables();
    table->set_id(id);
    v1::TableSpec* spec = table->mutable_spec();
    spec->set_name(rows ? "rows" : "dense");
    spec->set_job("job");
    if (rows) {
      spec->set_dim(kLoadDim);
    } else {
      spec->add_shape(kLoadChunks * kLoadElements);
    }
    spec->set_dtype(rows ? v1::DTYPE_F32 : plan_.dtype);
    if (!rows) spec->set_gradient_dtype(plan_.dtype);
    spec->set_consistency(plan_.consistency);
    spec->set_staleness(1'000'000);
    spec->set_reduction(v1::REDUCTION_SUM);
    spec->mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
    spec->mutable_optimizer()->set_name(rows && plan_.grows ? "adam" : "sgd");
    spec->mutable_optimizer()->set_rate(1);
    spec->set_chunk_bytes(kLoadElements * (!rows && plan_.dtype == v1::DTYPE_BF16 ? 2 : 4));
  }
  std::unique_ptr<Engine> Start(uint64_t server) {
    EngineOptions options;
    options.server = server;
    options.replica_log = plan_.limits;
    auto engine = std::make_unique<Engine>(options);
    REQUIRE(engine->ApplyView(view_).ok());
    return engine;
  }
  void Apply() {
    view_.set_revision(view_.revision() + 1);
    if (copy_ != nullptr) REQUIRE(copy_->ApplyView(view_).ok());
    if (primary_ != nullptr) REQUIRE(primary_->ApplyView(view_).ok());
  }
  uint64_t Epoch() const { return view_.partitions(0).epoch(); }
  static uint32_t DensePartition(uint32_t chunk) {
    return PartitionOfChunk(kTable, chunk, kLoadPartitions);
  }

  // Chunks and keys in turn.
  void Send(uint32_t c) {
    Request r;
    r.client = c;
    const uint32_t turn = next_[c]++;
    r.rows = plan_.wide > 0 ? c == 0 : turn % 2 == 1;
    uint32_t chunk = 0, partition = 0;
    if (r.rows && plan_.wide > 0) {
      for (partition = 0; partition < plan_.wide; ++partition) {
        uint64_t key = 0;
        while (PartitionOfKey(kLoadRows, key, kLoadPartitions) != partition) ++key;
        r.keys.push_back(key);
        r.groups.push_back({partition, 0, Epoch(), NextSequence(c, true, partition), 1, 0});
      }
      r.values.assign(r.keys.size() * kLoadDim, 1);
    } else if (r.rows && plan_.grows) {
      partition = turn / 2 % kLoadPartitions;
      for (; r.keys.size() < kGrowingPushKeys; ++next_key_) {
        if (PartitionOfKey(kLoadRows, next_key_, kLoadPartitions) == partition) {
          r.keys.push_back(next_key_);
        }
      }
      r.values.assign(r.keys.size() * kLoadDim, 1);
    } else if (r.rows) {
      uint64_t key = turn / 2 % kLoadKeys;
      partition = PartitionOfKey(kLoadRows, key, kLoadPartitions);
      for (; r.keys.size() < kLoadPushKeys; key = (key + 1) % (2 * kLoadKeys)) {
        const bool here = PartitionOfKey(kLoadRows, key, kLoadPartitions) == partition;
        if (here && key < kLoadKeys && (r.keys.empty() || key > r.keys.back()))
          r.keys.push_back(key);
        if (key > 2 * kLoadKeys - 2) break;
      }
      r.values.assign(r.keys.size() * kLoadDim, 1);
    } else {
      chunk = turn / 2 % kLoadChunks;
      partition = DensePartition(chunk);
      r.values.assign(kLoadElements, 1);
    }
    if (r.groups.empty()) {
      const auto count = static_cast<uint32_t>(r.rows ? r.keys.size() : r.values.size());
      r.groups = {{partition, chunk, Epoch(), NextSequence(c, r.rows, partition), count, 0}};
    }
    ++out_[c];
    if (r.rows) {
      for (const uint64_t key : r.keys) filled_ += row_pushes_[key]++ == 0 ? 1 : 0;
    } else {
      ++dense_pushes_[chunk];
    }
    Handle(std::move(r));
  }

  uint64_t NextSequence(uint32_t client, bool rows, uint32_t partition) {
    return ++sequences_[client][(rows ? kLoadPartitions : 0) + partition];
  }

  // As a shard's executor does.
  void Handle(Request request) {
    const auto same = [&](const Request& r) {
      return std::any_of(r.groups.begin(), r.groups.end(), [&](const Group& a) {
        return std::any_of(request.groups.begin(), request.groups.end(),
                           [&](const Group& b) { return a.partition == b.partition; });
      });
    };
    if (std::any_of(waiting_.begin(), waiting_.end(), same)) {
      waiting_.push_back(std::move(request));
      return;
    }
    const uint32_t operation = next_operation_++;
    const Token token = {request.client, operation, 0};
    std::vector<std::byte> payload(request.values.size() * sizeof(float));
    std::memcpy(payload.data(), request.values.data(), payload.size());
    bool later = false, no_room = false;
    ReplyStatus status;
    if (request.rows) {
      const GroupsOutcome out = primary_->PushRows(
          {token, kFirstWorker + request.client, kLoadRows, request.groups, request.keys, payload});
      later = out.replicating;
      no_room = out.no_room;
      status = out.answer.status;
    } else {
      PushRequest push;
      push.token = token;
      push.worker = kFirstWorker + request.client;
      push.table = kTable;
      push.group = request.groups[0];
      if (plan_.dtype == v1::DTYPE_BF16) {
        push.dtype = ElementType::kBf16;
        auto* halves = reinterpret_cast<uint16_t*>(payload.data());
        shard::Round(Isa::kBaseline, push.dtype, request.values.data(), halves,
                     request.values.size());
        payload.resize(payload.size() / 2);
      }
      push.payload = payload;
      const PushOutcome out = primary_->Push(push);
      REQUIRE_FALSE(out.held);
      later = out.replicating;
      no_room = out.no_room;
      status = out.answer.status;
    }
    if (no_room) {
      REQUIRE(status == ReplyStatus::kResourceExhausted);
      ++waited_;
      waiting_.push_back(std::move(request));
      return;
    }
    CheckBounds();
    asked_[operation] = request.client;
    if (!later) Answered(operation, status);
  }

  void RetryWaiting() {
    std::deque<Request> requests = std::exchange(waiting_, {});
    for (Request& request : requests) Handle(std::move(request));
  }

  void Answered(uint32_t operation, ReplyStatus status) {
    REQUIRE(status == ReplyStatus::kOk);
    wide_answered_ += plan_.wide > 0 && asked_.at(operation) == 0 ? 1 : 0;
    --out_[asked_.at(operation)];
    asked_.erase(operation);
    ++answered_;
  }
  void TakeEvents() {
    std::vector<Event> events;
    primary_->TakeEvents(&events);
    for (const Event& event : events) Answered(event.token.operation, event.answer.status);
  }

  void Deliver() {
    std::vector<ReplicaRecord> records;
    while (primary_->replicas().Take(&records, 16)) {
    }
    for (const ReplicaRecord& record : records) link_.push_back(record);
    uint64_t left = plan_.bytes_of_round;
    while (!link_.empty() && left > 0) {
      const ReplicaRecord record = link_.front();
      link_.pop_front();
      const ReplicaBytes bytes(record);
      const ReplyStatus status =
          copy_->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status;
      if (failpoints().forget_new_rows && status == ReplyStatus::kDataLoss) {
        differs_ = true;
        return;
      }
      REQUIRE(status == ReplyStatus::kOk);
      primary_->replicas().Answered({kLoadCopy, 0}, record.group.partition, record.group.sequence,
                                    status);
      left -= std::min<uint64_t>(left, 128 + record.header.total_bytes);
    }
  }
  bool Settled() const {
    for (const CopyStatus& copy : primary_->replicas().Status()) {
      if (copy.copy.server != 0 && copy.acknowledged != copy.sequence) return false;
    }
    return true;
  }
  // One record of each kind, applies' and catch-up's, may exceed the bound.
  void CheckBounds() {
    const EngineCounters counters = primary_->counters();
    most_bytes_ = std::max(most_bytes_, counters.replica_log_bytes);
    within_bounds_ &=
        counters.replica_log_bytes <= plan_.limits.shard_bytes + 2 * kLoadRecord &&
        counters.replica_log_partition_bytes <= plan_.limits.partition_bytes + 2 * kLoadRecord;
  }

  const LoadPlan plan_;
  v1::ClusterView view_;
  std::unique_ptr<Engine> primary_, copy_;
  std::vector<std::vector<uint64_t>> sequences_;
  std::vector<uint32_t> next_, out_;
  std::map<uint32_t, uint32_t> asked_;  // client by operation
  std::deque<Request> waiting_;
  std::deque<ReplicaRecord> link_;
  std::map<uint64_t, uint64_t> dense_pushes_, row_pushes_;
  uint64_t next_key_ = 0;
  uint64_t filled_ = 0, answered_ = 0, wide_answered_ = 0, waited_ = 0, most_bytes_ = 0;
  uint32_t next_operation_ = 0, idle_ = 0, most_idle_ = 0;
  bool within_bounds_ = true, differs_ = false;
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_REPLICA_LOAD_H_
