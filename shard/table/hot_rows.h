// The hot part of an embedding table with a cold tier: contents of rows in memory, in frames, and
// the waits for rows that are not in memory.
//
// A row's content is
//     fresh  --(written)-->  hot     (no frame: the initializer gives its content)
//     hot  --(its frame is wanted, the store has it)-->  cold
//     cold  --(read)-->  hot
// A frame can be reassigned when its row was not requested since the hand's last pass (CLOCK:
// Corbato 1968). A changed frame is written ahead of need, and stays unchanged until the write is
// done. So a row that is not in memory can always be read, and a store that cannot write loses
// nothing.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A row is cold only when the store has confirmed that it has the content.
//  2. A pinned frame keeps its row. A row that is dropped leaves its frame to the holder of the
//     pin.
//  3. Waits get frames in turn, as long as their rows together are at most half of the frames; the
//     first proceeds whatever its rows are. So each wait ends, once the store completes its
//     operations.
//  4. There are no more frames than the share, except for callers that cannot wait (`force`), and
//     until a reduced share is reached. There are as many frames as there are rows, or as the
//     limit: the share, or as many as memory allowed.
//  5. Prefetched rows take frames only while no request waits for one; if there are too many, they
//     are dropped.
//  6. Writes that the store has not reported are at most as many as there are frames, including
//     rows that were dropped meanwhile.
#ifndef VERBENA_SHARD_TABLE_HOT_ROWS_H_
#define VERBENA_SHARD_TABLE_HOT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "shard/kernel/prefetch.h"
#include "shard/table/bookkeeping.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/cold_io.h"

namespace verbena::shard {

class RowStore;

class HotRows {
 public:
  // The frame of a row without one.
  static constexpr uint32_t kCold = UINT32_MAX;
  static constexpr uint32_t kFresh = UINT32_MAX - 1;
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Need {
    RowStore* rows;
    uint32_t row;
  };

  // `least`: the minimum of frames, whatever the share. `io` and `pool` outlive it.
  HotRows(size_t content_bytes, uint32_t least, uint64_t hot_bytes, ColdIo* io, BufferPool* pool,
          JobAccount* account);
  ~HotRows();
  HotRows(const HotRows&) = delete;
  HotRows& operator=(const HotRows&) = delete;

  // The number of partitions on this shard, and of all partitions.
  void SetShare(uint64_t partitions, uint64_t all);
  // The most rows that an operation may name: half of the frame limit.
  uint32_t most() const { return limit_ / 2; }
  uint64_t limit_bytes() const { return uint64_t{limit_} * content_bytes_; }
  uint64_t bytes() const { return uint64_t{frame_count()} * content_bytes_; }
  uint32_t hot_rows() const { return frame_count() - static_cast<uint32_t>(free_.size()); }
  // True: callers that add rows without waiting for frames must hold back.
  bool behind() const { return frame_count() > limit_ + limit_ / 4 + block_mask_ + 1; }
  ColdIo& io() { return io_; }
  size_t content_bytes() const { return content_bytes_; }

  // ---- rows, by row_store.cc ----
  // Reserves frames for so many new rows. False: no memory for them.
  bool Reserve(uint64_t more);
  void Made() { ++rows_; }
  void Gone(uint64_t rows) { rows_ -= rows; }
  uint32_t NewLife() { return io_.NewLife(this); }
  // The rows of that store are gone, with their life.
  void Leave(RowStore* rows);
  // A row with a frame is gone.
  void Drop(uint32_t frame);
  // A row without a frame is gone, or is about to be written: its pending reads are dropped.
  void ForgetRead(RowStore* rows, uint32_t row);
  std::byte* at(uint32_t frame) const {
    return blocks_[frame >> block_shift_].data + size_t{frame & block_mask_} * content_bytes_;
  }
  void SetDirty(uint32_t frame) { frames_[frame].dirty = true; }
  void Prefetch(uint32_t frame) const {
    if (frame < frame_count()) PrefetchToWrite(at(frame));
  }
  // A frame for a row without one; its contents are undefined. kNone: no memory.
  uint32_t Take(RowStore* rows, uint32_t row);

  // ---- waits (hot_rows_waits.cc) ----
  // Makes all of these rows hot together; fresh ones only if they are written. Missing rows are
  // ignored. Returns a number for ready() and Release().
  uint64_t Want(std::vector<Need> needs, bool writes);
  // Rows are hot, and stay so until Release().
  bool ready(uint64_t wait) const;
  void Release(uint64_t wait);
  uint32_t waiting() const { return waiting_; }
  // Makes rows hot at once, beyond the limits if necessary, and *wait one that is ready.
  absl::Status Hold(RowStore* rows, absl::Span<const uint32_t> which, uint64_t* wait);
  void Touch(uint32_t frame) {
    if (frame < frame_count()) frames_[frame].referenced = true;
  }
  // A row that will be used in a moment: it is read now, or when it is used.
  void Fetch(RowStore* rows, uint32_t row);
  // Prefetch: these rows stay in memory for longer, or are read when the disk and frames are free.
  void Prefetch(RowStore* rows, absl::Span<const uint32_t> which);

  // ---- by ColdIo ----
  void OnWritten(uint64_t key, uint64_t cookie);
  void OnRead(uint64_t key, uint64_t cookie, const absl::Status& status,
              absl::Span<const std::byte> content);
  // Gives freed frames to waiting requests.
  void Advance();

 private:
  struct Frame {
    RowStore* rows = nullptr;  // null: free, or left to the holder of its pin
    uint32_t row = 0;
    uint32_t pins = 0;
    uint32_t write = 0;  // number of the current write; 0: none
    bool used = false;
    bool reading = false;
    bool referenced = false;
    bool dirty = false;
  };
  struct Reading {
    uint32_t frame = 0;
    uint64_t cookie = 0;
    std::vector<uint64_t> waits;
  };
  struct Wait {
    std::vector<Need> needs;
    size_t next = 0;             // needs before are pinned, or need nothing
    uint32_t reads = 0;          // that it waits for
    std::vector<uint32_t> pins;  // frames
    bool writes = false;
    bool admitted = false;
    bool ready = false;
  };

  uint32_t frame_count() const { return static_cast<uint32_t>(frames_.size()); }
  bool NewBlock();
  // Adds frames for so many rows, up to the share. False: there is no memory for them.
  bool Grow(uint64_t rows);
  // Frames that are reserved to become free.
  uint32_t Reserved() const;
  // Moves the hand until so many are free.
  void Refill();
  void StepHand();
  void Write(uint32_t frame);
  // Frees the frame; its row's content is in the store.
  void Evict(uint32_t frame);
  void Free(uint32_t frame);
  uint32_t Obtain(bool force);
  // Moves to a free frame.
  void Move(uint32_t from);
  // Releases blocks until the share is reached.
  void Shrink();
  void Pin(uint32_t frame, Wait* wait);
  void Unpin(uint32_t frame);
  // Continues the wait as far as there are frames.
  void Go(uint64_t id, Wait* wait);
  bool GoOne(uint64_t id, Wait* wait, const Need& need, bool force);
  Reading* StartRead(RowStore* rows, uint32_t row, bool force);
  void Admit();
  void FetchPrefetched();
  void Count();

  const size_t content_bytes_;
  const uint32_t least_;
  const uint64_t hot_bytes_;
  ColdIo& io_;
  BufferPool& pool_;
  JobAccount* const account_;
  uint32_t block_shift_ = 0;
  uint32_t block_mask_ = 0;
  uint32_t share_;  // frames
  uint32_t limit_;  // frames: the share, or as many as memory allowed
  uint64_t rows_ = 0;
  std::vector<Buffer> blocks_;
  std::vector<Frame> frames_;
  std::vector<uint32_t> free_;
  uint32_t hand_ = 0;
  bool stuck_ = false;  // the hand has come around in vain, and nothing has changed since
  uint32_t writing_ = 0;
  absl::flat_hash_map<uint32_t, uint64_t> unreported_;  // writes, by life
  uint64_t all_unreported_ = 0;
  uint32_t last_write_ = 0;
  uint64_t last_read_ = 0;
  absl::flat_hash_map<uint64_t, Reading> reading_;  // by key
  std::map<uint64_t, Wait> waits_;                  // in turn
  std::deque<uint64_t> queue_;                      // those that are not admitted
  std::vector<uint64_t> stalled_;                   // admitted, without a frame for the next row
  std::deque<Need> intended_;                       // cold ones, in turn
  uint64_t last_wait_ = 0;
  uint64_t admitted_rows_ = 0;
  uint32_t waiting_ = 0;  // not ready
  Bookkeeping bookkeeping_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_HOT_ROWS_H_
