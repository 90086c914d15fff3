// What the journal keeps: operations (what a caller waits for) and entries (records to be sent or
// answered). Plain structs of one state machine; journal.h says what they mean.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_ENTRY_H_
#define VERBENA_CLIENT_CORE_ENTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/core/backoff.h"
#include "client/core/bag_call.h"
#include "client/core/key_plan.h"
#include "client/core/list.h"
#include "client/trace/trace.h"
#include "proto/record.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

struct TableState;
struct Stream;
struct TableLane;
struct Operation;
struct ScanResult;
class DeviceStaging;
class Staging;

// One record, from the moment it is needed until it is settled.
//
// States: kHeld (a pull waiting for its push) -> kQueued <-> kPosted -> free, with
//   kDelayed: a pull, an await, norms or totals, waiting for its backoff;
//   kAnswered: its answer is being handled; in no queue;
//   kEnded:   a sync end-step that the server has accepted: kept until its step is committed,
//             because it is sent again after a lane loss;
//   kCopying: in no queue, while a copy goes on that touches the caller's memory on a device: of a
//             pull that was answered, or of a push whose call is over;
//   kKept:    a sync push of one part that the server has answered: kept until its step is
//             committed, because a server that takes over needs it again.
struct Entry {
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

  uint32_t index = 0;  // in the pool: the cookie of its record
  State state = State::kFree;
  RecordType type = RecordType::kPush;
  bool numbered = false;      // async: its sequence is taken; sync push: counted in `pushed`
  bool holds_buffer = false;  // counted in the operation's `buffers`
  uint32_t posts = 0;
  uint64_t order = 0;  // of creation: records of a partition are (re)posted in this order

  Operation* operation = nullptr;  // null: the protocol's own, or of an operation that is gone
  TableState* table = nullptr;
  Stream* stream = nullptr;            // where it is queued or posted; kKept: null
  uint32_t part = 0;                   // push, pull, scan: index in table->parts
  uint32_t chunk = 0;                  // norms, totals: their kind. bags: how many, once posted
  uint64_t norm = 0;                   // norms, totals: the NormStep it is of
  uint64_t step = 0;                   // sync: step. async: sequence, once numbered; of a pull:
                                       // that of the push it follows, or 0. scan: cursor
  uint64_t min_version = 0;            // pull, await
  rdma::MemoryBlock* block = nullptr;  // push: source. pull: destination; null when staged away
  std::byte* data = nullptr;
  uint32_t elements = 0;         // rows: how many keys
  std::byte* staging = nullptr;  // pull: where the server writes instead. Else: what is sent
  uint32_t staging_bytes = 0;
  const Staging* awaited_from = nullptr;  // there was no buffer of so many bytes
  uint32_t awaited_bytes = 0;
  // Whose memory `data` is. Null: the host's, or, once it is posted, memory that its lane reaches
  // itself.
  DeviceStaging* device = nullptr;
  bool direct = false;       // its lane would reach it: there is no copy to wait for
  Copy copy = Copy::kNone;   // push: from the device to staging
  Entry* follow = nullptr;   // push: the pull that comes after it
  bool await_after = false;  // end-step: an await follows once it is posted

  // What has groups: end-step, await, push of rows, lookups, norms, totals. The parts it is about,
  // and for each (or empty): async end-step: its sequence and count, once numbered; rows: how many
  // keys and the first of them in the operation's plan, and of a push, once numbered, its sequence
  // (sync: index).
  std::vector<uint32_t> parts;
  std::vector<uint64_t> sequences;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> firsts;

  // Keeps the groups for which keep(i) is true; the others go to the end of `rest`, if any.
  template <typename F>
  void KeepGroups(F keep, Entry* rest = nullptr) {
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
  uint64_t revision = 0;     // of the view when it was made, or posted last

  Links<Entry> queue_links, operation_links;

 private:
  // To index `to` of this one, or to the end of `rest`.
  void MoveGroup(size_t from, Entry* rest, size_t to) {
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

// Goes through the queue of pulls: the server may park it, and it changes nothing.
inline bool IsPull(RecordType type) {
  return type == RecordType::kPull || type == RecordType::kAwait || type == RecordType::kLookup ||
         type == RecordType::kLookupBags || type == RecordType::kIntent ||
         type == RecordType::kScan;
}

using EntryQueue = List<Entry, &Entry::queue_links>;
using EntryList = List<Entry, &Entry::operation_links>;

struct Operation {
  enum class Kind : uint8_t {
    kPush,
    kPull,
    kPushPull,
    kEndStep,
    kPushRows,
    kLookup,
    kScan,
    kLookupBags,
    kIntent
  };
  // As errors and profilers have it.
  const char* name() const {
    constexpr const char* kNames[] = {"push",     "pull",           "push-pull",
                                      "end-step", "push of rows",   "lookup",
                                      "scan",     "lookup of bags", "intent"};
    return kNames[static_cast<int>(kind)];
  }

  uint32_t index = 0;
  uint32_t generation = 0;  // of this use of the slot
  Kind kind = Kind::kPush;
  bool live = false;       // not ended
  bool delivered = false;  // `done` has run
  TableState* table = nullptr;
  uint64_t step = 0;       // sync: the step it belongs to
  uint64_t version = 0;    // pull: the version wanted
  bool ends_step = false;  // a push-pull that also ends its step
  int64_t deadline_ns = 0;
  int64_t started_ns = 0;
  RangeId range = kNoRange;  // while it is live
  std::function<void(absl::Status)> done;
  absl::Status status;
  absl::Status not_now;  // why the transport did not take a record of it at the last attempt
  uint32_t records = 0;  // unanswered or kept ones it waits for
  uint32_t commits = 0;  // commits it waits for
  bool landed = false;   // a chunk was written to memory of a device by the transport
  uint32_t buffers = 0;  // entries that may still read or write its memory, or are kept with it
  std::shared_ptr<rdma::MemoryBlock> blocks[2];  // what is pushed, and where to it is pulled
  std::shared_ptr<rdma::Device::Mark> marks[2];  // that are waited for before these are touched
  std::unique_ptr<KeyPlan> plan;                 // of rows; from Operations::NewPlan()
  std::unique_ptr<BagCall> bags;                 // of a lookup of bags; from Operations::NewBags()
  float* sums = nullptr;                         // where these are wanted, in blocks[1]
  std::shared_ptr<ScanResult> scan;              // of a scan
  EntryList entries;
  Links<Operation> timer_links, finished_links;
};

// An operation that may have ended since.
struct OperationRef {
  Operation* operation = nullptr;
  uint32_t generation = 0;
  bool live() const { return operation->generation == generation && operation->live; }
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_ENTRY_H_
