// What views have changed and a partition's copy is still to be told, while the log has no room for
// it: of a table one note, and one of each of its workers. A later note takes the place of an
// earlier one, so views that come faster than the copy answers cost no more than what there is.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_NOTES_H_
#define VERBENA_SHARD_REPLICA_NOTES_H_

#include <cstdint>
#include <map>
#include <utility>

#include "proto/record.h"

namespace verbena::shard {

class ReplicaNotes {
 public:
  struct Note {
    uint32_t table;
    ReplicaHeader header;  // of kFresh, kReset or kSettle; without data
  };

  bool empty() const { return notes_.empty(); }
  // header.worker 0: of the table as a whole.
  void Put(uint32_t table, ReplicaHeader header);
  // Takes the first; there is one. Of a table, the one of the whole comes before those of workers.
  Note Take();
  void ForgetTable(uint32_t table);

 private:
  std::map<std::pair<uint32_t, uint64_t>, ReplicaHeader> notes_;  // by table and worker
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_NOTES_H_
