// The cold store of a shard, for all of its tables: dispatches finished operations and failures.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_COLD_IO_H_
#define VERBENA_SHARD_TABLE_COLD_IO_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "shard/cold_store.h"

namespace verbena::shard {

class HotRows;

// Totals over the engine's life.
struct ColdCounters {
  uint64_t reads = 0, writes = 0, read_bytes = 0, written_bytes = 0;  // rows, done
  uint64_t direct_reads = 0;        // of `reads`: synchronous ones, by passes over many rows
  uint64_t intended = 0;            // prefetches
  uint64_t dropped_prefetches = 0;  // cold rows whose prefetch was dropped: there were too many
  uint64_t waits = 0;               // lookups and applies that waited for rows
  uint64_t failures = 0;            // rows that could not be read: their partition is lost
  uint64_t write_failures = 0, stored_bytes = 0, store_memory_bytes = 0;  // ColdStoreStatistics
  uint64_t hot_rows = 0, hot_bytes = 0, hot_limit_bytes = 0;              // now
  uint32_t waiting = 0;                                                   // now
};

class ColdIo {
 public:
  // A row that cannot be read.
  struct Failure {
    uint32_t life;
    uint32_t row;
    absl::Status status;
  };

  // The store outlives it; null: there is none, and no table may want one.
  explicit ColdIo(ColdStore* store) : store_(store) {}
  ColdIo(const ColdIo&) = delete;
  ColdIo& operator=(const ColdIo&) = delete;

  bool has_store() const { return store_ != nullptr; }
  uint32_t NewLife(HotRows* owner);
  void EndLife(uint32_t life);
  void Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) {
    store_->Write(key, cookie, content);
  }
  void Read(uint64_t key, uint64_t cookie) { store_->Read(key, cookie); }
  // Like ColdStore::ReadNow(); an error is recorded for the row.
  absl::Status ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to);

  // Dispatches finished operations to their rows.
  void Poll();
  void Failed(uint64_t key, const absl::Status& status);
  // Failures since the last call.
  std::vector<Failure> TakeFailures();
  absl::Status health() const { return store_ == nullptr ? absl::OkStatus() : store_->health(); }

  // Waits have ended since the last call: waiting requests must be checked.
  void Woken() { woken_ = true; }
  bool TakeWoken() { return std::exchange(woken_, false); }
  // A caller that could not wait found no memory for a frame: tables must retry.
  void SetNoMemory() { no_memory_ = true; }
  bool TakeNoMemory() { return std::exchange(no_memory_, false); }

  ColdCounters counters;
  // Includes the store's own counters.
  ColdCounters all_counters() const;

 private:
  ColdStore* const store_;
  absl::flat_hash_map<uint32_t, HotRows*> owners_;  // by life
  std::vector<Failure> failures_;
  std::vector<ColdStore::Done> done_;  // scratch of Poll()
  bool woken_ = false;
  bool no_memory_ = false;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_COLD_IO_H_
