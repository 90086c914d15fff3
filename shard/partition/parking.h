// Pulls and awaits of one table that wait for a version.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Parked pulls of a chunk are answered in the order they came, among those that can be.
//  2. A parked request gets exactly one event, unless its lane is forgotten: then none.
#ifndef VERBENA_SHARD_PARTITION_PARKING_H_
#define VERBENA_SHARD_PARTITION_PARKING_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {

class Parking {
 public:
  // by_version: pulls wait for versions of their chunk. Otherwise (ssp) only Release() ends them.
  Parking(DenseTable* table, Sink* sink, bool by_version)
      : table_(table), sink_(sink), by_version_(by_version) {}

  void ParkPull(uint32_t chunk, const PullRequest& request);
  // Until every slice in `slices` (not empty) is at request.min_version.
  void ParkAwait(const GroupsRequest& request, absl::Span<const uint32_t> slices);

  // A chunk's version grew.
  void Advanced(uint32_t chunk);
  // Answers the pulls of a slice for which `ready` holds, with what it stores.
  using Ready = absl::FunctionRef<bool(uint64_t worker, uint32_t chunk, uint64_t min_version,
                                       Answer* answer)>;
  void Release(uint32_t slice, Ready ready);

  void FailSlice(uint32_t slice, ReplyStatus why);
  void FailAll(ReplyStatus why);
  // Requests of workers for which `expired` holds are answered kExpired.
  void FailWorkers(absl::FunctionRef<bool(uint64_t worker)> expired);
  void ForgetLane(uint32_t lane);

 private:
  struct Pull {
    Token token;
    uint64_t worker;
    uint64_t min_version;
    uint64_t destination;
    uint64_t destination_key;
  };
  struct Await {
    Token token;
    uint64_t worker = 0;
    uint32_t remaining = 0;  // slices not there yet; 0: the entry is free
    bool failed = false;     // scratch of RemoveAwaits()
  };
  struct Waiter {
    uint32_t await;  // index of awaits_
    uint64_t min_version;
  };
  using PullMatch = absl::FunctionRef<bool(uint32_t chunk, const Pull&)>;

  void Resize();
  void ReleaseChunk(uint32_t chunk, Ready ready);
  // Removes matching pulls; with kPullFailed of *why unless why is null.
  void RemovePulls(PullMatch match, const ReplyStatus* why);
  // Removes awaits marked failed; with kAwaitDone of *why unless why is null.
  void RemoveFailedAwaits(const ReplyStatus* why);
  void EndAwait(uint32_t index, const ReplyStatus* why, uint64_t version);

  DenseTable* const table_;
  Sink* const sink_;
  const bool by_version_;
  std::vector<std::vector<Pull>> pulls_;      // by chunk index
  std::vector<std::vector<Waiter>> waiters_;  // by slice index
  std::vector<Await> awaits_;
  std::vector<uint32_t> free_awaits_;
  uint32_t parked_pulls_ = 0;
  uint32_t parked_awaits_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_PARKING_H_
