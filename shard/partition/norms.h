// Two-phase steps of a sync table whose step needs a norm over several chunks: each chunk's partial
// norms, the requests for them, and the effect of the total norms on the chunk's apply.
//
// A chunk with all contributions computes its partial norm and waits. A worker requests the partial
// norms of all chunks (kNorms), adds them up and sends the total norms (kTotals); then the chunk
// commits. A table with global-norm clipping and a trust ratio needs two such rounds, because the
// update's norm is known only once its gradient is clipped.
//
// States of a chunk:
//     `open`  --(contributions are there)-->  `measured(kind)`  --(totals)-->  `told(kind)`
//     `told`  --(another kind is needed)-->  `measured(that)`
//     `told`  --(none is)-->  commits  -->  `open`
// (`told`: the chunk has received the total norms.)
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A partial norm, once computed, stays the same until every chunk of the job has passed the
//     step. So every requester gets the same partial norms, and the total norms of all workers are
//     equal.
//  2. Partial norms of two steps are kept. A chunk computes its partial norm of step t + 2 only
//     after it received the total norms of step t + 1. By then every chunk of the norm was past
//     step t, so those of step t are not needed.
//  3. Measuring changes neither parameters nor optimizer state.
//  4. A deferred request gets exactly one event, or none if its lane is dropped.
#ifndef VERBENA_SHARD_PARTITION_NORMS_H_
#define VERBENA_SHARD_PARTITION_NORMS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {

class Norms {
 public:
  // All outlive it. The table's optimizer needs at least one kind of norm.
  Norms(DenseTable* table, BufferPool* pool, EngineContext* sink);
  ~Norms();

  // ---- a chunk's open step, by its index in the table ----
  bool open(uint32_t chunk) const { return chunks_[chunk].phase == Phase::kOpen; }
  // All contributions are there; their sum will be divided by `divisor`.
  void Begin(uint32_t chunk, uint32_t divisor);
  // Continues with the result of Begin(), or when total norms have arrived. sources: the sum, or
  // none for a gradient of zero. True: the chunk may commit.
  bool Step(uint32_t chunk, absl::Span<const Source> sources);
  const StepScale& scale(uint32_t chunk) const { return chunks_[chunk].scale; }
  uint32_t divisor(uint32_t chunk) const { return chunks_[chunk].divisor; }
  void Committed(uint32_t chunk) { chunks_[chunk].phase = Phase::kOpen; }

  // ---- requests. slices: those of the groups, ready; one for each group ----
  PullOutcome Ask(const NormsRequest& request, absl::Span<const uint32_t> slices);
  // kOk: every chunk of the slice that waited for these total norms took them: Step() continues.
  ReplyStatus Replicate(uint32_t slice, uint64_t step, NormKind kind, const NormTotals& totals);

  // ---- the view ----
  void Resize();
  // Requests that name the slice are answered `why`. !keep: its parts are forgotten.
  void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep);
  void FailWorkers(absl::FunctionRef<bool(uint64_t worker)> expired);
  // A new generation: requests are answered kExpired, parts are forgotten.
  void Reset();
  void ForgetLane(uint32_t lane);

 private:
  enum class Phase : uint8_t { kOpen, kBegun, kMeasured, kTotalled };
  // By parity of the step.
  struct Chunk {
    Phase phase = Phase::kOpen;
    NormKind kind = NormKind::kGradient;
    uint32_t divisor = 1;
    StepScale scale;
    NormTotals parts[2][kNormKinds] = {};
  };
  // The number of chunks of a slice that have their partial norm of a step.
  struct Count {
    uint64_t step = UINT64_MAX;
    uint32_t chunks = 0;
  };
  struct LocalPartition {
    Count counts[2][kNormKinds];
    std::vector<uint32_t> waiters;  // indices of asks_
  };
  struct Asked {
    Token token;
    uint64_t worker = 0;
    uint64_t step = 0;
    NormKind kind = NormKind::kGradient;
    uint32_t remaining = 0;  // slices without all parts. 0: the entry is free
    uint64_t destination = 0;
    uint64_t destination_key = 0;
    std::vector<uint32_t> slices;
  };

  Count& CountOf(uint32_t slice, uint64_t step, NormKind kind) {
    return slices_[slice].counts[step & 1][static_cast<size_t>(kind)];
  }
  bool Complete(uint32_t slice, uint64_t step, NormKind kind);
  // The step is over everywhere: its parts may be forgotten.
  bool Over(uint32_t slice, uint64_t step, NormKind kind);
  void Measure(uint32_t chunk, NormKind kind, absl::Span<const Source> sources);
  // The parts of the slices, in a pinned buffer. data is null when there is no memory.
  ChunkView Gather(uint64_t step, NormKind kind, absl::Span<const uint32_t> slices);
  void Defer(const NormsRequest& request, absl::Span<const uint32_t> slices, uint32_t remaining);
  void Release(uint32_t slice, uint64_t step, NormKind kind);
  void Fail(absl::FunctionRef<bool(const Asked&)> match, const ReplyStatus* why);
  void Free(Asked* ask);

  DenseTable& table_;
  BufferPool& pool_;
  EngineContext& sink_;
  const bool gradient_, trust_;  // which kinds a step needs
  std::vector<Chunk> chunks_;
  std::vector<LocalPartition> slices_;
  std::vector<Asked> asks_;
  uint32_t deferred_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_NORMS_H_
