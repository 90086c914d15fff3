// Deferred requests of one table: awaits of a version here, pulls and lookups in derived classes.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A deferred request gets exactly one event, unless its lane is forgotten: then none.
#ifndef VERBENA_SHARD_PARTITION_DEFERRED_REQUESTS_H_
#define VERBENA_SHARD_PARTITION_DEFERRED_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"

namespace verbena::shard {

class DeferredRequests {
 public:
  virtual ~DeferredRequests() = default;

  // Defers an await until every slice in `slices` (not empty) is at request.min_version.
  void DeferAwait(const GroupsRequest& request, absl::Span<const uint32_t> slices);

  void FailLocalPartition(uint32_t slice, ReplyStatus why);
  void FailAll(ReplyStatus why);
  // Requests of workers for which `expired` holds are answered kExpired.
  void FailWorkers(absl::FunctionRef<bool(uint64_t worker)> expired);
  void ForgetLane(uint32_t lane);
  // Pulls (lookups) of these operations are answered kTooEarly.
  void ReturnReads(uint32_t lane, absl::FunctionRef<bool(uint32_t operation)> which);

 protected:
  explicit DeferredRequests(EngineContext* sink) : sink_(sink) {}

  // Ends pulls (lookups) for which `match` holds; with kPullFailed of *why unless why is null.
  using Match = absl::FunctionRef<bool(const Token& token, uint64_t worker)>;
  virtual void RemoveReads(Match match, const ReplyStatus* why) = 0;
  virtual void RemoveReadsOf(uint32_t slice, ReplyStatus why) = 0;

  // A slice is at `version` now: ends awaits.
  void LocalPartitionReached(uint32_t slice, uint64_t version);
  // A pull or lookup cannot be answered any more.
  void ReadFailed(const Token& token, ReplyStatus why, uint64_t destination,
                  uint64_t destination_key) {
    sink_->events.push_back(
        {Event::Kind::kPullFailed, token, {why, 0, 0}, {}, destination, destination_key});
  }

  EngineContext* const sink_;

 private:
  struct Await {
    Token token;
    uint64_t worker = 0;
    uint32_t remaining = 0;  // slices not there yet; 0: the entry is free
    bool failed = false;     // scratch of RemoveFailedAwaits()
  };
  struct Waiter {
    uint32_t await;  // index of awaits_
    uint64_t min_version;
  };

  // Removes awaits marked failed; with kAwaitDone of *why unless why is null.
  void RemoveFailedAwaits(const ReplyStatus* why);
  void EndAwait(uint32_t index, const ReplyStatus* why, uint64_t version);

  std::vector<std::vector<Waiter>> waiters_;  // by slice index
  std::vector<Await> awaits_;
  std::vector<uint32_t> free_awaits_;
  uint32_t deferred_awaits_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_DEFERRED_REQUESTS_H_
