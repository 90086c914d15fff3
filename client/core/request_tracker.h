// Tracks every request from its creation until it is settled.
//
// It consists of parts, each with one job, which reach each other through it:
//
//     part        job                                                        file
//     entries     records, and their division                                request_pool.h
//     queue       the order in which records wait                            request_queue.h
//     poster      posting: order, slots and operations of lanes               poster.h
//     settlement  replies, refusals, retries, ends of operations             settlement.h
//     staging     buffers, and refusals of memory                            record_staging.h
//     commits     commits of steps, and pushes that are kept until then      commits.h
//     failover    dead lanes, partitions with a new primary                  failover.h
//     rails       the lane of each partition, and its moves                  rail_moves.h
//     devices     copies from and to memory of devices                       device_copies.h
//     norms       the first phase of steps with a norm                       norm_steps.h
//     tables      tables as the view has them                                tables.h
//     requests    the operations                                  client/operations/operations.h
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. The tracker maintains the invariants of client_core.h.
//  2. async: sequences are assigned at the first posting and posted in order. Returned records are
//     reposted in order, after everything posted behind them is answered (TableLane::reordering).
//  3. An operation that ends removes its unposted records. Posted pushes stay until settled, as
//     empty records after their lane was lost; posted pulls stay until answered or their lane is
//     dead.
//  4. A group of rows keeps its sequence (sync: its index) when its record is divided again.
//  5. Posted unanswered pushes and end-steps of a part are all on one lane. The part changes rails
//     only when it has none, or when that lane is dead. Pulls, awaits and norms need no order and
//     stay on their lanes.
//  6. sync, of a partition with replicas (or with wanted replicas): an answered push is kept with
//     its buffer until the commit of its step is known. If the partition's primary or epoch
//     changes, the push is resent, before the accepted end-steps. A push whose operation has ended
//     is kept without its buffer, as an empty record.
//  7. Records of a partition are posted to its new primary only when none of its pushes and
//     end-steps is in flight on the lane to the old one. That lane is closed as soon as the view
//     has the new primary, because a server that hangs would never answer.
#ifndef VERBENA_CLIENT_CORE_REQUEST_TRACKER_H_
#define VERBENA_CLIENT_CORE_REQUEST_TRACKER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "client/core/admissions.h"
#include "client/core/commits.h"
#include "client/core/device_copies.h"
#include "client/core/failover.h"
#include "client/core/follower_reads.h"
#include "client/core/lane_set.h"
#include "client/core/norm_steps.h"
#include "client/core/operations.h"
#include "client/core/pending_request.h"
#include "client/core/poster.h"
#include "client/core/rail_moves.h"
#include "client/core/record_staging.h"
#include "client/core/request_pool.h"
#include "client/core/request_queue.h"
#include "client/core/session.h"
#include "client/core/settlement.h"
#include "client/core/tables.h"
#include "client/operations/operations.h"
#include "client/staging/staging.h"
#include "verbena/client_counters.h"

namespace verbena::client {

class RequestTracker final : public LaneListener {
 public:
  // The arguments of the parts: RecordStaging, DeviceCopies.
  RequestTracker(Session* session, Operations* operations, Staging* received, Staging* packed,
                 const Clock* clock, Random* random, bool direct_only);
  void set_lanes(LaneSet* l) { lanes = l; }

  // Call after an operation has all its records.
  void Started(Operation* operation) { settlement.MaybeDone(operation); }
  // Memory of a region that is given up, and whether anything still uses it.
  void ReleaseBlock(uint64_t block_id);
  bool InUse(uint64_t block_id);

  // ---- progress ----
  bool RunTimers(int64_t now_ns);
  int64_t NextTimerNanos() const;
  bool busy() const { return entries.in_use() != 0; }
  void ReadClock() { now = clock->NowNanos(); }

  // A turn is full after this many bytes were decoded or copied: a few milliseconds of work.
  static constexpr uint64_t kTurnBytes = 4 << 20;
  void BeginTurn() override { turn_bytes = 0; }
  bool TurnIsFull() const override { return turn_bytes >= kTurnBytes; }
  // The turn took much longer than a poll.
  bool long_turn() const { return turn_bytes >= kTurnBytes / 4; }

  void OnLaneOpen(Stream* stream) override { rails.OnLaneOpen(stream); }
  void OnCredit(Stream* stream) override {
    if (stream->stalled) queue.Touch(stream);
  }
  void OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) override {
    settlement.OnAnswer(stream, cookie, reply);
  }
  void OnLaneDead(Stream* stream) override { failover.OnLaneDead(stream); }
  void OnLaneRefused(Stream* stream, const absl::Status& status) override {
    failover.OnLaneRefused(stream, status);
  }

  // ---- shared by the parts ----
  Session* const session;
  Operations* const operations;
  const Clock* const clock;
  Random* const random;
  LaneSet* lanes = nullptr;
  int64_t now = 0;          // read once a turn
  bool closed = false;      // EndAll() was called: no record is resent
  uint64_t turn_bytes = 0;  // decoded or copied in this turn
  ClientCounters counters;  // without those of lanes
  KeyScratch key_scratch;

  // ---- the parts ----
  RequestPool entries;
  RequestQueue queue;
  Poster poster;
  Settlement settlement;
  RecordStaging staging;
  Commits commits;
  Failover failover;
  FollowerReads followers;
  RailMoves rails;
  DeviceCopies devices;
  NormSteps norms;
  Admissions admissions;
  Tables tables;
  Requests requests;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_REQUEST_TRACKER_H_
