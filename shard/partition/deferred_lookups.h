// Lookups of one embedding table that wait for versions of partitions, or for clocks.
//
// A lookup waits at the first of its groups that is not readable. When that group's slice advances,
// the lookup is checked again from there. In a table with a cold tier, a readable lookup may wait
// for rows that are not in memory.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_DEFERRED_LOOKUPS_H_
#define VERBENA_SHARD_PARTITION_DEFERRED_LOOKUPS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/partition/deferred_requests.h"
#include "shard/table/embedding_table.h"

namespace verbena::shard {

class DeferredLookups final : public DeferredRequests {
 public:
  // by_version: lookups wait for versions of their partitions. Otherwise (ssp) only Release() ends
  // them.
  DeferredLookups(EmbeddingTable* table, EngineContext* sink, bool by_version)
      : DeferredRequests(sink), table_(table), by_version_(by_version) {}

  // Whether a slice is readable now, with its version (ssp: least clock) and staleness.
  using Ready = absl::FunctionRef<bool(uint64_t worker, uint32_t slice, uint64_t min_version,
                                       Answer* answer)>;
  // Answers a lookup if all of its groups' slices are ready, or defers it.
  PullOutcome Lookup(const LookupRequest& request, Ready readable);

  // A slice's version grew.
  void Advanced(uint32_t slice);
  // Checks again the lookups that wait for a slice.
  void Release(uint32_t slice, Ready readable);
  // Waits for rows may have ended (HotRows).
  void RowsCame(Ready readable);

 private:
  struct Deferred {
    Token token;
    uint64_t worker = 0;
    uint64_t min_version = 0;
    uint64_t destination = 0;
    uint64_t destination_key = 0;
    uint32_t waits_at = 0;  // index of groups
    std::vector<Group> groups;
    std::vector<uint64_t> keys;
    uint32_t bags = 0;
    std::vector<BagUse> uses;
    uint64_t rows = 0;  // HotRows::Want(), in for_rows_
  };

  // The first group from `first` on that is not readable; groups.size() when all are.
  uint32_t FirstUnready(uint64_t worker, uint64_t min_version, absl::Span<const Group> groups,
                        uint32_t first, Ready readable) const;
  // Gathers the rows of a lookup that is readable as a whole, or sums them by bag. Returns its
  // answer: kResourceExhausted without memory for it, kNotReady where reads are held
  // (replica/log.h).
  Answer Serve(uint64_t worker, uint64_t min_version, absl::Span<const Group> groups,
               absl::Span<const uint64_t> keys, const Bags& bags, Ready readable, ChunkView* view);
  static Deferred DeferredOf(const LookupRequest& request, uint32_t waits_at);
  // For a readable lookup: answers it with an event, or lets it wait for rows.
  void Finish(Deferred* lookup, Ready readable);
  // True: the lookup is answered, or waits for rows, with an event. False: it waits, maybe at a
  // later group.
  bool TryAgain(Deferred* lookup, Ready readable);
  void RemoveReads(Match match, const ReplyStatus* why) override;
  void RemoveReadsOf(uint32_t slice, ReplyStatus why) override;
  template <typename Condition>
  void RemoveIf(Condition condition, const ReplyStatus* why);
  uint32_t LocalPartitionOf(const Deferred& lookup) const {
    return table_->slice_of(lookup.groups[lookup.waits_at].partition);
  }

  EmbeddingTable* const table_;
  const bool by_version_;
  std::vector<std::vector<Deferred>> deferred_;  // by the slice they wait for
  std::vector<Deferred> for_rows_;
  uint32_t count_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_DEFERRED_LOOKUPS_H_
