// The chunks of one dense table that live on this shard: parameters, optimizer state, versions.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A pinned buffer is never written: Apply() writes to a shadow buffer and swaps. Only a
//     checkpoint pins buffers of the optimizer's state; updates to pinned state go to buffers that
//     the checkpoint lends.
//  2. In a table of 16-bit parameters the optimizer works on the master copy, in f32; the
//     parameters are the master copy, rounded.
//  3. With a pull codec, parameters are encoded at a pull, once for all pulls of the same contents,
//     as long as the encoding is kept (BufferPool::PinToKeep()). The encoding depends on the
//     parameters alone, so encoding again gives the same bytes.
//  4. Chunk::applies counts every apply since initialisation; Chunk::version restarts with the job.
//  5. A chunk gets its initial values when its content is first used, which is all the same to
//     callers: they depend on the table and the chunk alone. So a new table costs its shard no time
//     that grows with its bytes, and no memory of the system before it is used.
#ifndef VERBENA_SHARD_TABLE_DENSE_TABLE_H_
#define VERBENA_SHARD_TABLE_DENSE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/record.h"
#include "proto/wire/routing.h"
#include "shard/engine.h"
#include "shard/kernel/fused_pass.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/partitioned_table.h"
#include "shard/table/watch.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// Factors for a chunk's gradient and update that follow from norms over several chunks.
struct StepScale {
  float gradient = 1;
  float trust = 1;
};

// A chunk's count of applies after the next one, of these sources (Effective()). Assignments of
// parameters before the first gradient do not count: schedules and bias corrections start with that
// gradient. An assignment of state sets the count.
inline uint64_t AppliesAfter(uint64_t applies, absl::Span<const Source> sources) {
  if (!Assigns(sources)) return applies + 1;
  if (sources.back().array != 0) return sources.back().applies;
  return applies == 0 ? 0 : applies + 1;
}

class DenseTable final : public PartitionedTable {
 public:
  static constexpr uint64_t kNoPin = UINT64_MAX;  // is none of BufferPool
  struct Chunk {
    uint32_t id = 0;  // in the table
    uint32_t elements = 0;
    uint32_t slice = 0;
    uint32_t parameters = BufferPool::kNone;
    // The optimizer's arrays; then the master copy, if the table has those. kNone: neither.
    uint32_t state = BufferPool::kNone;
    uint64_t version = 0;
    uint64_t applies = 0;
    uint64_t encoded = kNoPin;  // the encoded parameters for pulls, if kept
    // The content is zero, and is not used before MakeInitial().
    mutable bool uninitialised = false;
  };
  struct LocalPartition {
    std::vector<uint32_t> chunks;  // indices of chunks(); empty unless ready
    uint64_t min_version = UINT64_MAX;
    uint32_t at_min = 0;  // chunks whose version is min_version
  };

  // INVALID_ARGUMENT for a specification this shard cannot serve.
  static absl::StatusOr<std::unique_ptr<DenseTable>> Create(const v1::Table& table,
                                                            uint32_t partitions, BufferPool* pool,
                                                            JobAccount* account = nullptr);
  ~DenseTable() override;

  // Memory in bytes of a chunk, also of the short last one. The specification is normalised and has
  // an optimizer that MakeOptimizer() knows; 0 otherwise.
  static uint64_t MemoryOfChunk(const v1::TableSpec& spec);

  const DenseLayout& layout() const { return layout_; }
  ElementType parameter_type() const { return type_; }
  ElementType push_type() const { return PushType(spec()); }
  ElementType pull_type() const { return pull_type_; }
  uint32_t partition_of(uint32_t chunk) const {
    return PartitionOfChunk(id(), chunk, partitions());
  }

  uint32_t local_chunk(uint32_t chunk) const { return local_chunk_[chunk]; }
  const Chunk& chunk(uint32_t index) const { return chunks_[index]; }
  const LocalPartition& slice(uint32_t index) const { return slices_[index]; }
  uint32_t chunks() const { return static_cast<uint32_t>(chunks_.size()); }
  // False for a chunk whose slice has been released.
  bool resident(uint32_t index) const { return chunks_[index].parameters != BufferPool::kNone; }

  void Release(uint32_t slice, bool gone) override;
  absl::Status Acquire(absl::Span<const Placement> placement) override;
  bool LacksCopies() const override { return lacks_copies_; }
  bool MayAcquire() const override;
  void SetVersions(uint32_t slice, uint64_t version) override;
  uint64_t version(uint32_t slice) const override { return slices_[slice].min_version; }
  uint64_t parameter_bytes() const override;

  ChunkView Pin(uint32_t index);
  // Pins the encoding of the parameters for pulls (array 0), or a copy of a state array. False: no
  // memory for it.
  bool PinToPull(uint32_t index, uint8_t array, ChunkView* view);
  // Applies sum(sources) / divisor; no source means a zero gradient. If one of them assigns, the
  // last such replaces the parameters (and the master copy), and the other state of the optimizer
  // stays; or it replaces an array of the state, and the others and the parameters stay, but those
  // that are rounded from an assigned master copy. The version grows by one, the apply count as
  // AppliesAfter(). False, with nothing changed: the chunk is pinned and there is no shadow buffer,
  // or a checkpoint needs its contents and there is no memory to keep them (force:
  // BufferPool::WritableFor()). optimizer: null: that of the chunk's step.
  bool Apply(uint32_t index, absl::Span<const Source> sources, float divisor,
             const StepScale& scale = {}, bool force = false, OptimizerPointer optimizer = nullptr);

  // ---- checkpoints (shard/checkpoint) ----
  // Gives a chunk its initial values, if it does not have them yet. Whoever reads or writes its
  // buffers outside of this class calls this first.
  void MakeInitial(uint32_t index) const;
  // Calls `watch` before every apply; null: nothing is called.
  void Watch(PreUpdateHook* watch) { watch_ = watch; }
  size_t state_arrays() const { return optimizer().initial().state_arrays(); }
  // The arrays that pulls and assignments of state name: the optimizer's, then the master copy.
  size_t StateArrays() const { return state_arrays() + (has_master() ? 1 : 0); }
  bool has_master() const { return type_ != ElementType::kF32; }
  size_t array_bytes() const { return array_bytes_; }
  // Writes elements of a chunk from `first` on. Exactly one of `floats` and `halves`, which are of
  // `type`, has the values. They are widened for the optimizer; pulls see that, rounded.
  void WriteElements(uint32_t index, uint32_t first, absl::Span<const float> floats,
                     absl::Span<const uint16_t> halves, ElementType type);
  void WriteState(uint32_t index, uint32_t first, size_t array, absl::Span<const float> values);
  void SetApplies(uint32_t index, uint64_t applies) { chunks_[index].applies = applies; }

  // ---- replicas ----
  // Bytes of a chunk that a replica needs: parameters, then state, in whole arrays.
  uint32_t ContentBytes() const;
  void ReadContent(uint32_t index, std::byte* to) const;
  void WriteContent(uint32_t index, const std::byte* from);
  // A hash of the chunk's parameters and state.
  uint64_t Digest(uint32_t index) const;
  void SetVersion(uint32_t index, uint64_t version, uint64_t applies);

  // This chunk's part of the norms of its next Apply(); changes nothing. gradient_scale: the same
  // as in Apply().
  double SquaredGradient(uint32_t index, absl::Span<const Source> sources, float divisor) const;
  TrustParts MeasureTrust(uint32_t index, absl::Span<const Source> sources, float divisor,
                          float gradient_scale);

 private:
  DenseTable(const v1::Table& table, uint32_t partitions, BufferPool* pool, JobAccount* account,
             std::unique_ptr<Optimizer> optimizer);
  bool AllocateChunk(uint32_t id, uint32_t slice);
  uint64_t BytesToAcquire(absl::Span<const Placement> placement, bool copies) const;
  // Acquires all slices that are served, or all copies, or none. *missing: the bytes they need.
  bool AcquirePart(absl::Span<const Placement> placement, bool copies, uint64_t* missing);
  absl::Status NoMemory() const;
  // Finds the buffers of a chunk that an apply may write, where `to` does not have them. False:
  // there are none now.
  bool FindWritable(const Chunk& chunk, bool force, ChunkSpares* to);
  void FreeChunk(Chunk* chunk);
  // The parameters are about to change.
  void ForgetEncoded(Chunk* chunk);
  void Advance(Chunk* chunk);
  void FindLeast(LocalPartition* slice);
  static ApplyScalars ScalarsOf(const Chunk& chunk, const Optimizer& optimizer,
                                const StepScale& scale);
  // The values that the optimizer works on: the parameters, or their master copy.
  float* Weights(const Chunk& chunk) const;
  // Null where there is none.
  float* State(const Chunk& chunk) const;
  // Array of Source::array.
  float* StateArray(const Chunk& chunk, uint8_t array) const {
    return State(chunk) + (array - 1) * (array_bytes_ / sizeof(float));
  }
  // Writes what the source assigns. `to`: the buffer of the next parameters, perhaps another one.
  void WriteAssigned(const Chunk& chunk, const Source& source, const Optimizer& with,
                     const StepScale& scale, const Buffer& to);
  // Copies an array of the state to be pulled.
  bool PinState(const Chunk& chunk, uint8_t array, ChunkView* view);

  const DenseLayout layout_;
  BufferPool* const pool_;
  const ElementType type_;       // of the parameters; 16 bits: rounded from the master copy
  const ElementType pull_type_;  // the same, unless there is a codec
  // Equal for every chunk, also the short last one: buffers are swapped.
  size_t parameter_buffer_bytes_ = 0;
  size_t array_bytes_ = 0;  // of each array of the state
  std::vector<uint32_t> local_chunk_;
  std::vector<Chunk> chunks_;
  std::vector<LocalPartition> slices_;  // by slice index
  uint64_t missing_bytes_ = 0;          // that the last Acquire() wanted, without copies
  bool lacks_copies_ = false;
  PreUpdateHook* watch_ = nullptr;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_DENSE_TABLE_H_
