// Where a table's consistency code reports: events for later answers, counters, the commit
// observer.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_SINK_H_
#define VERBENA_SHARD_PARTITION_SINK_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard/engine.h"

namespace verbena::shard {

class ReplicaLog;

struct EngineContext {
  EngineCounters counters;
  ReplicaLog* log = nullptr;  // records for the partitions' replicas
  std::vector<Event> events;
  CommitObserver commit_observer;
  uint32_t blocked = 0;  // chunks and slices whose apply waits for an Unpin()

  // A push (of rows: a group) is accepted.
  void Pushed(uint64_t bytes, TableCounters* table) {
    ++counters.pushes;
    counters.push_bytes += bytes;
    ++table->pushes;
    table->push_bytes += bytes;
  }
  // A pull is answered; staleness: of an ssp table's.
  void Pulled(const ChunkView& view, TableCounters* table, const uint32_t* staleness) {
    ++counters.pulls;
    counters.pull_bytes += view.bytes;
    ++table->pulls;
    table->pull_bytes += view.bytes;
    if (staleness != nullptr) ++counters.staleness[std::min(*staleness, kStalenessBuckets - 1)];
  }
  // A held push is read or refused. Its payload is not looked at again.
  void PushDone(const Token& token, ReplyStatus status, uint64_t version) {
    --counters.held;
    events.push_back({Event::Kind::kPushDone, token, {status, 0, version}, {}, 0, 0});
  }
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_SINK_H_
