// Posting: which records may be posted now, and how they use their lane's slots and operations.
//
// sync: a push of step t waits until the commit of its chunk's step t - 1 is known, an end-step
// until that of its partitions' step t - 1 is. Pulls and awaits may use half of a lane's
// operations, because the server may defer them (record.h) while pushes must always get through.
//
// Requests of a table with a greater priority are posted first. Of the slots of a lane at most all
// but one have pushes that were posted before an older one (MayOvertake()).
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_POSTER_H_
#define VERBENA_CLIENT_CORE_POSTER_H_

#include <cstdint>
#include <vector>

#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::client {

class RequestTracker;

class Poster {
 public:
  explicit Poster(RequestTracker* tracker) : tracker_(*tracker) {}

  // Posts all records that can be posted. Returns whether there were any.
  bool Pump();
  // Whether `operation`, the only live one, needs no work before each lane's last reply. This is so
  // if only a few records are in flight, all of this operation, none waits to be posted, and none
  // follows from a reply. (With many records, early replies should be handled meanwhile. A record
  // of an ended operation may be answered much later than this operation's, so the last reply would
  // come too late.)
  bool OnlyAnswersLeft(const Operation* operation) const;

  // ---- for handlers ----
  // Whether the record fits its lane now; otherwise it is posted later.
  bool Fits(Stream* stream, PendingRequest* entry, uint32_t payload_bytes);
  bool Send(Stream* stream, PendingRequest* entry, rdma::WorkerLane::Request* request);
  // Whether a sync record waits for the step before its own.
  bool Gated(const PendingRequest& entry) const;
  void Prune(PendingRequest* entry) const;  // removes parts that are committed or lost
  // Memory for the groups of the record that is being posted.
  std::vector<Group>& groups() { return groups_; }

 private:
  bool PumpStream(Stream* stream);
  bool PumpTable(Stream* stream, TableLane* lane);
  static bool SettlesStep(const PendingRequest& entry);
  bool PumpPulls(Stream* stream);
  // The first entry that may be posted: none of its parts is away.
  PendingRequest* FrontOf(TableLane* lane);
  bool Pointless(PendingRequest* entry) const;
  static rdma::WorkerLane::Reserve ReserveOf(const Stream& stream, const PendingRequest& entry,
                                             bool oldest);
  static bool Oldest(const Stream& stream, const PendingRequest& entry);
  static bool MayOvertake(const Stream& stream, const PendingRequest& entry);
  bool ReopenLarger(Stream* stream, PendingRequest* entry, uint32_t payload_bytes);

  RequestTracker& tracker_;
  std::vector<Stream*> pumping_;
  std::vector<Group> groups_ = std::vector<Group>(kMaxGroups);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_POSTER_H_
