// An engine with one table and one job, driven the way a shard's executor drives it.
#ifndef VERBENA_TESTS_SHARD_ENGINE_FIXTURE_H_
#define VERBENA_TESTS_SHARD_ENGINE_FIXTURE_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "proto/spec/table_spec.h"
#include "proto/wire/record_check.h"
#include "shard/codec/codec.h"
#include "shard/engine.h"
#include "shard/kernel/convert.h"

namespace verbena {

inline std::ostream& operator<<(std::ostream& out, ReplyStatus status) {
  return out << std::string(ReplyStatusName(status));
}

namespace shard {

constexpr uint64_t kServer = 100;
constexpr uint32_t kTable = 7;
constexpr uint64_t kFirstWorker = 1000;  // incarnation of rank 0
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A heap that can run out, and counts the buffers given out.
class LimitedAllocator final : public Allocator {
 public:
  Buffer Allocate(size_t bytes) override {
    ++asked;
    if (used + bytes > limit) return {};
    used += bytes;
    return heap_.Allocate(bytes);
  }
  void Free(const Buffer& buffer) override {
    used -= buffer.bytes;
    heap_.Free(buffer);
  }
  void Count(int64_t bytes) override { counted += bytes; }
  bool MayFit(uint64_t bytes) const override { return used + bytes <= limit; }
  size_t limit = SIZE_MAX;
  size_t used = 0;
  uint64_t asked = 0;   // for memory, refused ones included
  int64_t counted = 0;  // elsewhere

 private:
  HeapAllocator heap_;
};

struct FixtureOptions {
  uint32_t workers = 2;
  uint32_t partitions = 4;
  uint32_t chunks = 4;
  uint32_t chunk_elements = 16;
  uint32_t last_elements = 16;  // of the last chunk
  v1::Consistency consistency = v1::CONSISTENCY_SYNC;
  uint32_t staleness = 0;  // ssp
  v1::Reduction reduction = v1::REDUCTION_SUM;
  std::string optimizer = "sgd";
  double rate = 1;
  v1::Optimizer more;  // of the optimizer's specification
  v1::NonFinite non_finite = v1::NON_FINITE_REJECT;
  double initial = 0;
  v1::DType dtype = v1::DTYPE_F32;
  v1::DType gradient_dtype = v1::DTYPE_F32;
  v1::Codec push_codec = v1::CODEC_NONE;
  v1::Codec pull_codec = v1::CODEC_NONE;
  uint32_t spares = 16;
  uint32_t observers = 0;
};

struct RecordedCommit {
  uint32_t chunk;
  uint64_t step;
  std::vector<uint64_t> contributors;
  uint32_t divisor;
};

class Fixture {
 public:
  explicit Fixture(const FixtureOptions& o) : options(o) {
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
    *view.add_tables() = MakeTable(kTable, "table");
    EngineOptions engine_options;
    engine_options.allocator = &allocator;
    engine_options.server = kServer;
    engine_options.spare_buffers = o.spares;
    engine_options.commit_observer = [this](const Commit& c) {
      commits.push_back(
          {c.chunk, c.step, {c.contributors.begin(), c.contributors.end()}, c.divisor});
    };
    engine = std::make_unique<Engine>(engine_options);
    applied = engine->ApplyView(view);
  }

  v1::Table MakeTable(uint32_t id, const std::string& name) const {
    v1::Table table;
    table.set_id(id);
    v1::TableSpec* spec = table.mutable_spec();
    spec->set_name(name);
    spec->set_job("job");
    spec->add_shape((options.chunks - 1) * options.chunk_elements + options.last_elements);
    spec->set_dtype(options.dtype);
    spec->set_gradient_dtype(options.gradient_dtype);
    spec->set_push_codec(options.push_codec);
    spec->set_pull_codec(options.pull_codec);
    spec->set_consistency(options.consistency);
    spec->set_staleness(options.staleness);
    spec->set_reduction(options.reduction);
    spec->set_non_finite(options.non_finite);
    spec->mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
    spec->mutable_initializer()->set_a(options.initial);
    *spec->mutable_optimizer() = options.more;
    spec->mutable_optimizer()->set_name(options.optimizer);
    spec->mutable_optimizer()->set_rate(options.rate);
    const DenseLayout layout = LayoutOf(*spec);
    spec->set_chunk_bytes(options.chunk_elements *
                          std::max(layout.parameter_bytes, layout.gradient_bytes));
    return table;
  }

  v1::Job* job() { return view.mutable_jobs(0); }
  void Join(uint64_t incarnation, int rank) {
    v1::Worker* w = job()->add_members();
    w->set_incarnation(incarnation);
    w->set_rank(rank);
  }
  // The worker's lease ends.
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

  uint32_t elements(uint32_t chunk) const {
    return chunk + 1 == options.chunks ? options.last_elements : options.chunk_elements;
  }
  uint32_t PartitionOf(uint32_t chunk) const {
    return PartitionOfChunk(kTable, chunk, options.partitions);
  }
  Group GroupOf(uint32_t chunk, uint64_t sequence) const {
    const uint32_t p = PartitionOf(chunk);
    return {p, chunk, view.partitions(static_cast<int>(p)).epoch(), sequence, elements(chunk), 0};
  }

  PushRequest PushOf(uint64_t worker, uint32_t chunk, uint64_t sequence,
                     const std::vector<float>& values, uint32_t lane, uint32_t operation = 0) {
    payloads.emplace_back(values.size() * 4);
    std::vector<std::byte>& payload = payloads.back();
    PushRequest r;
    r.dtype = static_cast<ElementType>(options.gradient_dtype);
    if (options.push_codec != v1::CODEC_NONE) {
      r.dtype = static_cast<ElementType>(options.push_codec);
      payload.resize(PayloadBytes(r.dtype, values.size()));
      codec::Encode(shard::BestIsa(), r.dtype, values.data(), nullptr, payload.data(),
                    values.size());
    } else if (r.dtype == ElementType::kF32) {
      if (!values.empty()) std::memcpy(payload.data(), values.data(), payload.size());
    } else {
      payload.resize(values.size() * 2);
      Round(Isa::kBaseline, r.dtype, values.data(), reinterpret_cast<uint16_t*>(payload.data()),
            values.size());
    }
    r.token = {lane, operation, 0};
    r.worker = worker;
    r.table = kTable;
    r.group = GroupOf(chunk, sequence);
    r.group.count = static_cast<uint32_t>(values.size());
    r.payload = payload;
    return r;
  }
  // Rank r pushes on lane r.
  PushOutcome Push(uint32_t rank, uint32_t chunk, uint64_t sequence,
                   const std::vector<float>& values, uint32_t operation = 0) {
    return engine->Push(PushOf(kFirstWorker + rank, chunk, sequence, values, rank, operation));
  }
  PushOutcome Push(uint32_t rank, uint32_t chunk, uint64_t sequence, float value) {
    return Push(rank, chunk, sequence, std::vector<float>(elements(chunk), value));
  }

  ElementType pull_type() const {
    const bool coded = options.pull_codec != v1::CODEC_NONE;
    return coded ? static_cast<ElementType>(options.pull_codec)
                 : static_cast<ElementType>(options.dtype);
  }
  PullOutcome Pull(uint64_t worker, uint32_t chunk, uint64_t min_version, uint32_t lane = 0,
                   uint32_t operation = 0) {
    PullRequest r;
    r.token = {lane, operation, 0};
    r.worker = worker;
    r.table = kTable;
    r.group = GroupOf(chunk, 0);
    r.dtype = pull_type();
    r.min_version = min_version;
    r.destination = 0x1000 + operation;
    r.destination_key = 0x55;
    return engine->Pull(r);
  }
  // For chunks of f32.
  static std::vector<float> Values(const ChunkView& chunk) {
    std::vector<float> values(chunk.bytes / 4);
    std::memcpy(values.data(), chunk.buffer.data, chunk.bytes);
    return values;
  }
  // For chunks of bf16 or f16.
  static std::vector<uint16_t> Halves(const ChunkView& chunk) {
    std::vector<uint16_t> values(chunk.bytes / 2);
    std::memcpy(values.data(), chunk.buffer.data, chunk.bytes);
    return values;
  }
  // The values of a pull by some member now; empty when refused.
  std::vector<float> Read(uint32_t chunk, uint64_t* version = nullptr) {
    const PullOutcome out = Pull(job()->members(0).incarnation(), chunk, 0);
    if (out.kind != PullOutcome::Kind::kReady) return {};
    if (version != nullptr) *version = out.view.version;
    std::vector<float> values = Values(out.view);
    engine->Unpin(out.view.pin);
    return values;
  }
  uint64_t Version(uint32_t chunk) {
    uint64_t version = UINT64_MAX;
    Read(chunk, &version);
    return version;
  }

  // One group: the partition of `chunk`, with `count` chunks contributed.
  GroupsOutcome EndStep(uint32_t rank, uint32_t chunk, uint64_t sequence, uint32_t count,
                        uint64_t clock = 0) {
    group = GroupOf(chunk, sequence);
    group.index = 0;
    group.count = count;
    return engine->EndStep({{rank, 0, 0}, kFirstWorker + rank, kTable, {&group, 1}, clock});
  }
  GroupsOutcome Await(uint64_t worker, const std::vector<uint32_t>& chunks, uint64_t min_version,
                      uint32_t lane = 0, uint32_t operation = 0) {
    groups.clear();
    for (const uint32_t c : chunks) groups.push_back(GroupOf(c, 0));
    return engine->Await({{lane, operation, 0}, worker, kTable, groups, min_version});
  }
  std::vector<Event> Events() {
    std::vector<Event> events;
    engine->TakeEvents(&events);
    return events;
  }

  const FixtureOptions options;
  LimitedAllocator allocator;
  v1::ClusterView view;
  std::vector<RecordedCommit> commits;
  std::deque<std::vector<std::byte>> payloads;
  Group group;
  std::vector<Group> groups;
  std::unique_ptr<Engine> engine;
  absl::Status applied;
};

inline std::vector<float> Filled(uint32_t n, float value) { return std::vector<float>(n, value); }

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace shard
}  // namespace verbena

#endif  // VERBENA_TESTS_SHARD_ENGINE_FIXTURE_H_
