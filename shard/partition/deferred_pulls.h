// Pulls of one dense table that wait for a version of their chunk, or for clocks.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Deferred pulls of a chunk are answered in their order of arrival, among those that are
//     readable.
#ifndef VERBENA_SHARD_PARTITION_DEFERRED_PULLS_H_
#define VERBENA_SHARD_PARTITION_DEFERRED_PULLS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "shard/partition/deferred_requests.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {

class DeferredPulls final : public DeferredRequests {
 public:
  // by_version: pulls wait for versions of their chunk. Otherwise (ssp) only Release() ends them.
  DeferredPulls(DenseTable* table, EngineContext* sink, bool by_version)
      : DeferredRequests(sink), table_(table), by_version_(by_version) {}

  void DeferPull(uint32_t chunk, const PullRequest& request);

  // A chunk's version grew.
  void Advanced(uint32_t chunk);
  // Answers the pulls of a slice for which `ready` holds, with the answer that it stores.
  using Ready = absl::FunctionRef<bool(uint64_t worker, uint32_t chunk, uint64_t min_version,
                                       Answer* answer)>;
  void Release(uint32_t slice, Ready ready);

 private:
  struct Pull {
    Token token;
    uint64_t worker;
    uint64_t min_version;
    uint64_t destination;
    uint64_t destination_key;
    uint8_t array;
  };

  void RemoveReads(Match match, const ReplyStatus* why) override;
  void RemoveReadsOf(uint32_t slice, ReplyStatus why) override;
  void ReleaseChunk(uint32_t chunk, Ready ready);
  void RemovePulls(uint32_t chunk, Match match, const ReplyStatus* why);

  DenseTable* const table_;
  const bool by_version_;
  std::vector<std::vector<Pull>> pulls_;  // by chunk index
  uint32_t deferred_pulls_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_DEFERRED_PULLS_H_
