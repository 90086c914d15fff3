// Plain structs of the request tracker: operations (a caller waits for them) and pending requests
// (to be sent or answered). request_tracker.h describes their use.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_PENDING_REQUEST_H_
#define VERBENA_CLIENT_CORE_PENDING_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/core/backoff.h"
#include "client/core/bag_call.h"
#include "client/core/key_plan.h"
#include "client/core/list.h"
#include "client/trace/trace.h"
#include "proto/wire/record.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

struct TableState;
struct Stream;
struct TableLane;
struct Operation;
struct OptimizerUpdate;
struct PulledState;
struct ScanResult;
class DeviceStaging;
class RequestHandler;
class Staging;

// One record, from its creation until it is settled.
//
// States: kHeld (a pull waiting for its push) -> kQueued <-> kPosted -> free, with
//   kDelayed: a pull, an await, norms or totals, waiting for its backoff;
//   kAnswered: its reply is being handled; in no queue;
//   kEnded:   a sync end-step that the server has accepted. It is kept until its step is committed,
//             because it is resent after a lane loss;
//   kCopying: in no queue, while a copy uses the caller's memory on a device: of an answered
//             pull, or of a push whose call has ended;
//   kKept:    an answered sync push of one part. It is kept until its step is committed, because a
//             server that takes over needs it again.
struct PendingRequest {
  enum class State : uint8_t {
    kFree,
    kHeld,
    kQueued,
    kDelayed,
    kPosted,
    kAnswered,
    kCopying,
    kEnded,
    kKept
  };
  enum class Copy : uint8_t { kNone, kRunning, kDone };

  uint32_t index = 0;  // index in the pool: the cookie of its record
  State state = State::kFree;
  RequestHandler* handler = nullptr;  // of its operation
  bool numbered = false;      // async: its sequence is assigned; sync push: counted in `pushed`
  bool holds_buffer = false;  // counted in the operation's `buffers`
  uint32_t posts = 0;
  uint64_t order = 0;  // creation order: records of a partition are (re)posted in this order
  int64_t level = 0;   // of the PullQueue in which it waits

  Operation* operation = nullptr;  // null: of the protocol itself, or of an operation that is gone
  TableState* table = nullptr;
  Stream* stream = nullptr;  // the stream on which it is queued or posted; kKept: null
  uint32_t part = 0;         // push, pull, scan: index in table->parts
  uint32_t chunk = 0;        // push, pull: of the table
  uint8_t array = 0;         // of state: 1 + the index of the array. Others: 0
  uint64_t applies = 0;      // assignment of state: the count of applies after it
  uint32_t bags = 0;         // lookup of bags: their number, after posting
  NormKind norm_kind = NormKind::kGradient;  // norms, totals
  uint64_t norm = 0;                         // norms, totals: id of their NormStep
  uint64_t step = 0;                         // sync: step. async: sequence, after numbering; pull:
                      // sequence of the push that it follows, or 0. scan: cursor
  uint64_t min_version = 0;            // pull, await
  bool of_follower = false;            // pull: queued on or posted to a lane of a follower
  uint64_t floor = 0;                  // pull of an observer: the version that was read before
  rdma::MemoryBlock* block = nullptr;  // push: source. pull: destination; null when redirected to
                                       // staging
  std::byte* data = nullptr;
  uint32_t elements = 0;         // rows: number of keys
  std::byte* staging = nullptr;  // pull: where the server writes instead. Others: the data that is
                                 // sent
  uint32_t staging_bytes = 0;
  const Staging* awaited_from = nullptr;  // no buffer of this size was free
  uint32_t awaited_bytes = 0;
  // The device of `data`. Null: host memory, or, after posting, memory that its lane accesses
  // directly.
  DeviceStaging* device = nullptr;
  bool direct = false;      // its lane accesses the memory directly: there is no copy to wait for
  Copy copy = Copy::kNone;  // push: from the device to staging
  PendingRequest* follow = nullptr;  // push: the pull that follows it
  bool await_after = false;          // end-step: an await follows after posting

  // For records with groups: end-step, await, push of rows, lookups, norms, totals. The parts of
  // the record, and for each part (or empty): async end-step: its sequence and count, after
  // numbering; rows: number of keys and the index of the first in the operation's plan; push of
  // rows, after numbering: its sequence (sync: index).
  std::vector<uint32_t> parts;
  std::vector<uint64_t> sequences;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> firsts;

  // Keeps the groups for which keep(i) is true; the others go to the end of `rest`, if any.
  template <typename F>
  void KeepGroups(F keep, PendingRequest* rest = nullptr) {
    size_t kept = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool stays = keep(i);
      if (!stays && rest == nullptr) continue;
      MoveGroup(i, stays ? nullptr : rest, kept);
      if (stays) ++kept;
    }
    parts.resize(kept);
    if (!sequences.empty()) sequences.resize(kept);
    if (!counts.empty()) counts.resize(kept);
    if (!firsts.empty()) firsts.resize(kept);
  }

  ReplyStatus refused = ReplyStatus::kOk;  // last retryable refusal
  Backoff backoff;
  int64_t retry_at = 0;
  int64_t posted_at = 0;
  RangeId range = kNoRange;  // kPosted
  uint64_t revision = 0;     // of the view when it was created or last posted

  Links<PendingRequest> queue_links, operation_links;

 private:
  // Moves a group to index `to` of this entry, or to the end of `rest`.
  void MoveGroup(size_t from, PendingRequest* rest, size_t to) {
    const auto move = [&](auto* own, auto* other) {
      if (own->empty()) return;
      if (rest == nullptr) {
        (*own)[to] = (*own)[from];
      } else {
        other->push_back((*own)[from]);
      }
    };
    move(&parts, rest == nullptr ? nullptr : &rest->parts);
    move(&sequences, rest == nullptr ? nullptr : &rest->sequences);
    move(&counts, rest == nullptr ? nullptr : &rest->counts);
    move(&firsts, rest == nullptr ? nullptr : &rest->firsts);
  }
};

using PendingRequestQueue = List<PendingRequest, &PendingRequest::queue_links>;
using PendingRequestList = List<PendingRequest, &PendingRequest::operation_links>;

struct Operation {
  uint32_t index = 0;
  uint32_t generation = 0;  // of this use of the slot
  std::string_view name;    // in errors and profilers; a literal
  bool live = false;        // has not ended
  bool delivered = false;   // `done` has run
  TableState* table = nullptr;
  uint64_t step = 0;              // sync: the step that it belongs to
  uint64_t version = 0;           // pull: the requested version
  uint32_t max_staleness_ms = 0;  // pull: more than 0: followers may answer
  bool ends_step = false;         // a push-pull that also ends its step
  int64_t deadline_ns = 0;
  int64_t started_ns = 0;
  RangeId range = kNoRange;  // while the operation is live
  std::function<void(absl::Status)> done;
  absl::Status status;
  absl::Status not_now;  // why the transport did not accept a record at the last attempt
  uint32_t records = 0;  // number of unanswered or kept records that it waits for
  uint32_t commits = 0;  // number of commits that it waits for
  bool landed = false;   // the transport has written a chunk to device memory
  uint32_t buffers = 0;  // number of entries that may still access its memory, or are kept with it
  std::shared_ptr<rdma::MemoryBlock> blocks[2];  // memory that is pushed, and the destination of
                                                 // pulls
  std::shared_ptr<rdma::Device::Mark> marks[2];  // marks that must pass before this memory is
                                                 // touched
  std::unique_ptr<KeyPlan> plan;                 // for rows; from Operations::NewPlan()
  std::unique_ptr<BagCall> bags;                 // for a lookup of bags; from Operations::NewBags()
  float* sums = nullptr;                         // destination of its sums, in blocks[1]
  std::shared_ptr<ScanResult> scan;              // for a scan
  std::shared_ptr<OptimizerUpdate> change;       // for a change of the optimizer
  std::shared_ptr<PulledState> pulled;           // for a pull that wants it
  PendingRequestList entries;
  Links<Operation> timer_links, finished_links;
};

// An operation that may have ended since.
struct OperationRef {
  Operation* operation = nullptr;
  uint32_t generation = 0;
  bool live() const { return operation->generation == generation && operation->live; }
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PENDING_REQUEST_H_
