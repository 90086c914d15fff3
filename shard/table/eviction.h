// Which rows of an embedding table are dropped again (v1::Eviction), by a stamp of 32 bits that
// each row has.
//
// TTL_STEPS, LRU: the apply to the slice that named the row last. TTL_SECONDS: the second of that.
// LFU: how often it was pushed, where each sweep takes a sixteenth of all counts away, so that old
// uses are forgotten (Lee et al. 2001, "LRFU: a spectrum of policies"); below that 16 bits of the
// key's hash.
//
// Rows go by a sweep, which is part of an apply: the primary decides from which stamp on rows are
// kept (and of rows with that stamp, from which hash of the key on), and every replica drops the
// others with the same apply. A row that was made, and that no apply has named, has the least
// stamp: no worker has seen it. Every sweep drops those that no waiting apply names either (their
// push failed, or its worker left before the step was over).
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A sweep drops no row that its own apply names.
//  2. A sweep of LRU or LFU drops rows that an apply has named only while there are more rows than
//     fifteen sixteenths of the slice's limit, those with the least (stamp, hash) first, but no
//     rows that must not be dropped. Stamps are those that rows have when the sweep is made, after
//     the applies that wait at the time of the decision.
#ifndef VERBENA_SHARD_TABLE_EVICTION_H_
#define VERBENA_SHARD_TABLE_EVICTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/table/row_store.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// The stamps and limits of an apply, sent to its replicas too.
struct ApplyStamp {
  uint32_t seconds = 0;    // when it is made
  uint32_t keep_from = 0;  // rows with lesser stamps go after it; 0: none
  uint32_t keep_hash = 0;  // of rows with that stamp those go whose keys have lesser hashes
};

class Eviction {
 public:
  // `row_bytes`: of parameters and state, for limits of bytes.
  Eviction(const v1::Eviction& spec, uint32_t partitions, size_t row_bytes);

  bool never() const { return kind_ == v1::Eviction::NEVER; }
  bool by_number() const { return kind_ == v1::Eviction::LRU || kind_ == v1::Eviction::LFU; }

  // The stamp of a row that is named by that apply, the slice's first being 1. `before`: its
  // previous stamp.
  uint32_t Stamp(uint32_t before, uint64_t key, uint64_t apply, uint32_t seconds) const;
  struct WaitingRow {
    uint32_t row;    // RowStore::kNone: the key has none now
    uint64_t apply;  // the slice's apply that names it
  };
  // Appends the rows of the applies that wait and come before the one in question, in their order.
  using Waiting = absl::FunctionRef<void(std::vector<WaitingRow>* rows)>;
  // Which rows are kept after the slice's apply number `apply`, which names the rows `named`.
  // `last_sweep`: the second of the last time that rows went by their age.
  ApplyStamp Decide(const RowStore& rows, absl::Span<const uint32_t> named, Waiting waiting,
                    uint64_t apply, uint32_t seconds, uint32_t* last_sweep);
  // Whether a row with that stamp goes, unless the apply names it.
  static bool Goes(const ApplyStamp& apply, uint32_t stamp, uint64_t key);
  // The stamp after a sweep of a row that stays. A sweep that drops only unnamed rows changes none.
  uint32_t Aged(const ApplyStamp& apply, uint32_t stamp) const;
  // The number to subtract from all stamps before that apply; 0: none. Stamps of applies start
  // again before they exceed 32 bits.
  uint32_t Rebase(uint64_t apply) const;

 private:
  ApplyStamp Threshold(const RowStore& rows, absl::Span<const uint32_t> named, Waiting waiting);

  v1::Eviction::Kind kind_;
  uint64_t ttl_;
  uint64_t most_rows_;           // that a slice may have before some go; UINT64_MAX: any
  std::vector<uint64_t> order_;  // scratch of Threshold(): stamps and hashes
  std::vector<bool> named_;      // the same: by row
  std::vector<WaitingRow> waiting_;
  std::vector<uint32_t> stamps_;  // by row
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_EVICTION_H_
