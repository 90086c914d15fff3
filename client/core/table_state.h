// The client's state of a table: the locations of its partitions, its open step, and the versions
// known to be committed.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. chunk_version, PartState::committed and TableState::committed only grow. A part's value is
//     the lowest of its chunks, and the table's value is the lowest of its parts.
//  2. Only records of steps `committed` and `committed + 1` of a part are posted and unfinished
//     (poster.h gates the others), so two counters of pushes per part are sufficient.
#ifndef VERBENA_CLIENT_CORE_TABLE_STATE_H_
#define VERBENA_CLIENT_CORE_TABLE_STATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/pending_request.h"
#include "client/core/push_encoding.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/record.h"
#include "proto/wire/routing.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::client {

// An operation that waits for a commit.
struct Waiter {
  OperationRef operation;
  uint64_t version;
};

// The records of one table on one stream (lane), in order.
struct TableLane {
  TableState* table = nullptr;
  Stream* stream = nullptr;
  PendingRequestQueue queue;  // pushes and end-steps that are not posted
  uint32_t outstanding = 0;   // of those, posted and unanswered
  // A record was returned to be resent: no record is posted before those posted after it are
  // answered too, so that all of them are sent in order.
  bool reordering = false;
  // Changes of the optimizer that have no sequences, posted and unanswered. Others wait for these.
  uint32_t changes_out = 0;
  int64_t retry_at = 0;
  int64_t refused_at = 0;  // when the last attempt ended for which `backoff` counts
  Backoff backoff;
  PendingRequestQueue ended;          // accepted end-steps without a known commit
  PendingRequest* filling = nullptr;  // while a call on rows is divided into records
};

// The chunks of a table in one partition: part p has the chunks p, p + P, p + 2P ... In an
// embedding table part p is partition p, and counts as one chunk.
struct PartState {
  uint32_t partition = 0;
  uint64_t epoch = 0;
  Stream* stream = nullptr;
  TableLane* lane = nullptr;
  bool lost = false;
  // For pushes and end-steps: the number of posted and unanswered ones, all on `stream`; sync: the
  // last posted step.
  uint32_t out = 0;
  uint64_t last_step = 0;
  // All of `out` is on the lane to a server that is no longer the primary. No other record is
  // posted before these are answered or that lane is dead.
  bool away = false;
  // After a planned move: its records on the lane to the former primary, which answers them, are
  // awaited until then.
  int64_t leave_at = 0;
  uint64_t moved = 0;             // revision of the view that last changed its epoch or location
  bool copies = false;            // it has or shall have replicas for a failover
  uint64_t next_sequence = 1;     // async
  uint32_t pushes_since_end = 0;  // async
  uint32_t pushed[2] = {0, 0};    // sync: pushes (groups of rows) posted, by parity of the step
  uint64_t committed = 0;         // sync
  uint32_t behind = 0;            // number of chunks at exactly `committed`
  std::vector<Waiter> waiters;
};

struct TableState {
  v1::Table info;
  DenseLayout layout = {};
  ElementType push_type = ElementType::kF32;  // type of pushes in records, also for rows
  ElementType pull_type = ElementType::kF32;  // type of pulls in records
  ElementType parameter_type = ElementType::kF32;
  // For tables with a push codec; null before the first push.
  std::shared_ptr<Residual> residual;
  bool sync = false;
  bool ssp = false;
  bool dropped = false;
  int32_t priority = 0;      // of its requests on their lanes
  uint32_t entries = 0;      // number of entries in use that refer to it
  bool copies = false;       // of any part
  bool clipped = false;      // by the global norm of the job's step
  bool trust = false;        // its optimizer has a trust ratio
  uint32_t lost_parts = 0;   // parts without a remaining replica
  uint32_t moving = 0;       // parts that are not on their pinned rail
  uint32_t away = 0;         // parts that are `away`
  uint32_t partitions = 0;   // of the cluster
  uint32_t dim = 0;          // greater than 0: an embedding table
  uint64_t step = 0;         // the open step: number of steps that this worker has ended
  uint64_t pushed_step = 0;  // sync: step + 1 of the last push
  uint64_t first_step = 0;   // sync: of this worker, which joined a run of an elastic job; else 0
  uint64_t first_held = UINT64_MAX;  // sync: nothing of this step or later ones is posted
  uint32_t changes = 0;              // of the optimizer's values, by this client
  // ssp: the clock of the last end-step, and the highest least clock of all workers in a reply. The
  // next end-step continues from the greater one, because a new worker starts there. Until then
  // pulls send the old clock, because servers know no other clock of this worker.
  uint64_t clock = 0;
  uint64_t seen = 0;
  // The default version of a pull. sync: the open step. ssp: this worker's clock, which the server
  // compares with all workers' clocks.
  uint64_t VersionToPull() const { return sync ? step : clock; }
  std::vector<PartState> parts;
  std::vector<uint64_t> chunk_version;  // sync: known commits
  // Of an observer's pulls of parameters: by chunk, the version that was read. Empty: there was
  // none.
  std::vector<uint64_t> read_versions;
  std::vector<uint64_t> chunk_pushed;  // sync: step + 1 of the last push
  // sync: by parity of the step, step + 1 of the last push that was posted. Only pushes of two
  // steps are.
  std::vector<std::array<uint64_t, 2>> chunk_posted;
  uint64_t& PostedIn(uint32_t chunk, uint64_t of_step) { return chunk_posted[chunk][of_step & 1]; }
  // Pushes of an open step to chunks of the part that are known to be committed. A primary that has
  // taken over after their commit does not count them.
  uint32_t PushesCommitted(uint32_t part, uint64_t open_step) const;
  // sync: answered pushes without a known commit. For an embedding table, by part.
  std::vector<PendingRequestQueue> kept;
  std::vector<std::unique_ptr<TableLane>> lanes;
  uint64_t committed = 0;
  uint32_t behind = 0;  // number of parts at exactly `committed`
  std::vector<Waiter> waiters;

  uint32_t id() const { return info.id(); }
  const std::string& name() const { return info.spec().name(); }
  bool embedding() const { return dim > 0; }
  bool encodes() const { return HasPushCodec(info.spec()); }
  bool decodes() const { return HasPullCodec(info.spec()); }
  uint32_t PullBytes(uint32_t elements) const {
    return static_cast<uint32_t>(PayloadBytes(pull_type, elements));
  }
  // Bytes from one chunk's gradient to the next in the pushed memory.
  size_t PushBytes(uint32_t elements) const {
    return encodes() ? PushEncoding::Stride(push_type, elements)
                     : PayloadBytes(push_type, elements);
  }
  size_t row_bytes() const { return size_t{dim} * sizeof(float); }
  size_t PulledRowBytes() const { return RowBytes(pull_type, dim); }
  uint32_t chunks() const { return embedding() ? partitions : layout.chunks(); }
  uint32_t PartOf(uint32_t chunk) const { return chunk % partitions; }
  // Bytes of the part's parameters; 0 for an embedding table, whose rows are unknown.
  uint64_t PartBytes(uint32_t part) const;

  void Init(const v1::Table& table, uint32_t cluster_partitions);
  TableLane* LaneOn(Stream* stream);
  // Records that a chunk, or all chunks of a part, are at `version`. Returns whether the part's
  // `committed` grew.
  bool LearnChunk(uint32_t chunk, uint64_t version);
  bool LearnPart(uint32_t part, uint64_t version);

 private:
  void RaisePart(PartState* part, uint64_t version);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_TABLE_STATE_H_
