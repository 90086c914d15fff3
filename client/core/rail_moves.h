// Rails: the lane of each table part, and its move to another one.
//
// A partition is pinned to a rail (rails.h); each table's part of it follows. Posted unanswered
// pushes and end-steps of a part are all on one lane: it may move when it has none. The wait for
// that never depends on another worker. Async and ssp pushes are answered at once, so all new
// records are held back. A server may hold sync pushes until others have pushed the same step. So
// records of the steps in progress continue, and only a new step begins on the new rail. Pulls,
// awaits and norms need no order and stay on their lanes.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_RAIL_MOVES_H_
#define VERBENA_CLIENT_CORE_RAIL_MOVES_H_

#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"

namespace verbena::client {

class RequestTracker;

class RailMoves {
 public:
  explicit RailMoves(RequestTracker* tracker) : tracker_(*tracker) {}

  static void Place(TableState* table, PartState* part, Stream* stream);
  static void CountMoving(TableState* table);
  void Spread(const TableState& table);  // a new table, whose parts load the rails
  void OnLaneOpen(Stream* stream);
  void LeaveRail(Stream* stream);  // its lane is dead
  // Parts may be able to move.
  bool due() const { return due_; }
  bool RunMoves();  // moves the parts that can move
  // Whether the entry must wait until one of its parts has changed rails.
  bool Draining(const PendingRequest& entry) const;
  // For a push or end-step: +1 after posting, -1 after its reply or after its lane is dead.
  void CountOut(const PendingRequest& entry, int change);
  // A posted record loads the rail of its partitions.
  static void CountLoad(const Stream& stream, const PendingRequest& entry);

 private:
  static Stream* Pinned(const PartState& part);
  void RailsChanged();  // pins have changed: parts may have to move

  RequestTracker& tracker_;
  bool due_ = false;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_RAIL_MOVES_H_
