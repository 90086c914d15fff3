// Free memory for new rows on the servers of replicas, as their answers report it, less the memory
// of rows that were made here and are not there yet.
//
// A primary makes rows for a partition with a follower only as far as the follower's server has
// room: a record that the follower cannot apply would keep all that comes after it waiting.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. The memory of rows in flight to a replica is the sum added by Grow() for partitions of that
//     replica, less rows that were answered or forgotten, or belong to another replica by now.
#ifndef VERBENA_SHARD_REPLICA_COPY_ROOMS_H_
#define VERBENA_SHARD_REPLICA_COPY_ROOMS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "shard/engine.h"
#include "shard/replica/copy_set.h"

namespace verbena::shard {

class CopyRooms {
 public:
  // Takes the last answer of that replica.
  void Report(const CopyId& copy, const CopyRoom& room) { Find(copy)->room = room; }
  // Bytes that rows made now may take there, beside those on their way. UINT64_MAX: no limit.
  uint64_t RoomFor(const CopyId& copy) const;
  // RoomFor() the partition's followers: the least of them, and the follower that has it.
  uint64_t RoomFor(const CopySet& copies) const;
  CopyId Fullest(const CopySet& copies) const;
  // Whether so many would fit if the rows of records on their way take less than expected: worth
  // asking again, because those are answered soon. Rows in no record may be an open step's, which
  // takes as long as its workers want.
  bool MayFit(const CopyId& copy, uint64_t bytes) const;
  // The memory limit of the replica's server; 0: not known.
  uint64_t limit(const CopyId& copy) const {
    const Copy* const c = Find(copy);
    return c == nullptr ? 0 : c->room.limit;
  }

  // Rows of the table were made here, and a record that follows will make them at the followers.
  void Grow(const CopySet& copies, uint32_t partition, uint32_t table, uint64_t bytes);
  // That record was added, for the table's rows in the partition.
  void Logged(uint32_t partition, uint32_t table, uint64_t sequence);
  // The replica has the partition's records up to that one.
  void Answered(uint32_t partition, const CopyId& copy, uint64_t sequence);
  // No record will have them: the slice is gone.
  void ForgetTable(uint32_t partition, uint32_t table);
  // The partition has no such replica any more.
  void Forget(uint32_t partition, const CopyId& copy);
  void Forget(uint32_t partition);

 private:
  struct Copy {
    CopyId id;
    CopyRoom room;
    uint64_t on_their_way = 0;
    uint64_t in_records = 0;  // of these
  };
  struct Partition {  // of one replica
    CopyId copy;
    absl::flat_hash_map<uint32_t, uint64_t> made;      // by table, in no record yet
    std::deque<std::pair<uint64_t, uint64_t>> logged;  // sequence, bytes
  };
  static constexpr size_t kMostCopies = 64;  // before those that are gone are looked for

  void GrowAt(const CopyId& copy, uint32_t partition, uint32_t table, uint64_t bytes);
  const Copy* Find(const CopyId& copy) const;
  Copy* Find(const CopyId& copy);
  void Take(const CopyId& copy, uint64_t bytes, bool in_record);
  void TakeAll(const Partition& partition);

  std::vector<Copy> copies_;                       // few: shards of other servers
  std::multimap<uint32_t, Partition> partitions_;  // those with rows on their way
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPY_ROOMS_H_
