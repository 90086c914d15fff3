// What a dense and an embedding table have in common: the slices that they have on this shard.
//
// **Thread safety**: one owner thread.
//
// A slice is what the table has in one partition:
//     absent   --(owned, not lost)-->  ready   (parameters initialised)
//     absent   --(no memory)------->  starved  (tried again with a view, once there is memory)
//     ready    --(lost)------------>  absent
//     ready    --(not owned)------->  gone     (answers DATA_LOSS should it come back: its
//                                              parameters must not silently be initial ones)
//     gone     --(lost, or renewed)->  absent
#ifndef VERBENA_SHARD_TABLE_SLICED_TABLE_H_
#define VERBENA_SHARD_TABLE_SLICED_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/engine.h"
#include "shard/job_memory.h"

namespace verbena::shard {

// What a view says of one partition of a table.
struct Placement {
  bool ours = false;
  bool lost = false;
  bool operator==(const Placement&) const = default;
};

class SlicedTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class SliceState : uint8_t { kAbsent, kReady, kStarved, kGone };
  struct SliceLife {
    uint32_t partition = 0;
    SliceState state = SliceState::kAbsent;
  };

  virtual ~SlicedTable() = default;
  SlicedTable(const SlicedTable&) = delete;
  SlicedTable& operator=(const SlicedTable&) = delete;

  uint32_t id() const { return id_; }
  // What its job has; null: nobody counts.
  JobAccount* account() const { return account_; }
  const v1::TableSpec& spec() const { return spec_; }
  uint32_t partitions() const { return static_cast<uint32_t>(slice_of_partition_.size()); }

  // kNone: the table has nothing in that partition, or never had it here.
  uint32_t slice_of(uint32_t partition) const { return slice_of_partition_[partition]; }
  const SliceLife& life(uint32_t slice) const { return lives_[slice]; }
  bool ready(uint32_t slice) const { return lives_[slice].state == SliceState::kReady; }
  // What was here is not any more, and nothing may pass for it.
  bool gone(uint32_t slice) const { return lives_[slice].state == SliceState::kGone; }
  uint32_t slices() const { return static_cast<uint32_t>(lives_.size()); }

  // A copy is to be made here from nothing: frees the slice, so that Acquire() makes it again.
  void Forget(uint32_t slice) {
    if (ready(slice)) Release(slice, /*gone=*/false);
    set_state(slice, SliceState::kAbsent);
  }
  // Frees a ready slice. `gone`: it moved away, rather than being declared lost.
  virtual void Release(uint32_t slice, bool gone) = 0;
  // Whether elements that are acquired get their initial values, as at first; else they are zero,
  // for they are loaded before they are served.
  void set_initialises(bool initialises) { initialises_ = initialises; }
  // Initialises what `placement` (by partition) gives us and is absent: all of it, or
  // RESOURCE_EXHAUSTED and none of it.
  virtual absl::Status Acquire(absl::Span<const Placement> placement) = 0;
  // After an Acquire() that failed: whether the same could succeed now. False is certain, and costs
  // nothing.
  virtual bool MayAcquire() const { return true; }
  // Of all there is in the slice. 0: a new generation of the job, in which versions restart;
  // parameters and optimizer state stay.
  virtual void SetVersions(uint32_t slice, uint64_t version) = 0;

  // That all there is in the slice has at least; UINT64_MAX: nothing is.
  virtual uint64_t version(uint32_t slice) const = 0;

  // Of parameters, without optimizer state.
  virtual uint64_t parameter_bytes() const = 0;
  // Of an embedding table.
  virtual uint64_t row_count() const { return 0; }
  TableCounters& counters() { return counters_; }
  const TableCounters& counters() const { return counters_; }

 protected:
  SlicedTable(const v1::Table& table, uint32_t partitions, JobAccount* account)
      : id_(table.id()),
        spec_(table.spec()),
        account_(account),
        slice_of_partition_(partitions, kNone) {}
  bool initialises() const { return initialises_; }

  // The slice of a partition, made when there was none, if it is ready or may become so by what
  // the view says; else kNone.
  uint32_t Claim(uint32_t partition, const Placement& placement);
  void set_state(uint32_t slice, SliceState state) { lives_[slice].state = state; }

 private:
  const uint32_t id_;
  const v1::TableSpec spec_;
  JobAccount* const account_;
  std::vector<uint32_t> slice_of_partition_;
  std::vector<SliceLife> lives_;
  bool initialises_ = true;
  TableCounters counters_;
};

// INVALID_ARGUMENT for what no table of this shard can have.
absl::Status CheckServable(const v1::Table& table);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_SLICED_TABLE_H_
