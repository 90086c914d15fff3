// Commits of steps: their waiters, and answered sync pushes that are kept until then.
//
// A follower has every committed step, but no data of the open one. When it becomes primary, it
// needs the data again that the old primary has read of the open step. So an answered push to a
// partition with replicas (or with wanted replicas) is kept with its buffer until the commit of its
// step is known. A kept push holds no operation, slot or staging of a lane, only the caller's
// memory. If the partition's primary or epoch changes, it is resent, before the accepted end-steps.
// A push whose operation has ended is kept without its buffer, as an empty record.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_COMMITS_H_
#define VERBENA_CLIENT_CORE_COMMITS_H_

#include <cstdint>
#include <vector>

#include "client/core/pending_request.h"
#include "client/core/table_state.h"

namespace verbena::client {

class RequestTracker;

class Commits {
 public:
  explicit Commits(RequestTracker* tracker) : tracker_(*tracker) {}

  // sync: the operation also waits for the commit of these chunks (count 0: of the whole table).
  void WaitForCommit(Operation* operation, uint32_t first, uint32_t count, uint64_t version);
  // The same for the partitions of the operation's rows.
  void WaitForRows(Operation* operation, uint64_t version);

  // Learns commits from a reply.
  void LearnChunk(TableState* table, uint32_t chunk, uint64_t version);
  void LearnPart(TableState* table, uint32_t part, uint64_t version);

  // Whether an answered push of that step may be needed again. In an embedding table a part is also
  // a chunk.
  bool Keeps(const TableState& table, uint32_t chunk, uint64_t step) const;
  // Replaces Settlement::Settled().
  void Keep(PendingRequest* entry);
  static PendingRequestQueue* KeptOf(const PendingRequest& entry);
  void TakeKept(TableState* table, uint32_t part, std::vector<PendingRequest*>* entries);
  void DropKept(TableState* table, uint32_t part);

 private:
  void ReleaseKept(TableState* table, uint32_t chunk);
  void Learned(TableState* table, uint32_t part, bool advanced);
  void Notify(std::vector<Waiter>* waiters, uint64_t committed);

  RequestTracker& tracker_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_COMMITS_H_
