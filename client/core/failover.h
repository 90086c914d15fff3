// Lanes that die and partitions that move: which records are resent, and when.
//
// Queued, kept and accepted records go to the new primary, in the order of their creation. Records
// in flight on the lane to the old one return when they are answered or the lane is dead, and are
// posted before the others. So a part with such records waits for them, while other parts of its
// table continue. The lane to the old primary is closed as soon as the view has the new one,
// because a server that hangs would never answer. One that has handed the partition over as planned
// runs, and refuses the records: it has half a second for that, since a new lane costs more.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_FAILOVER_H_
#define VERBENA_CLIENT_CORE_FAILOVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/core/backoff.h"
#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"

namespace verbena::client {

class RequestTracker;

class Failover {
 public:
  explicit Failover(RequestTracker* tracker) : tracker_(*tracker) {}

  // Updates the location of each part from the view. False: no location or epoch has changed.
  bool Route(TableState* table);
  // Resends the records of the parts that have just moved.
  void FollowMoved(TableState* table);
  // Closes lanes that have records of parts with another location now.
  void LeaveOldLanes();
  bool RunTimers(int64_t now);
  int64_t next_ns() const { return leave_at_; }
  static bool MovedSince(const PendingRequest& entry);  // since it was posted
  // For an answered push or end-step: requeues the parts that have moved since it was posted.
  // Returns the rest; null: there is none.
  PendingRequest* ResendMoved(PendingRequest* entry);

  void OnLaneDead(Stream* stream);
  void OnLaneRefused(Stream* stream, const absl::Status& status);

 private:
  void TakeEnded(TableState* table, std::vector<PendingRequest*>* entries);
  // A posted record whose lane is dead.
  void Lost(PendingRequest* entry);

  RequestTracker& tracker_;
  int64_t leave_at_ = kNever;  // the next LeaveOldLanes() that is due
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_FAILOVER_H_
