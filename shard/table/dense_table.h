// The chunks of one dense table that live on this shard: parameters, optimizer state, versions.
//
// **Thread safety**: one owner thread.
//
// A slice is what the table has in one partition:
//     absent   --(owned, not lost)-->  ready   (parameters initialised)
//     absent   --(no memory)------->  starved  (tried again with the next view)
//     ready    --(lost)------------>  absent
//     ready    --(not owned)------->  gone     (answers DATA_LOSS should it come back: its
//                                              parameters must not silently be initial ones)
//
// Invariants:
//  1. A pinned buffer is never written: Apply() goes to a spare and swaps.
//  2. Chunk::applies counts every apply since initialisation; Chunk::version restarts with the job.
#ifndef VERBENA_SHARD_TABLE_DENSE_TABLE_H_
#define VERBENA_SHARD_TABLE_DENSE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/routing.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/engine.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

// What a view says of one partition of a table.
struct Placement {
  bool ours = false;
  bool lost = false;
  bool operator==(const Placement&) const = default;
};

class DenseTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Chunk {
    uint32_t id = 0;  // in the table
    uint32_t elements = 0;
    uint32_t slice = 0;
    uint32_t parameters = BufferPool::kNone;
    Buffer state;
    uint64_t version = 0;
    uint64_t applies = 0;
  };
  enum class SliceState : uint8_t { kAbsent, kReady, kStarved, kGone };
  struct Slice {
    uint32_t partition = 0;
    SliceState state = SliceState::kAbsent;
    std::vector<uint32_t> chunks;  // indices of chunks(); empty unless ready
    uint64_t min_version = UINT64_MAX;
    uint32_t at_min = 0;  // chunks whose version is min_version
  };

  // INVALID_ARGUMENT for a specification this shard cannot serve.
  static absl::StatusOr<std::unique_ptr<DenseTable>> Create(const v1::Table& table,
                                                            uint32_t partitions, BufferPool* pool);
  ~DenseTable();

  uint32_t id() const { return id_; }
  const v1::TableSpec& spec() const { return spec_; }
  const DenseLayout& layout() const { return layout_; }
  uint32_t partition_of(uint32_t chunk) const {
    return PartitionOfChunk(id_, chunk, static_cast<uint32_t>(slice_of_partition_.size()));
  }

  // kNone: the table has no chunk in that partition, or never had it here.
  uint32_t slice_of(uint32_t partition) const { return slice_of_partition_[partition]; }
  uint32_t local_chunk(uint32_t chunk) const { return local_chunk_[chunk]; }
  const Chunk& chunk(uint32_t index) const { return chunks_[index]; }
  const Slice& slice(uint32_t index) const { return slices_[index]; }
  uint32_t chunks() const { return static_cast<uint32_t>(chunks_.size()); }
  uint32_t slices() const { return static_cast<uint32_t>(slices_.size()); }
  // False for a chunk whose slice has been released.
  bool resident(uint32_t index) const { return chunks_[index].parameters != BufferPool::kNone; }

  // Frees a ready slice. `gone`: it moved away, rather than being declared lost.
  void Release(uint32_t slice, bool gone);
  // Initialises what `placement` (by partition) gives us and is absent: all of it, or
  // RESOURCE_EXHAUSTED and none of it.
  absl::Status Acquire(absl::Span<const Placement> placement);
  // A new generation of the job: versions restart, parameters and optimizer state stay.
  void ResetVersions();

  TableCounters& counters() { return counters_; }
  const TableCounters& counters() const { return counters_; }
  uint64_t parameter_bytes() const;

  ChunkView Pin(uint32_t index);
  // Applies sum(sources) / divisor; no source means a zero gradient. Version and apply count go up
  // by one. False, with nothing changed: the chunk is pinned and there is no spare.
  bool Apply(uint32_t index, absl::Span<const float* const> sources, float divisor);

 private:
  DenseTable(const v1::Table& table, uint32_t partitions, BufferPool* pool,
             std::unique_ptr<Optimizer> optimizer);
  bool AllocateChunk(uint32_t id, uint32_t slice);
  void FreeChunk(Chunk* chunk);
  void Advance(Chunk* chunk);

  const uint32_t id_;
  const v1::TableSpec spec_;
  const DenseLayout layout_;
  const std::unique_ptr<Optimizer> optimizer_;
  BufferPool* const pool_;
  size_t buffer_bytes_ = 0;  // of every chunk, also the short last one: buffers are swapped
  std::vector<uint32_t> local_chunk_;
  std::vector<uint32_t> slice_of_partition_;
  std::vector<Chunk> chunks_;
  std::vector<Slice> slices_;
  TableCounters counters_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_DENSE_TABLE_H_
