// The queues in which records wait to be posted.
//
// Records that change data use one queue for each table and lane (TableLane), in the order of
// their creation; returned ones go back to their place. Pulls and awaits have a queue for each
// lane (PullQueue), norms and totals another. Of the tables on a lane the one with the greatest
// priority is first.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_REQUEST_QUEUE_H_
#define VERBENA_CLIENT_CORE_REQUEST_QUEUE_H_

#include <cstdint>
#include <vector>

#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"

namespace verbena::client {

class RequestTracker;

class RequestQueue {
 public:
  explicit RequestQueue(RequestTracker* tracker) : tracker_(*tracker) {}

  void Enqueue(PendingRequest* entry);  // by its order, on the current lane(s) of its parts
  void EnqueueOn(TableLane* lane, PendingRequest* entry);
  void EnqueuePull(
      PendingRequest* entry);  // on the current stream(s) of its parts; awaits in front
  void EnqueuePullFirst(PendingRequest* entry);  // in front
  void EnqueuePullOn(Stream* stream, PendingRequest* entry, bool front);
  void Unqueue(PendingRequest* entry);  // from its queue
  // Moves queued records of a table to the current lanes of their parts. Posted ones move when
  // their lane is dead. `more`: entries in no queue, which are rerouted together with the queued
  // ones.
  void Reroute(TableState* table, std::vector<PendingRequest*> more = {});
  // Frees the table's records that are not posted.
  void Drop(TableState* table);

  // The stream is pumped next.
  void Touch(Stream* stream);
  void TouchStalled();
  // Moves the touched streams to *streams, which is empty.
  void TakeTouched(std::vector<Stream*>* streams) { streams->swap(touched_); }
  bool touched() const { return !touched_.empty(); }

  // Retries are due at this time.
  void NoteTimer(int64_t at);
  int64_t timer() const { return timer_; }
  // Queues delayed records whose backoff has passed.
  bool RunTimer(int64_t now);

  // Gives the table's requests a priority: queued pushes, and pulls that are queued from now on.
  void Prioritize(TableState* table, int32_t priority);
  // Adds a table's lane to those of its stream, by its priority.
  static void Place(TableLane* lane);

 private:
  // Removes the table's requests from the stream's queues without an order between lanes.
  static void TakeUnordered(Stream* stream, const TableState* table,
                            std::vector<PendingRequest*>* taken);
  void EnqueuePullAt(PendingRequest* entry, bool front);

  RequestTracker& tracker_;
  std::vector<Stream*> touched_;
  int64_t timer_ = kNever;  // not later than the next retry
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_REQUEST_QUEUE_H_
