// Memory of a shard's tables: parameter buffers that can be pinned while they are written out,
// spares to update a pinned chunk out of place, and accumulators.
//
// **Thread safety**: one owner thread.
//
// A parameter buffer is
//     current  --(apply while pinned: swapped)-->  retired  --(last unpin)-->  idle spare
//     current  --(table dropped while pinned)-->   orphan   --(last unpin)-->  freed
//
// Invariants:
//  1. A pinned buffer is neither written nor freed.
//  2. Spares (idle or retired) never exceed `spare_limit`; accumulators are not counted.
#ifndef VERBENA_SHARD_TABLE_BUFFER_POOL_H_
#define VERBENA_SHARD_TABLE_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/allocator.h"

namespace verbena::shard {

class BufferPool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // *resident_bytes is kept at what is allocated.
  BufferPool(Allocator* allocator, uint32_t spare_limit, uint64_t* resident_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Empty when there is no memory.
  Buffer Allocate(size_t bytes);
  void Free(const Buffer& buffer);

  // A buffer for a chunk's parameters; kNone when there is no memory.
  uint32_t NewParameters(size_t bytes);
  void DropParameters(uint32_t id);
  const Buffer& buffer(uint32_t id) const { return entries_[id].buffer; }

  uint64_t Pin(uint32_t id);
  // Returns whether a buffer became writable or a spare free. A pin that is none is ignored.
  bool Unpin(uint64_t pin);

  // The buffer an apply to `id` may write: `id` itself when it is not pinned, else a spare; kNone
  // when there is no spare. A spare must be passed to Swap() once it is written.
  uint32_t WritableFor(uint32_t id);
  // `spare` takes the place of the pinned `id`.
  void Swap(uint32_t id, uint32_t spare);

  // Scratch memory for an accumulator, not zeroed; empty when there is no memory.
  Buffer TakeAccumulator(size_t bytes);
  void ReturnAccumulator(const Buffer& buffer);

  // Frees what is idle: sizes may not be needed any more once a table is gone.
  void Trim();

 private:
  enum class State : uint8_t { kUnused, kCurrent, kRetired, kOrphan, kIdleSpare };
  struct Entry {
    Buffer buffer;
    uint32_t pins = 0;
    uint32_t generation = 0;  // of the entry's use: a stale pin does not match
    State state = State::kUnused;
  };

  uint32_t NewEntry(const Buffer& buffer, State state);
  void FreeEntry(uint32_t id);

  Allocator* const allocator_;
  const uint32_t spare_limit_;
  uint64_t* const resident_bytes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> unused_;
  std::vector<uint32_t> idle_spares_;
  uint32_t spares_ = 0;  // idle and retired
  std::vector<Buffer> idle_accumulators_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_BUFFER_POOL_H_
