// Progress of the restore of this shard's part of a table.
//
// **Thread safety**: one owner thread.
//
// A slice is
//     empty  --(ranges or rows are loaded)-->  empty, in part  --(FinishRestore())-->  finished
//     finished, empty  --(a new epoch, or it has come from elsewhere)-->  empty
//     empty  --(the replica becomes primary)-->  inherited  --(a restore is begun)-->  empty
#ifndef VERBENA_SHARD_CHECKPOINT_RESTORE_H_
#define VERBENA_SHARD_CHECKPOINT_RESTORE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "shard/checkpoint/types.h"

namespace verbena::shard {

// A set of ranges of numbers, added in any order and possibly again.
class Ranges {
 public:
  void Add(uint32_t begin, uint32_t end);
  uint32_t covered() const { return covered_; }

 private:
  std::map<uint32_t, uint32_t> ends_;  // by begin; apart from each other
  uint32_t covered_ = 0;
};

class Restore {
 public:
  bool begun() const { return begun_; }
  const RestoreRequest& request() const { return request_; }
  void Begin(const RestoreRequest& request) {
    request_ = request;
    begun_ = true;
    for (LocalPartition& slice : slices_) slice.inherited = false;
  }

  // Adds elements of a chunk, by its number in the table. Returns the number of loaded ones.
  uint32_t Loaded(uint32_t slice, uint32_t chunk, uint32_t begin, uint32_t end) {
    Ranges& ranges = at(slice).chunks[chunk];
    ranges.Add(begin, end);
    return ranges.covered();
  }
  uint32_t loaded(uint32_t slice, uint32_t chunk) {
    const auto& chunks = at(slice).chunks;
    const auto it = chunks.find(chunk);
    return it == chunks.end() ? 0 : it->second.covered();
  }
  // The complete chunk was replicated.
  void SetReplicated(uint32_t slice, uint32_t chunk) { at(slice).appended.insert(chunk); }
  bool appended(uint32_t slice, uint32_t chunk) { return at(slice).appended.contains(chunk); }
  void SetFinished(uint32_t slice, uint64_t last_record) {
    at(slice).finished = true;
    at(slice).last_record = last_record;
  }
  bool finished(uint32_t slice) const { return slice < slices_.size() && slices_[slice].finished; }
  // The slice's partition was lost, and was reset after the table was served: it has initial
  // values.
  void SetReset(uint32_t slice) { at(slice).reset = true; }
  bool reset(uint32_t slice) const { return slice < slices_.size() && slices_[slice].reset; }
  // The last record in the replica log that the replica needs.
  uint64_t last_record(uint32_t slice) { return at(slice).last_record; }
  void Forget(uint32_t slice) { at(slice) = {}; }
  // The slice was the replica of a primary that is gone. Until a restore begins here, a report that
  // all is loaded comes from that primary, whose replica had all of it.
  void Inherit(uint32_t slice) { at(slice).inherited = true; }
  bool inherited(uint32_t slice) const {
    return slice < slices_.size() && slices_[slice].inherited;
  }

 private:
  struct LocalPartition {
    std::map<uint32_t, Ranges> chunks;
    absl::flat_hash_set<uint32_t> appended;
    bool finished = false, inherited = false, reset = false;
    uint64_t last_record = 0;
  };
  LocalPartition& at(uint32_t slice) {
    if (slice >= slices_.size()) slices_.resize(slice + 1);
    return slices_[slice];
  }

  bool begun_ = false;
  RestoreRequest request_;
  std::vector<LocalPartition> slices_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_RESTORE_H_
