// The replication log of this shard as primary: records for replicas of its partitions, in order
// and in memory of its own, until the replicas have them.
//
// A partition has up to two replicas elsewhere, at most one of which is learning (copy_set.h,
// docs/decisions/0012-replication.md).
//
// An apply (shard/partition) first asks for the mode. Without replicas (kAlone) it applies. With a
// learner only (kForward) it appends the record and applies at once. With a required replica
// (kRequired) it appends the record and applies when Replicated() is called, after the answers of
// all required ones. The worker's request is answered when both are done: its waiter is kept with
// the entry.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A partition's sequences are 1, 2, 3, ... over its life, whichever shard is primary. Each
//     replica receives them in order, and again from the first unanswered one after its link was
//     lost. A record that is not for a replica reaches it as kNothing: what catches a learner up is
//     not for followers, and changes that a learner receives as contents later are not for it.
//  2. The log owns the memory of an entry's record, which does not change once it is appended.
//  3. Replicated() is called once for each entry that was appended in kRequired, in order, unless
//     Clear() took it.
//  4. Memory of sent data stays unchanged until Released() or ForgetCopy(), also when it is not
//     needed.
//  5. A waiter is answered once: when its entry is applied here and on all required replicas, or
//     with the reason for which that will not be; never after ForgetLane().
//  6. Bytes in the log are bounded (ReplicaLogLimits). Records that workers cause and records that
//     catch a learner up each have a share, and exceed it by at most one entry. An apply asks
//     HasRoom() first; changes by a view are noted, and added when there is room (notes.h). Each
//     replica has one kBegin and one kComplete. Neither kind can take the other's share, so both go
//     on while a replica answers. An entry counts until its memory is free.
#ifndef VERBENA_SHARD_REPLICA_LOG_H_
#define VERBENA_SHARD_REPLICA_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"
#include "shard/replica/copy_rooms.h"
#include "shard/replica/copy_set.h"
#include "shard/replica/log_room.h"
#include "shard/replica/notes.h"
#include "shard/replica/waiters.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class ReplicaLog {
 public:
  enum class Mode : uint8_t { kAlone, kForward, kRequired };

  // Makes an entry and applies it.
  class Owner {
   public:
    // All required replicas have the entry. `local`: as it was appended.
    virtual void Replicated(uint32_t local, uint64_t sequence) = 0;

   protected:
    ~Owner() = default;
  };

  ReplicaLog(BufferPool* pool, EngineContext* sink, const ReplicaLogLimits& limits)
      : pool_(*pool), sink_(*sink), room_(limits), waiting_(sink) {}
  ~ReplicaLog();

  // ---- replicas of partitions ----
  void Resize(uint32_t partitions) { partitions_.resize(partitions); }
  // This shard is the partition's primary, in that epoch, after `sequence` records.
  void Lead(uint32_t partition, uint64_t epoch, uint64_t sequence);
  // Not any more: waiters are answered `why`, entries are gone.
  void Clear(uint32_t partition, ReplyStatus why);
  bool leads(uint32_t partition) const { return partitions_[partition].leads; }
  uint64_t epoch(uint32_t partition) const { return partitions_[partition].epoch; }
  uint64_t last(uint32_t partition) const { return partitions_[partition].next - 1; }

  // Sets the partition's replicas. last_table: the greatest table id so far. Returns which are new.
  // Those that stay keep their state, also as learners that have become followers.
  struct NewCopies {
    bool learner = false, follower = false, kept = false;
  };
  NewCopies SetCopies(uint32_t partition, absl::Span<const CopySet::CopyOf> copies,
                      uint32_t last_table);
  const CopySet& copies(uint32_t partition) const { return partitions_[partition].copies; }
  CopySet::Cursor& cursor(uint32_t partition) { return partitions_[partition].copies.cursor(); }
  // The memory that the rows of a learner that has just begun will take.
  void Expect(uint32_t partition, uint64_t bytes);
  // Whether all that was added before the learner's kBegin is applied.
  bool MayCopy(uint32_t partition);
  // Ends the catch-up of a learner; it counts once it has all records added up to now.
  void Complete(uint32_t partition);

  // ---- applies ----
  Mode mode(uint32_t partition) const {
    const Partition& p = partitions_[partition];
    if (p.copies.empty()) return Mode::kAlone;
    return p.copies.required() ? Mode::kRequired : Mode::kForward;
  }
  // Whether a replica has received the table's slice in that partition, or will not have to.
  bool Replicated(uint32_t partition, uint32_t table) const;
  // Replicated() for a chunk, by its local index.
  bool Replicated(uint32_t partition, uint32_t table, uint32_t chunk) const;

  struct Append {
    uint32_t table = 0;
    uint32_t partition = 0;
    uint32_t index = 0;  // chunk of the table
    ReplicaHeader header = {};
    Buffer data;                          // taken over; may be empty
    const std::byte* borrowed = nullptr;  // failpoint: bytes sent in its place
    bool accumulator = false;             // data is one, rather than scratch
    bool for_learner = false;             // for the learner alone
    bool pass_learner = false;            // not for it: it receives contents of a later time
    Owner* owner = nullptr;               // null: nothing is to be applied here
    uint32_t local = 0;                   // kDense, kChunk: local index of the chunk
    // The request waits until the entry is applied here, even without a replica: a partition
    // without one gets an entry that is sent nowhere.
    bool waits = false;
  };
  // A view has changed that of the table: a record without data that nobody applies here, added now
  // or when there is room. Before it no other record of the partition's applies is added.
  void Note(uint32_t partition, uint32_t table, const ReplicaHeader& header);
  // Adds noted records, as far as there is room. Otherwise HasRoom() does it.
  void AddNotes();
  // Until they are added, the replica does not know all of the view's changes.
  bool HasNotes(uint32_t partition) const { return !partitions_[partition].notes.empty(); }
  // Whether there are some that the learner has to pass by: until they are added, it receives no
  // contents of another table.
  bool HasNotesForOthers(uint32_t partition) const {
    return partitions_[partition].notes.any_passes_learner();
  }
  // The table is no more.
  void ForgetNotes(uint32_t table);
  // Adds an entry and returns its sequence. header.total_bytes of data are sent. If a worker's
  // request is being handled, it waits for the entry.
  uint64_t Add(Append append);
  const std::byte* data(uint32_t partition, uint64_t sequence) const {
    return Find(partition, sequence)->data.data;
  }
  const ReplicaHeader& header(uint32_t partition, uint64_t sequence) const {
    return Find(partition, sequence)->header;
  }
  // Whether all entries of the table in that partition are applied here: the content is then equal
  // to the replica's after the last record. The second function: for a chunk of the table.
  bool AllApplied(uint32_t partition, uint32_t table) const;
  bool AllApplied(uint32_t partition, uint32_t table, uint32_t chunk) const;
  // The owner has applied it.
  void Applied(uint32_t partition, uint64_t sequence);
  // The owner is gone, or will not apply anything before this: entries of the table are done here.
  void Disown(uint32_t table, uint32_t partition);
  // The owner cannot apply a record that was sent to replicas: its waiters are answered `why`, and
  // the replicas differ from this primary until others replace them.
  void Abandon(uint32_t table, uint32_t partition, ReplyStatus why);

  // ---- reads ----
  // The table's entries in that partition are about to be applied although followers may not have
  // them: reads of it wait until they do, or until they are no followers.
  void HoldReads(uint32_t table, uint32_t partition);
  // Whether the table's content here may be read: no failover takes it back.
  bool MayRead(uint32_t partition, uint32_t table) const;

  // Records up to it are on all followers and applied here, and this shard may read them; 0: it
  // may not read.
  uint64_t Settled(uint32_t partition);
  // Whether all changes of chunks that reads show here are on all followers. Changes by a view show
  // before.
  bool AppliedIsCommitted(uint32_t partition) const;

  // ---- room ----
  // Whether an apply may add an entry now. A partition without a replica always has room. False:
  // wait until TakeRoom(). Once a caller was refused, later callers are refused too, until a
  // quarter of the share is free: requests that wait are then first.
  bool HasRoom(uint32_t partition);
  // HasRoom() for records that catch a learner up, added between BeginCatchUp() and EndCatchUp().
  bool HasRoomToCatchUp(uint32_t partition) const {
    return room_.HasRoomToCatchUp(partitions_[partition].room);
  }
  void BeginCatchUp() { catching_up_ = true; }
  void EndCatchUp() { catching_up_ = false; }
  // Before Seal(): pushes that would begin a step of a sync table are refused, those to steps that
  // have begun are taken.
  void Close(uint32_t partition) { partitions_[partition].closing = true; }
  bool closing(uint32_t partition) const { return partitions_[partition].closing; }
  // Ends applies and reads of a partition that is handed over: they wait, or are refused, until
  // another shard leads it or Unseal().
  void Seal(uint32_t partition) { partitions_[partition].sealed = true; }
  void Unseal(uint32_t partition) {
    partitions_[partition].sealed = partitions_[partition].closing = false;
    room_.Open();
  }
  bool sealed(uint32_t partition) const { return partitions_[partition].sealed; }
  // Whether all that was applied before Seal() is applied here and on all replicas.
  bool Drained(uint32_t partition) const {
    return partitions_[partition].entries.empty() && partitions_[partition].notes.empty();
  }
  // Whether new applies of the partition wait, so that those in flight end and catch-up finds it at
  // its last record.
  void Quieten(uint32_t partition, bool quiet) {
    if (std::exchange(partitions_[partition].quiet, quiet) && !quiet) room_.Open();
  }
  // Whether there may be room since the last call where there was none. No call that makes room is
  // missed.
  bool TakeRoom() { return room_.Take(); }
  // The configuration has changed: requests that wait ask again. learners: partitions of this shard
  // that have one.
  void NewConfiguration(size_t learners);
  // Bytes of a partition's entries. The second function: of all entries, with memory that may still
  // be read for former replicas.
  uint64_t bytes(uint32_t partition) const { return partitions_[partition].room.bytes(); }
  const ReplicaLogLimits& limits() const { return room_.limits(); }
  uint64_t bytes() const { return room_.bytes(); }

  // ---- memory of replicas ----
  CopyRooms& rooms() { return rooms_; }

  // ---- waiters ----
  // Entries added from here to EndRequest() are for group `group` of the asker's record.
  void Ask(const Token* token) { waiting_.Ask(token); }
  void AskGroup(uint32_t group) { waiting_.AskGroup(group); }
  // The asker waits for the unfinished entry with this sequence of that worker, too. False: there
  // is none: it is done.
  bool Join(uint32_t table, uint32_t partition, uint64_t worker, uint64_t worker_sequence);
  // True: something is waited for. An event kReplicated follows, with these statuses.
  bool EndRequest(const Answer& answer, absl::Span<const ReplyStatus> statuses) {
    return waiting_.EndRequest(answer, statuses);
  }
  void ForgetLane(uint32_t lane) { waiting_.ForgetLane(lane); }
  // Requests that wait for entries of the table are answered `why`; the entries stay.
  void FailWaiters(uint32_t table, uint32_t partition, ReplyStatus why);

  // ---- the link to replicas ----
  // Moves records to send to the end of *records, at most `most`. Returns whether there were any.
  bool Take(std::vector<ReplicaRecord>* records, size_t most);
  bool HasUnsent() const { return !unsent_.empty(); }
  // Memory of `sequence`, and of all records before it, is not read any more, whatever the answer
  // was.
  void Released(const CopyId& from, uint32_t partition, uint64_t sequence);
  // The replica has the entry, and all before it.
  void Answered(const CopyId& from, uint32_t partition, uint64_t sequence);
  // Nothing that was sent to it is read from memory any more.
  void ForgetCopy(const CopyId& copy);
  // Records that the replica has not answered will be sent again.
  void Rewind(uint32_t partition, const CopyId& copy);

 private:
  friend struct EngineInspector;  // tests

  struct Entry {
    uint32_t table = 0;
    Group group = {};
    ReplicaHeader header = {};
    Buffer data;
    const std::byte* borrowed = nullptr;
    bool accumulator = false;
    bool required = false;  // the mode it was appended in
    bool waits = false;     // as it was appended
    bool applied = false;
    bool catches_up = false;  // which share it counts against
    // For the copy that the cursor belongs to, by its kBegin (0: none):
    bool for_learner = false;      // it alone receives the entry
    bool not_for_learner = false;  // all others do
    bool settles_learner = false;  // of these: it receives the worker's progress (kSettle)
    bool rows_to_come = false;     // it receives kReplicaToCome
    uint32_t bytes = 0;            // that it counts; 0: it had no copy to go to
    uint64_t learner = 0;
    Owner* owner = nullptr;
    uint32_t local = 0;
    ReplicaWaiters::List waiters;
  };
  struct Partition {
    bool leads = false;
    bool dirty = false;    // in unsent_
    bool closing = false;  // Close()
    bool sealed = false;
    bool quiet = false;  // Quieten()
    uint64_t epoch = 0;
    uint64_t next = 1;  // sequence
    // All required copies have the entries up to it; without one, there is nothing to wait for.
    uint64_t committed = 0;
    uint64_t settled = 0;  // Settled() has looked so far
    LogRoom::Part room;
    uint64_t unapplied = 0;  // entries
    CopySet copies;
    // The kBegin of a follower of the primary before. Until it has it, it may lack the last records
    // that are here, and yet take over: nothing is read.
    uint64_t resumes = 0;
    // By table: reads wait until followers have that record; UINT64_MAX: until those that differ
    // are replaced.
    absl::flat_hash_map<uint32_t, uint64_t> held_reads;
    ReplicaNotes notes;
    std::deque<Entry> entries;  // the last has sequence next - 1
  };
  // Data of an entry that is gone, which may still be read for these.
  struct Retired {
    std::vector<CopyId> copies;
    uint32_t partition;
    uint64_t sequence;
    Buffer data;
    bool accumulator;
    bool catches_up;
    uint32_t bytes;
  };

  Entry* Find(uint32_t partition, uint64_t sequence);
  const Entry* Find(uint32_t partition, uint64_t sequence) const {
    return const_cast<ReplicaLog*>(this)->Find(partition, sequence);
  }
  // Whether the learner, if there is one, will have the change with contents that it receives
  // later.
  static bool LearnerLacks(const Partition& p, const Append& append);
  // `sequence`: of the last record before this view.
  void BeginCopy(uint32_t partition, const CopySet::CopyOf& copy, uint64_t sequence,
                 uint32_t last_table);
  static ReplicaRecord RecordFor(const CopySet::Copy& copy, const Entry& entry);
  void SetApplied(uint32_t partition, Entry* entry);
  void MarkUnsent(uint32_t partition);
  // Commits what can be, and drops entries that are done.
  void Advance(uint32_t partition);
  // Entries in front that are done.
  void Pop(uint32_t partition);
  void Free(Buffer* data, bool accumulator);
  void Free(Retired* retired) {
    Free(&retired->data, retired->accumulator);
    room_.Free(retired->catches_up, retired->bytes);
  }
  // The copy reads it no more. Whether no other does: then it is free.
  bool FreeFor(const CopyId& copy, Retired* retired);
  void AddNotes(uint32_t partition);
  // For an entry that is gone: frees its data, now or when it is read no more.
  void Discard(uint32_t partition, uint64_t sequence, Entry* entry);

  BufferPool& pool_;
  EngineContext& sink_;
  LogRoom room_;
  bool catching_up_ = false;
  std::vector<Partition> partitions_;
  std::vector<uint32_t> unsent_;
  std::set<uint32_t> noted_;  // partitions
  std::vector<Retired> retired_;
  ReplicaWaiters waiting_;
  CopyRooms rooms_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_LOG_H_
