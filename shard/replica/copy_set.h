// The replicas of one partition as its primary knows them: how far each of them has the log, which
// one is learning and how far its catch-up is, and which ones requests wait for.
//
// A partition has at most one learner at a time, and so one cursor. A replica is
//     none  --(follower of a partition without a past, or of the primary before)-->  required
//     none  --(learner)-->  learning  --(it has everything)-->  required
//     learning, required  --(the view has it no more)-->  none: requests do not wait for it
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Of a replica, released <= sent and acked <= sent. Records up to `sent` were handed over to
//  it;
//     those behind max(acked, released) may still be read for it.
//  2. Memory that a former replica may still read is named by Readers() until it is released.
#ifndef VERBENA_SHARD_REPLICA_COPY_SET_H_
#define VERBENA_SHARD_REPLICA_COPY_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class CopySet {
 public:
  // How far a replica has been compared with this primary (proofs.h).
  struct Proof {
    uint32_t table = 0;
    uint32_t chunk = 0;  // next local chunk of the table
    uint32_t row = 0;    // next row of the slice
  };
  // How far a learner has received the content from before its time (catch_up.h).
  struct Cursor {
    // A slice that the learner has been sent (kBeginPartition), and not yet all of its contents.
    struct LocalPartition {
      // Rows from rows_end on were made after kBeginPartition, so that the learner makes them, too;
      // up to rows_made it was sent their keys.
      uint32_t rows_end = 0, rows_made = 0;
      // The slice was lost and reset meanwhile: nothing more is to be sent.
      bool reset = false;
    };
    bool may_copy = false;    // all that was added before kBegin is applied
    uint32_t last_table = 0;  // of greater ids it knows everything: they came after it
    uint32_t table = 0;       // being copied
    // By table, from `table` on. Usually that one alone; a slice that pushes make rows of does not
    // wait for its turn.
    std::map<uint32_t, LocalPartition> slices;
    uint32_t chunk = 0;  // next local chunk of the table
    uint32_t row = 0;    // next row of the slice
    bool complete = false;
    // The learner's kBegin; entries added before it are applied before anything is read.
    uint64_t begin = 0;
    uint64_t appended = 0;  // the last record that was made for it alone
    uint64_t end = 0;       // its kComplete
    uint32_t waits = 0;     // turns in which nothing was sent, because applies were in flight
    uint64_t copied_bytes = 0;
    uint64_t total_bytes = 0;
    bool begun_as_learner = false;
    Proof proof;          // begins when everything was sent
    bool proved = false;  // it has ended

    // Rows of the table that were not sent yet are.
    bool sends(uint32_t id) const {
      const auto slice = slices.find(id);
      return !complete && slice != slices.end() && !slice->second.reset;
    }
    // The learner has received the table's slice, or will not have to.
    bool Covers(uint32_t id) const {
      return complete || id > last_table || id < table || slices.contains(id);
    }
    // Covers() for a chunk, by its local index.
    bool Covers(uint32_t id, uint32_t local) const;
    void NextTable(uint32_t id) {
      table = id;
      slices.erase(slices.begin(), slices.lower_bound(id));
      chunk = row = 0;
    }
  };

  // A replica of the view: since that configuration it is one.
  struct CopyOf {
    CopyId id;
    uint64_t since = 0;
    bool learner = false;
    bool kept = false;        // a follower of the primary before, as this shard was
    uint64_t last_epoch = 0;  // kept: in which this shard received its last record
    Buffer tail = {};         // kept: payload of its kBegin, scratch; may be empty
    uint32_t tail_bytes = 0;
  };
  struct Copy {
    CopyId id;
    uint64_t since = 0;
    uint64_t begin = 0;     // its kBegin
    bool complete = false;  // it is no learner (any more)
    bool required = false;  // requests wait for it
    bool differs = false;   // an apply of it is not here
    uint64_t sent = 0;
    uint64_t acked = 0;
    uint64_t released = 0;  // up to it, and behind `sent`, nothing is read for it
  };

  bool empty() const { return copies_.empty(); }
  size_t size() const { return copies_.size(); }
  std::vector<Copy>::const_iterator begin() const { return copies_.begin(); }
  std::vector<Copy>::const_iterator end() const { return copies_.end(); }
  // Null: there is none.
  const Copy* Find(const CopyId& id) const;
  const Copy* Learner() const;

  // Whether requests wait for one of them.
  bool required() const { return required_; }
  bool learning() const { return Learner() != nullptr; }
  bool Learns(const CopyId& id) const {
    const Copy* const learner = Learner();
    return learner != nullptr && learner->id == id;
  }
  // Whether the replica was a learner and has not answered everything that makes it a follower.
  bool CatchesUp(const Copy& copy) const {
    return !copy.complete || (copy.begin == cursor_.begin && copy.acked < cursor_.end);
  }
  // There are replicas, and all have what they need to be followers.
  bool CaughtUp() const {
    return !copies_.empty() && cursor_.complete && acknowledged() >= cursor_.end;
  }
  // Whether the learner has all records that were made for it.
  bool LearnerIsUpToDate() const { return Learner()->acked >= cursor_.appended; }
  bool Differs(const CopyId& id) const {
    const Copy* const copy = Find(id);
    return copy != nullptr && copy->differs;
  }
  bool AnyDiffers() const;
  // All replicas have the records up to it. UINT64_MAX: there are none.
  uint64_t acknowledged() const;
  // As acknowledged(), of the required ones.
  uint64_t committed() const;
  // Of the learner, or of the last one.
  Cursor& cursor() { return cursor_; }
  const Cursor& cursor() const { return cursor_; }

  // ---- changes ----
  // Removes those that are not in `copies`, and returns them.
  std::vector<CopyId> Keep(absl::Span<const CopyOf> copies);
  // The next record, `begin`, is its kBegin. last_table: the greatest table id so far.
  void Add(const CopyOf& copy, uint64_t begin, uint32_t last_table);
  // Records added from now on do not count before the replica has them.
  void Require(const CopyId& id);
  // `end` is the learner's kComplete: it is a replica that is waited for.
  void CompleteLearner(uint64_t end);
  // They have applied what will not be applied here.
  void AllDiffer() {
    for (Copy& copy : copies_) copy.differs = true;
  }
  // Records in flight to any replica are not waited for any more.
  void LeaveAll() {
    for (const Copy& copy : copies_) Leave(copy);
  }

  // ---- the link ----
  // The next record is handed over to that replica. Returns its sequence.
  uint64_t HandOver(const CopyId& id);
  // Whether it had the record; false: the answer is late.
  bool Answered(const CopyId& id, uint64_t sequence);
  // The replica reads nothing of the records up to `sequence`, whatever it answered; UINT64_MAX: of
  // any.
  void Released(const CopyId& id, uint64_t sequence);
  // Records that it has not answered are handed over again. False: there are none.
  bool Rewind(const CopyId& id);
  // Former replicas that may still read the record.
  std::vector<CopyId> Readers(uint64_t sequence) const;

 private:
  // A former replica: records first..last may be on their way to it.
  struct Former {
    CopyId id;
    uint64_t first, last;
  };

  Copy* FindMutable(const CopyId& id) { return const_cast<Copy*>(Find(id)); }
  void Leave(const Copy& copy);

  std::vector<Copy> copies_;
  std::vector<Former> former_;
  bool required_ = false;
  Cursor cursor_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPY_SET_H_
