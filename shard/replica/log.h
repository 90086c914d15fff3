// The replication log of this shard as primary: records for replicas of its partitions, in order
// and in memory of its own, until the replicas have them.
//
// A partition has at most one replica here: `replicas` is 1 or 2
// (docs/decisions/0012-replication.md). It is
//     none  --(follower of a partition without a past)-->  required
//     none  --(learner)-->  learning  --(it has everything)-->  required
//     learning, required  --(the view has it no more)-->  none: waiting requests go on
//
// An apply (shard/partition) first asks for the mode. In kAlone it applies. In kForward it appends
// the record and applies at once. In kRequired it appends the record and applies when Replicated()
// is called. The worker's request is answered when both are done: its waiter is kept with the
// entry.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A partition's sequences are 1, 2, 3, ... over its life, whichever shard is primary. The
//     replica receives them in order, and again from the first unanswered one after its link was
//     lost.
//  2. The log owns the memory of an entry's record, which does not change once it is appended.
//  3. Replicated() is called once for each entry that was appended in kRequired, in order, unless
//     Clear() took it.
//  4. Memory of sent data stays unchanged until Released() or ForgetCopy(), also when it is not
//     needed.
//  5. A waiter is answered once: when its entry is applied here and on a required replica, or with
//     the reason for which that will not be; never after ForgetLane().
//  6. Bytes in the log are bounded (ReplicaLogLimits). Records that workers cause and records that
//     catch a learner up each have a share, and exceed it by at most one entry. An apply asks
//     HasRoom() first; changes by a view are noted, and added when there is room (notes.h). Each
//     replica has one kBegin and one kComplete. Neither kind can take the other's share, so both go
//     on while a replica answers. An entry counts until its memory is free.
#ifndef VERBENA_SHARD_REPLICA_LOG_H_
#define VERBENA_SHARD_REPLICA_LOG_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
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
    // The replica has the entry. `local`: as it was appended.
    virtual void Replicated(uint32_t local, uint64_t sequence) = 0;

   protected:
    ~Owner() = default;
  };

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
    uint32_t last_table = 0;  // of greater ids it knows everything: they came after it
    uint32_t table = 0;       // being copied
    // By table, from `table` on. Usually that one alone; a slice that pushes make rows of does not
    // wait for its turn.
    std::map<uint32_t, LocalPartition> slices;
    uint32_t chunk = 0;  // next local chunk of the table
    uint32_t row = 0;    // next row of the slice
    bool complete = false;
    uint64_t begin = 0;  // its kBegin; entries added before it are applied before anything is read
    uint64_t appended = 0;  // the last record that was made for it alone
    uint64_t end = 0;       // its kComplete
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
    void NextTable(uint32_t id) {
      table = id;
      slices.erase(slices.begin(), slices.lower_bound(id));
      chunk = row = 0;
    }
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

  // Sets the partition's replica since that configuration; server 0: none. last_table: the greatest
  // table id so far. Returns whether it differs from the one before.
  bool SetCopy(uint32_t partition, const CopyId& copy, uint64_t since, bool learner,
               uint32_t last_table);
  const CopyId& copy(uint32_t partition) const { return partitions_[partition].copy; }
  // The memory that the rows of a learner that has just begun will take.
  void Expect(uint32_t partition, uint64_t bytes) {
    Entry* const begin = Find(partition, partitions_[partition].cursor.begin);
    begin->header.learner_kib = static_cast<uint32_t>(std::min<uint64_t>(bytes >> 10, UINT32_MAX));
  }
  bool learning(uint32_t partition) const {
    const Partition& p = partitions_[partition];
    return p.copy.server != 0 && !p.required;
  }
  Cursor& cursor(uint32_t partition) { return partitions_[partition].cursor; }
  const Cursor& cursor(uint32_t partition) const { return partitions_[partition].cursor; }
  // The replica has all that it needs to be a follower.
  bool CaughtUp(uint32_t partition) const {
    const Partition& p = partitions_[partition];
    return p.copy.server != 0 && p.cursor.complete && p.acked >= p.cursor.end;
  }
  uint64_t acknowledged(uint32_t partition) const { return partitions_[partition].acked; }
  // Whether all that was added before the replica's kBegin is applied.
  bool MayCopy(uint32_t partition) const;
  // Ends the catch-up of a learner; it counts once it has all records added up to now.
  void Complete(uint32_t partition);

  // ---- applies ----
  Mode mode(uint32_t partition) const {
    const Partition& p = partitions_[partition];
    if (p.copy.server == 0) return Mode::kAlone;
    return p.required ? Mode::kRequired : Mode::kForward;
  }
  // Whether the replica has received the table's slice in that partition, or will not have to.
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
    Owner* owner = nullptr;               // null: nothing is to be applied here
    uint32_t local = 0;
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
  // The owner cannot apply a record that was sent to the replica: its waiters are answered `why`,
  // and the replica differs from this primary until another one replaces it.
  void Abandon(uint32_t table, uint32_t partition, ReplyStatus why);
  bool differs(uint32_t partition) const { return partitions_[partition].differs; }

  // ---- reads ----
  // The table's entries in that partition are about to be applied although the follower may not
  // have them: reads of it wait until it does, or until there is another configuration.
  void HoldReads(uint32_t table, uint32_t partition);
  // Whether the table's content here may be read: no failover takes it back.
  bool MayRead(uint32_t partition, uint32_t table) const;

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
  // Memory for new rows of the partition at its follower.
  uint64_t RoomForRows(uint32_t partition) const {
    const Partition& p = partitions_[partition];
    return p.required ? rooms_.RoomFor(p.copy) : UINT64_MAX;
  }
  // New rows were made here.
  void Grow(uint32_t partition, uint32_t table, uint64_t bytes) {
    const Partition& p = partitions_[partition];
    if (p.required) rooms_.Grow(p.copy, partition, table, bytes);
  }

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
  // Unanswered records will be sent again.
  void Rewind(uint32_t partition);

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
    bool acked = false;
    bool catches_up = false;  // which share it counts against
    uint32_t bytes = 0;       // that it counts; 0: it had no copy to go to
    CopyId left;  // it is acked because it is not waited for: it may be on its way to that one
    Owner* owner = nullptr;
    uint32_t local = 0;
    ReplicaWaiters::List waiters;
  };
  struct Partition {
    bool leads = false;
    bool required = false;
    bool dirty = false;    // in unsent_
    bool leaving = false;  // an entry may have `left`
    uint64_t epoch = 0;
    uint64_t next = 1;  // sequence
    uint64_t sent = 0;
    uint64_t acked = 0;
    uint64_t released = 0;  // up to it, and behind `sent`, nothing is read for the replica
    LogRoom::Part room;
    uint64_t unapplied = 0;  // entries
    CopyId copy;
    uint64_t since = 0;  // the replica is one
    bool differs = false;
    // By table: reads wait until the replica has that record; UINT64_MAX: until there is another
    // replica.
    absl::flat_hash_map<uint32_t, uint64_t> held_reads;
    Cursor cursor;
    ReplicaNotes notes;
    std::deque<Entry> entries;  // the last has sequence next - 1
  };
  // Data of an entry that is gone, which may still be read.
  struct Retired {
    CopyId copy;
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
  void SetApplied(uint32_t partition, Entry* entry);
  void MarkUnsent(uint32_t partition);
  void Require(Partition* partition);
  // The replica has everything up to `sequence`, or there is none to have it.
  void Advance(uint32_t partition, uint64_t sequence);
  // Entries in front that are done.
  void Pop(uint32_t partition);
  void Free(Buffer* data, bool accumulator);
  void Free(Retired* retired) {
    Free(&retired->data, retired->accumulator);
    room_.Free(retired->catches_up, retired->bytes);
  }
  void AddNotes(uint32_t partition);
  // Records in flight will not be waited for.
  void Leave(uint32_t partition);
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
