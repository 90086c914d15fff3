// A small tiered table for tests: 16 rows of it are in memory.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_TIERED_ROWS_H_
#define VERBENA_TESTS_SHARD_TIERED_ROWS_H_

#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/shard/fake_cold_store.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {

// For RowFixture: one worker, one partition. The store completes requests at once.
inline RowOptions Tiered(FakeColdStore* store,
                         v1::Consistency consistency = v1::CONSISTENCY_ASYNC) {
  RowOptions o;
  o.consistency = consistency;
  o.workers = 1;
  o.partitions = 1;
  o.hot_bytes = 1;
  o.record_rows = 8;
  o.cold = store;
  store->slow = false;
  return o;
}

// All that happens: a waiting request may have to wait for a frame, then for its row.
inline std::vector<Event> Drain(RowFixture* f) {
  std::vector<Event> events;
  for (int i = 0; i < 40; ++i) f->engine->TakeEvents(&events);
  return events;
}

// Each key once, from sequence + 1 on; -1 over the initial value.
inline void PushEach(RowFixture* f, uint32_t partition, const std::vector<uint64_t>& keys,
                     uint64_t* sequence) {
  for (const uint64_t key : keys) {
    REQUIRE(f->PushValue(0, partition, ++*sequence, {key}, 1) == ReplyStatus::kOk);
    Drain(f);
  }
}

inline std::vector<uint64_t> From(uint64_t first, uint64_t count) {
  std::vector<uint64_t> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

// Rows 0 to `count`, the first of which leave memory; returns the last sequence.
inline uint64_t Fill(RowFixture* f, uint64_t count) {
  uint64_t sequence = 0;
  PushEach(f, 0, From(0, count), &sequence);
  return sequence;
}

// One worker and one partition, all of whose rows are in memory.
inline RowOptions InMemory() {
  RowOptions o;
  o.workers = o.partitions = 1;
  return o;
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_TIERED_ROWS_H_
