// A job's members in the latest view: which workers count in a step, which may push.
//
// **Thread safety**: one owner thread.
//
// A rank slot: empty (its worker has not joined: waited for), live, or departed (not waited for).
// In an elastic job (Job.max_workers), departed slots are given to workers that join a run: such a
// worker is waited for from its first step of each table on, and departed before.
#ifndef VERBENA_SHARD_PARTITION_MEMBERS_H_
#define VERBENA_SHARD_PARTITION_MEMBERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

class Members {
 public:
  static constexpr uint32_t kNoIndex = UINT32_MAX;
  struct Member {
    int32_t rank;            // -1: an observer. async jobs: may be ranks() or more (joined late)
    uint32_t index;          // dense, reused after the worker is gone; kNoIndex: an observer
    bool may_write = false;  // an observer: may change values of optimizers
    bool joining = false;    // it gets its rank in a later view
  };

  enum class Change : uint8_t {
    kNone,       // also where observers have joined: nothing is kept of them
    kObservers,  // some have left
    kMembers,
    kGeneration,  // everything per step is void
  };
  Change Update(const v1::Job& job);
  // The view has no such job (any more).
  Change Clear();

  bool known() const { return known_; }
  uint32_t generation() const { return generation_; }
  // Null: not a member.
  const Member* Find(uint64_t incarnation) const {
    const auto it = members_.find(incarnation);
    return it == members_.end() ? nullptr : &it->second;
  }
  uint32_t expected() const { return expected_; }
  // Ranks of sync steps are lower: expected(), or the workers that an elastic job may have.
  uint32_t ranks() const { return static_cast<uint32_t>(slots_.size()); }
  bool departed(uint32_t rank) const { return slots_[rank].departed; }
  // The first step of the table that waits for the rank's worker.
  uint64_t first_step(uint32_t rank, uint32_t table) const;
  // Job.admission in this view. A record of a step with a greater one must wait for that view.
  uint32_t admission() const { return admission_; }
  // The live incarnation of a rank; 0: none.
  uint64_t owner(uint32_t rank) const { return slots_[rank].incarnation; }
  // Whether a worker of the run lives. Without one no incomplete step of it is applied.
  bool any_live() const {
    return std::any_of(slots_.begin(), slots_.end(),
                       [](const Slot& s) { return s.incarnation != 0; });
  }
  // The worker that has an index; 0: none.
  uint64_t index_owner(uint32_t index) const { return index_owners_[index]; }
  uint32_t indices() const { return static_cast<uint32_t>(index_owners_.size()); }

 private:
  struct Slot {
    uint64_t incarnation = 0;
    bool departed = false;
    uint32_t admission = 0;
    bool operator==(const Slot&) const = default;
  };

  bool known_ = false;
  uint32_t generation_ = 0;
  uint32_t expected_ = 0;
  uint32_t admission_ = 0;
  std::vector<Slot> slots_;
  // First steps by admission and table.
  absl::flat_hash_map<uint32_t, absl::flat_hash_map<uint32_t, uint64_t>> first_steps_;
  std::vector<uint64_t> index_owners_;
  absl::flat_hash_map<uint64_t, Member> members_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_MEMBERS_H_
