// Changes by views that are still to be replicated while the log has no room for them: one note per
// table, and one per worker of it. A later note replaces an earlier one. So views that come faster
// than the follower answers take no more memory than the current state needs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_NOTES_H_
#define VERBENA_SHARD_REPLICA_NOTES_H_

#include <cstdint>
#include <map>
#include <utility>

#include "proto/wire/record.h"

namespace verbena::shard {

class ReplicaNotes {
 public:
  struct Note {
    uint32_t table;
    ReplicaHeader header;  // of kFresh, kReset or kSettle; without data
    // A learner passes it by: it receives contents of a later time.
    bool pass_learner = false;
  };

  bool empty() const { return notes_.empty(); }
  // header.worker 0: of the table as a whole.
  void Put(uint32_t table, ReplicaHeader header, bool pass_learner);
  // A learner begins: it passes all of them by.
  void PassLearner();
  bool any_passes_learner() const;
  // Takes the first note; there is one. A table's note as a whole precedes those of its workers.
  Note Take();
  void ForgetTable(uint32_t table);

 private:
  std::map<std::pair<uint32_t, uint64_t>, Note> notes_;  // by table and worker
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_NOTES_H_
