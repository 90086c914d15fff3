// Memory of a shard's tables: parameter buffers that can be pinned while they are written out,
// spares to update a pinned chunk out of place, accumulators, and scratch that rows and parts of
// norms are gathered in, and chunks encoded to.
//
// **Thread safety**: one owner thread.
//
// A parameter buffer is
//     current  --(apply while pinned: swapped)-->  retired  --(last unpin)-->  idle spare
//     current  --(table dropped while pinned)-->   orphan   --(last unpin)-->  freed
//     lent  --(swapped in)-->  current; the previous one is freed, or orphan until its last unpin
// and scratch memory
//     taken  --(PinScratch)-->  on its way out  --(unpin)-->  idle, or freed
//     taken  --(PinToKeep)-->  on its way out  --(last unpin)-->  kept  --(Forget)-->  idle
//     kept  --(PinAgain)-->  on its way out;  kept  --(room is wanted)-->  freed
//
// Invariants:
//  1. A pinned buffer is neither written nor freed (but see WritableFor()).
//  2. Spares (idle or retired) exceed `spare_limit` only where somebody could not wait for one;
//     accumulators are not counted.
//  3. Idle scratch, with kept buffers, never exceeds kIdleScratchBytes. Kept buffers make room for
//     idle ones, the oldest first.
//  4. A buffer in use counts against the account it was asked for; spare, idle and kept buffers
//     count against none. Accounts outlive the pool.
//  5. Memory is refused only while no scratch and no accumulator of any size is idle or kept;
//     otherwise those of other sizes would block it for good. New rows of a primary are refused
//     before that.
#ifndef VERBENA_SHARD_TABLE_BUFFER_POOL_H_
#define VERBENA_SHARD_TABLE_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shard/allocator.h"
#include "shard/job_memory.h"

namespace verbena::shard {

class BufferPool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Enough for the lookups that a few lanes have on their way; memory that idles serves no row.
  static constexpr size_t kIdleScratchBytes = size_t{32} << 20;

  // *resident_bytes is kept equal to the bytes allocated.
  BufferPool(Allocator* allocator, uint32_t spare_limit, uint64_t* resident_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Empty when there is no memory: of the server's, or of the job's. `account` may be null:
  // nobody's.
  Buffer Allocate(size_t bytes, JobAccount* account = nullptr) {
    return Take(bytes, account, MemoryUse::kTables);
  }
  // Memory for pieces of rows: Allocator::AllocateRows().
  Buffer AllocateRows(size_t bytes, size_t unit, JobAccount* account);
  void Free(const Buffer& buffer) { Release(buffer, MemoryUse::kTables); }
  // Sets the use of memory for tables, until the next call. Memory for replicas, and for
  // applies that they already have, counts against its job and is not refused for the job's limit.
  void SetFor(MemoryFor whom) {
    whom_ = whom;
    allocator_->SetFor(whom);
  }
  MemoryFor whom() const { return whom_; }
  bool ForCopies() const { return whom_ == MemoryFor::kLearner || whom_ == MemoryFor::kFollower; }
  // Allocator::RoomForRows() for the current use.
  uint64_t RoomForRows() const { return allocator_->RoomForRows(); }
  // Whether the last failure to get memory was due to the job's limit.
  bool refused_by_job() const { return refused_by_job_; }

  // Whether so many bytes for tables, in several pieces, could be had now. False is certain.
  // Sets refused_by_job().
  bool MayFit(uint64_t bytes, JobAccount* account);

  // A buffer for a chunk's parameters; kNone when there is no memory.
  uint32_t NewParameters(size_t bytes, JobAccount* account = nullptr);
  void DropParameters(uint32_t id);
  const Buffer& buffer(uint32_t id) const { return entries_[id].buffer; }

  uint64_t Pin(uint32_t id);
  // Returns whether a buffer became writable or a spare free. A pin that is none is ignored.
  bool Unpin(uint64_t pin);

  // The buffer an apply to `id` may write: `id` itself when it is not pinned, else a spare; kNone
  // when there is no spare. A spare must be passed to Swap() once it is written. `force`, for
  // callers that cannot wait: there may be more spares than the limit, and without memory for one
  // it is `id`, or with `retried` kNone.
  uint32_t WritableFor(uint32_t id, bool force = false, bool retried = false);
  // Whether callers that could not wait have made more spares than the limit.
  bool over_limit() const { return spares_ > spare_limit_; }
  // A buffer to take the place of `id`, for the current use of memory. It is none of the spares,
  // and counts against no account before it is swapped in. kNone: no memory.
  uint32_t Lend(uint32_t id);
  // `spare` takes the place of `id`, which is pinned unless the spare was lent.
  void Swap(uint32_t id, uint32_t spare);
  bool pinned(uint32_t id) const { return entries_[id].pins > 0; }

  // Scratch memory for an accumulator, not zeroed; empty when there is no memory.
  Buffer TakeAccumulator(size_t bytes, JobAccount* account = nullptr);
  void ReturnAccumulator(const Buffer& buffer);

  // Scratch memory of any size, at least `bytes`, not zeroed; empty when there is no memory.
  Buffer TakeScratch(size_t bytes, JobAccount* account = nullptr);
  void ReturnScratch(const Buffer& buffer);
  // The last Unpin() returns it.
  uint64_t PinScratch(const Buffer& buffer);
  // For content that may be wanted again: as TakeScratch(), but when idle and kept buffers have
  // reached their limit, the oldest kept buffer is freed.
  Buffer TakeToKeep(size_t bytes, JobAccount* account = nullptr);
  // PinScratch() whose content the last Unpin() keeps until there is no room.
  uint64_t PinToKeep(const Buffer& buffer);
  // Adds a pin to the content that PinToKeep() has pinned. False: it is gone, or the job's limit
  // does not allow it.
  bool PinAgain(uint64_t pin, JobAccount* account = nullptr);
  const Buffer& pinned_buffer(uint64_t pin) const { return buffer(static_cast<uint32_t>(pin)); }
  // Content that PinToKeep() has pinned will not be wanted again. An unknown pin is ignored.
  void Forget(uint64_t pin);
  // Scratch memory of exactly that size, which is not kept for others when it is given back.
  Buffer TakeExact(size_t bytes, JobAccount* account = nullptr) {
    return Take(bytes, account, MemoryUse::kScratch);
  }
  void FreeExact(const Buffer& buffer) { Release(buffer, MemoryUse::kScratch); }
  // Memory that was not had from here: bookkeeping.h.
  void Count(int64_t bytes) { allocator_->Count(bytes); }
  // The limit on all of the server's memory; 0: none.
  uint64_t limit_bytes() const { return allocator_->limit_bytes(); }

  // Frees idle buffers: their sizes may not be needed any more once a table is gone.
  void Trim();
  // Frees idle scratch and accumulators, except those that are kept. False: there are none.
  bool FreeIdle();
  // Does so after others that share the memory were refused some. Cheap: call it often.
  void FollowShortages() {
    const uint64_t now = allocator_->shortages();
    if (std::exchange(shortages_, now) != now) FreeIdle();
  }

 private:
  enum class State : uint8_t {
    kUnused,
    kCurrent,
    kRetired,
    kOrphan,
    kIdleSpare,
    kLent,
    kScratch,
    kKept
  };
  struct Entry {
    Buffer buffer;
    uint32_t pins = 0;
    uint32_t generation = 0;  // of the entry's use: a stale pin does not match
    State state = State::kUnused;
    bool keep = false;                                // kScratch: it becomes kKept
    uint32_t older_kept = kNone, newer_kept = kNone;  // kKept: by when they became that
  };

  Buffer Take(size_t bytes, JobAccount* account, MemoryUse use);
  // `made`: from the allocator, for `charged` bytes. If it is empty, the result is empty and
  // nothing is charged.
  Buffer Taken(const Buffer& charged, const Buffer& made, MemoryUse use);
  void Release(const Buffer& buffer, MemoryUse use);
  // False: the job's limit is in the way.
  bool Charge(Buffer* buffer, JobAccount* account, MemoryUse use);
  // Releases the buffer from its account.
  static Buffer Discharge(const Buffer& buffer, MemoryUse use);
  uint32_t NewEntry(const Buffer& buffer, State state);
  void FreeEntry(uint32_t id);
  void Unuse(uint32_t id);  // its buffer is somebody else's
  // The entry of a pin; null: it is none.
  Entry* Find(uint64_t pin);
  void LinkKept(uint32_t id);
  void UnlinkKept(uint32_t id);
  // So that `bytes` more may idle. False: they may not.
  bool MakeRoom(size_t bytes);
  void DropOldestKept();
  // There is no memory. False: nothing idles or is kept.
  bool GiveWay();

  Allocator* const allocator_;
  const uint32_t spare_limit_;
  uint64_t* const resident_bytes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> unused_;
  std::vector<uint32_t> idle_spares_;
  uint32_t spares_ = 0;  // idle and retired
  std::vector<Buffer> idle_accumulators_;
  std::vector<Buffer> idle_scratch_;
  size_t idle_scratch_bytes_ = 0;  // with kept buffers
  uint32_t oldest_kept_ = kNone, newest_kept_ = kNone;
  bool refused_by_job_ = false;
  uint64_t shortages_ = 0;  // of the allocator, when idle memory was last freed for them
  MemoryFor whom_ = MemoryFor::kPrimary;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_BUFFER_POOL_H_
