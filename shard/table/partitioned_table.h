// Base of dense and embedding tables: the slices that they have on this shard.
//
// **Thread safety**: one owner thread.
//
// A slice is the table's part in one partition:
//     absent   --(owned, not lost)-->  ready   (parameters initialised)
//     absent   --(no memory)------->  starved  (tried again once there is memory)
//     ready    --(lost)------------>  absent
//     ready    --(not owned)------->  gone     (answers DATA_LOSS if it comes back: its parameters
//                                              must not silently be initial ones)
//     gone     --(lost, or renewed)->  absent
#ifndef VERBENA_SHARD_TABLE_PARTITIONED_TABLE_H_
#define VERBENA_SHARD_TABLE_PARTITIONED_TABLE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/job_memory.h"
#include "shard/table/table_optimizer.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// A view's data of one partition of a table.
struct Placement {
  bool ours = false;
  bool copy = false;  // ours, and another shard is its primary
  bool lost = false;
  bool operator==(const Placement&) const = default;
};

class PartitionedTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class LocalPartitionState : uint8_t { kAbsent, kReady, kStarved, kGone };
  struct LocalPartitionLife {
    uint32_t partition = 0;
    LocalPartitionState state = LocalPartitionState::kAbsent;
  };

  virtual ~PartitionedTable() = default;
  PartitionedTable(const PartitionedTable&) = delete;
  PartitionedTable& operator=(const PartitionedTable&) = delete;

  uint32_t id() const { return id_; }
  // The account of its job; null: memory is not counted.
  JobAccount* account() const { return account_; }
  const v1::TableSpec& spec() const { return spec_; }
  uint32_t partitions() const { return static_cast<uint32_t>(slice_of_partition_.size()); }

  // kNone: the table has nothing in that partition, or never had it here.
  uint32_t slice_of(uint32_t partition) const { return slice_of_partition_[partition]; }
  const LocalPartitionLife& life(uint32_t slice) const { return lives_[slice]; }
  bool ready(uint32_t slice) const { return lives_[slice].state == LocalPartitionState::kReady; }
  // The slice's contents are lost, and nothing may replace them silently.
  bool gone(uint32_t slice) const { return lives_[slice].state == LocalPartitionState::kGone; }
  uint32_t slices() const { return static_cast<uint32_t>(lives_.size()); }

  // A replica is to be made here from nothing: frees the slice, so that Acquire() makes it again.
  void Forget(uint32_t slice) {
    if (ready(slice)) Release(slice, /*gone=*/false);
    set_state(slice, LocalPartitionState::kAbsent);
  }
  // Frees a ready slice. `gone`: it moved away, rather than being declared lost.
  virtual void Release(uint32_t slice, bool gone) = 0;
  // Whether acquired elements get their initial values, as by default. Otherwise they are zero,
  // because they are loaded before they are served.
  void set_initialises(bool initialises) { initialises_ = initialises; }
  // Initialises the absent slices that `placement` (by partition) assigns to this shard: all of
  // those that it serves, or RESOURCE_EXHAUSTED and none; then all copies, or none: LacksCopies().
  virtual absl::Status Acquire(absl::Span<const Placement> placement) = 0;
  // Whether the last Acquire() had no memory for copies. Served slices do not depend on that.
  virtual bool LacksCopies() const { return false; }
  // After a failed Acquire(): whether the same could succeed now. False is certain, and the check
  // is free.
  virtual bool MayAcquire() const { return true; }
  // Sets the version of all chunks or rows of the slice. 0: a new generation of the job, in which
  // versions restart; parameters, optimizer state and changed values of the optimizer stay.
  virtual void SetVersions(uint32_t slice, uint64_t version) = 0;

  // The least version in the slice; UINT64_MAX: it is empty.
  virtual uint64_t version(uint32_t slice) const = 0;

  // Bytes of parameters, without optimizer state.
  virtual uint64_t parameter_bytes() const = 0;
  // Rows of an embedding table.
  virtual uint64_t row_count() const { return 0; }
  TableOptimizer& optimizer() { return optimizer_; }
  const TableOptimizer& optimizer() const { return optimizer_; }
  TableCounters& counters() { return counters_; }
  const TableCounters& counters() const { return counters_; }

 protected:
  PartitionedTable(const v1::Table& table, uint32_t partitions, JobAccount* account,
                   std::unique_ptr<Optimizer> optimizer)
      : id_(table.id()),
        spec_(table.spec()),
        account_(account),
        optimizer_(spec_.optimizer(), std::move(optimizer)),
        slice_of_partition_(partitions, kNone) {}
  bool initialises() const { return initialises_; }

  // The slice of a partition, created if there was none, if it is ready or may become so according
  // to the view; else kNone.
  uint32_t Claim(uint32_t partition, const Placement& placement);
  void set_state(uint32_t slice, LocalPartitionState state) {
    if (lives_[slice].state != state) optimizer_.Forget(slice);
    lives_[slice].state = state;
  }

 private:
  const uint32_t id_;
  const v1::TableSpec spec_;
  JobAccount* const account_;
  TableOptimizer optimizer_;
  std::vector<uint32_t> slice_of_partition_;
  std::vector<LocalPartitionLife> lives_;
  bool initialises_ = true;
  TableCounters counters_;
};

// INVALID_ARGUMENT for a table that no shard of this kind can have.
absl::Status CheckServable(const v1::Table& table);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_PARTITIONED_TABLE_H_
