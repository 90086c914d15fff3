// An engine with one embedding table and one job, driven the way a shard's executor drives it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_ROW_FIXTURE_H_
#define VERBENA_TESTS_SHARD_ROW_FIXTURE_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/spec/table_spec.h"
#include "shard/codec/codec.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {

// A heap with a limit that scratch memory may exceed, as a server's.
class RowAllocator final : public Allocator {
 public:
  Buffer Allocate(size_t bytes) override { return Take(bytes, limit); }
  Buffer AllocateScratch(size_t bytes) override { return Take(bytes, scratch_limit); }
  void Free(const Buffer& buffer) override {
    used -= buffer.bytes;
    heap_.Free(buffer);
  }
  uint64_t limit_bytes() const override { return limit == SIZE_MAX ? 0 : limit; }
  size_t limit = SIZE_MAX;
  size_t scratch_limit = SIZE_MAX;
  size_t used = 0;

 private:
  Buffer Take(size_t bytes, size_t most) {
    if (used + bytes > most) return {};
    used += bytes;
    return heap_.Allocate(bytes);
  }
  HeapAllocator heap_;
};

struct RowOptions {
  uint32_t workers = 2;
  uint32_t observers = 0;
  uint32_t partitions = 4;
  uint32_t dim = 4;
  v1::Consistency consistency = v1::CONSISTENCY_ASYNC;
  uint32_t staleness = 0;
  v1::Reduction reduction = v1::REDUCTION_SUM;
  v1::NonFinite non_finite = v1::NON_FINITE_REJECT;
  v1::Admission admission = {};
  v1::Eviction eviction = {};
  v1::DType row_dtype = v1::DTYPE_F32;
  bool stochastic = false;
  uint64_t hot_bytes = 0;     // with `cold`
  ColdStore* cold = nullptr;  // outlives the fixture
  uint32_t record_rows = 0;   // of chunk_bytes; 0: as many as 256 KiB hold
  v1::Codec push_codec = v1::CODEC_NONE;
  v1::Codec pull_codec = v1::CODEC_NONE;
  v1::Optimizer optimizer = [] {
    v1::Optimizer sgd;
    sgd.set_name("sgd");
    sgd.set_rate(1);
    return sgd;
  }();
  v1::Initializer initializer = [] {
    v1::Initializer normal;
    normal.set_kind(v1::Initializer::NORMAL);
    normal.set_b(1);
    normal.set_seed(11);
    return normal;
  }();
};

using Row = std::vector<float>;
using Rows = std::map<uint64_t, Row>;  // by key

class RowFixture {
 public:
  explicit RowFixture(const RowOptions& o, uint64_t server = kServer) : options(o) {
    view.set_revision(1);
    for (uint32_t p = 0; p < o.partitions; ++p) {
      v1::Partition* partition = view.add_partitions();
      partition->set_id(p);
      partition->set_epoch(1);
      partition->set_primary(kServer);
    }
    v1::Job* job = view.add_jobs();
    job->set_name("job");
    job->set_generation(1);
    job->set_expected_workers(o.workers);
    for (uint32_t r = 0; r < o.workers; ++r) Join(kFirstWorker + r, static_cast<int>(r));
    for (uint32_t i = 0; i < o.observers; ++i) Join(2000 + i, -1);
    v1::Table* table = view.add_tables();
    table->set_id(kTable);
    v1::TableSpec* spec = table->mutable_spec();
    spec->set_name("rows");
    spec->set_job("job");
    spec->set_dim(o.dim);
    spec->set_dtype(v1::DTYPE_F32);
    spec->set_consistency(o.consistency);
    spec->set_staleness(o.staleness);
    spec->set_reduction(o.reduction);
    spec->set_non_finite(o.non_finite);
    *spec->mutable_initializer() = o.initializer;
    *spec->mutable_admission() = o.admission;
    *spec->mutable_eviction() = o.eviction;
    spec->set_row_dtype(o.row_dtype);
    spec->set_stochastic_rounding(o.stochastic);
    spec->set_push_codec(o.push_codec);
    spec->set_pull_codec(o.pull_codec);
    push_type = PushType(*spec);
    pull_type = PullType(*spec);
    *spec->mutable_optimizer() = o.optimizer;
    spec->set_chunk_bytes(o.record_rows > 0
                              ? o.record_rows * o.dim * static_cast<uint32_t>(sizeof(float))
                              : 256 * 1024);
    if (o.hot_bytes > 0) spec->mutable_cold_tier()->set_hot_bytes(o.hot_bytes);
    EngineOptions engine_options;
    engine_options.allocator = &allocator;
    engine_options.server = server;
    engine_options.cold_store = o.cold;
    engine_options.commit_observer = [this](const Commit& c) {
      commits.push_back(
          {c.chunk, c.step, {c.contributors.begin(), c.contributors.end()}, c.divisor});
    };
    engine = std::make_unique<Engine>(engine_options);
    applied = engine->ApplyView(view);
  }

  v1::Job* job() { return view.mutable_jobs(0); }
  void Join(uint64_t incarnation, int rank) {
    v1::Worker* w = job()->add_members();
    w->set_incarnation(incarnation);
    w->set_rank(rank);
  }
  void Depart(uint32_t rank) {
    v1::Job copy = *job();
    job()->clear_members();
    for (const v1::Worker& w : copy.members()) {
      if (w.rank() != static_cast<int>(rank)) *job()->add_members() = w;
    }
    job()->add_departed_ranks(static_cast<int>(rank));
    applied = Apply();
  }
  absl::Status Apply() {
    view.set_revision(view.revision() + 1);
    return engine->ApplyView(view);
  }

  uint32_t PartitionOf(uint64_t key) const {
    return PartitionOfKey(kTable, key, options.partitions);
  }
  // The first `count` keys from `from` on that are in `partition`.
  std::vector<uint64_t> KeysIn(uint32_t partition, size_t count, uint64_t from = 0) const {
    std::vector<uint64_t> found;
    for (uint64_t key = from; found.size() < count; ++key) {
      if (PartitionOf(key) == partition) found.push_back(key);
    }
    return found;
  }
  Group GroupOf(uint32_t partition, uint64_t sequence, size_t count, uint32_t index = 0) const {
    const uint64_t epoch =
        partition < options.partitions ? view.partitions(static_cast<int>(partition)).epoch() : 1;
    return {partition, index, epoch, sequence, static_cast<uint32_t>(count), 0};
  }
  Row Filled(float value) const { return Row(options.dim, value); }

  // One group. Rank r pushes on lane r.
  GroupsOutcome Push(uint32_t rank, uint32_t partition, uint64_t sequence, const Rows& rows,
                     uint32_t index = 0) {
    keys.clear();
    values.clear();
    for (const auto& [key, row] : rows) {
      keys.push_back(key);
      values.insert(values.end(), row.begin(), row.end());
    }
    groups = {GroupOf(partition, sequence, rows.size(), index)};
    return engine->PushRows(PushOf(rank));
  }
  // A push of groups, keys and values, which are encoded.
  PushRowsRequest PushOf(uint32_t rank) {
    const size_t rows = values.size() / options.dim, bytes = RowBytes(push_type, options.dim);
    encoded.resize(rows * bytes);
    for (size_t i = 0; i < rows; ++i) {
      codec::EncodeRow(Isa::kBaseline, push_type, values.data() + i * options.dim,
                       encoded.data() + i * bytes, options.dim);
    }
    return {{rank, 0, 0}, kFirstWorker + rank, kTable, groups, keys, encoded, push_type};
  }
  ReplyStatus PushStatus(uint32_t rank, uint32_t partition, uint64_t sequence, const Rows& rows,
                         uint32_t index = 0) {
    return Push(rank, partition, sequence, rows, index).group_status[0];
  }
  // All of one value.
  ReplyStatus PushValue(uint32_t rank, uint32_t partition, uint64_t sequence,
                        const std::vector<uint64_t>& of, float value, uint32_t index = 0) {
    Rows rows;
    for (const uint64_t key : of) rows[key] = Filled(value);
    return PushStatus(rank, partition, sequence, rows, index);
  }

  // By partition, in the order in which the answer has them.
  std::vector<uint64_t> Order(std::vector<uint64_t> of) const {
    std::sort(of.begin(), of.end(), [&](uint64_t a, uint64_t b) {
      return PartitionOf(a) != PartitionOf(b) ? PartitionOf(a) < PartitionOf(b) : a < b;
    });
    of.erase(std::unique(of.begin(), of.end()), of.end());
    return of;
  }
  // In `keys` and `groups`.
  void Name(const std::vector<uint64_t>& of) {
    keys = Order(of);
    groups.clear();
    for (const uint64_t key : keys) {
      const uint32_t p = PartitionOf(key);
      if (groups.empty() || groups.back().partition != p) groups.push_back(GroupOf(p, 0, 0));
      ++groups.back().count;
    }
  }
  PullOutcome Lookup(uint64_t worker, const std::vector<uint64_t>& of, uint64_t min_version,
                     uint32_t lane = 0, uint32_t operation = 0) {
    Name(of);
    return engine->Lookup({{lane, operation, 0},
                           worker,
                           kTable,
                           groups,
                           keys,
                           min_version,
                           uint64_t{0x1000} + operation,
                           0x55,
                           true,
                           pull_type});
  }
  GroupsOutcome Prefetch(uint64_t worker, const std::vector<uint64_t>& of) {
    Name(of);
    return engine->Prefetch({worker, kTable, groups, keys});
  }
  // The rows of an answer that has them as `type`.
  Rows RowsOf(const std::vector<uint64_t>& of, const ChunkView& rows, ElementType type) const {
    Rows result;
    const std::byte* at = rows.buffer.data;
    for (const uint64_t key : of) {
      Row& row = result[key];
      row.resize(options.dim);
      codec::DecodeRow(Isa::kBaseline, type, at, row.data(), options.dim);
      at += RowBytes(type, options.dim);
    }
    return result;
  }
  Rows RowsOf(const std::vector<uint64_t>& of, const ChunkView& rows) const {
    return RowsOf(of, rows, pull_type);
  }
  // The rows of a lookup by some member now; empty when refused.
  Rows Read(const std::vector<uint64_t>& of) {
    const PullOutcome out = Lookup(job()->members(0).incarnation(), of, 0);
    if (out.kind != PullOutcome::Kind::kReady) return {};
    Rows rows = RowsOf(keys, out.view);
    engine->Unpin(out.view.pin);
    return rows;
  }
  Row ReadRow(uint64_t key) { return Read({key})[key]; }

  PullOutcome ScanAt(uint32_t partition, uint64_t cursor, uint32_t count) {
    return engine->Scan(
        {job()->members(0).incarnation(), kTable, GroupOf(partition, cursor, count)});
  }
  // All rows of a partition, `count` at a time.
  Rows Scan(uint32_t partition, uint32_t count, std::vector<uint64_t>* order = nullptr) {
    Rows rows;
    for (uint64_t cursor = 0;;) {
      const PullOutcome out = ScanAt(partition, cursor, count);
      if (out.kind != PullOutcome::Kind::kReady || out.answer.detail == 0) return rows;
      const uint32_t n = out.answer.detail;
      std::vector<uint64_t> of(n);
      std::memcpy(of.data(), out.view.buffer.data, n * sizeof(uint64_t));
      ChunkView behind = out.view;
      behind.buffer.data += KeyBytes(n);
      rows.merge(RowsOf(of, behind, ElementType::kF32));
      if (order != nullptr) order->insert(order->end(), of.begin(), of.end());
      cursor = out.answer.version;
      engine->Unpin(out.view.pin);
    }
  }

  GroupsOutcome EndStep(uint32_t rank, uint32_t partition, uint64_t sequence, uint32_t count,
                        uint64_t clock = 0) {
    group = GroupOf(partition, sequence, count);
    return engine->EndStep({{rank, 0, 0}, kFirstWorker + rank, kTable, {&group, 1}, clock});
  }
  ReplyStatus EndStatus(uint32_t rank, uint32_t partition, uint64_t sequence, uint32_t count,
                        uint64_t clock = 0) {
    return EndStep(rank, partition, sequence, count, clock).group_status[0];
  }
  GroupsOutcome Await(uint64_t worker, const std::vector<uint32_t>& partitions,
                      uint64_t min_version, uint32_t lane = 0) {
    groups.clear();
    for (const uint32_t p : partitions) groups.push_back(GroupOf(p, 0, 0));
    return engine->Await({{lane, 0, 0}, worker, kTable, groups, min_version});
  }
  std::vector<Event> Events() {
    std::vector<Event> events;
    engine->TakeEvents(&events);
    return events;
  }

  const RowOptions options;
  RowAllocator allocator;
  v1::ClusterView view;
  std::vector<RecordedCommit> commits;
  std::vector<uint64_t> keys;  // of the last request
  std::vector<float> values;
  std::vector<std::byte> encoded;
  ElementType push_type = ElementType::kF32, pull_type = ElementType::kF32;
  std::vector<Group> groups;
  Group group;
  std::unique_ptr<Engine> engine;
  absl::Status applied;
};

inline bool SameRows(const Rows& a, const Rows& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && SameBits(x.second, y.second);
         });
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_ROW_FIXTURE_H_
