// The inside of an Engine, for the files that make it up: engine.cc (life, events, counters),
// engine_view.cc (what a view changes), engine_requests.cc (dense tables, steps), engine_rows.cc
// (embedding tables), engine_norms.cc (steps in two phases).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_ENGINE_IMPL_H_
#define VERBENA_SHARD_ENGINE_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shard/engine.h"
#include "shard/partition/dense_consistency.h"
#include "shard/partition/lookup_parking.h"
#include "shard/partition/pull_parking.h"
#include "shard/partition/roster.h"
#include "shard/partition/row_consistency.h"
#include "shard/partition/sink.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/dense_table.h"
#include "shard/table/embedding_table.h"

namespace verbena::shard {

// What the last view says of a partition.
struct PartitionInfo {
  uint64_t epoch = 0;
  bool ours = false;
  bool epoch_changed = false;  // by the view being applied
};

struct JobState {
  Roster roster;
  JobAccount* account = nullptr;
  Roster::Change change = Roster::Change::kNone;  // by the view being applied
};

struct DenseState {
  std::unique_ptr<DenseTable> table;
  std::unique_ptr<PullParking> parking;
  std::unique_ptr<DenseConsistency> consistency;
};
struct RowState {
  std::unique_ptr<EmbeddingTable> table;
  std::unique_ptr<LookupParking> parking;
  std::unique_ptr<RowConsistency> consistency;
};

struct TableState {
  // One of the two, or none: the specification cannot be served here; the table answers
  // kUnavailable.
  DenseState dense;
  RowState rows;
  // The parts of that one.
  SlicedTable* table = nullptr;
  Parking* parking = nullptr;
  Consistency* consistency = nullptr;
  JobState* job = nullptr;
  std::vector<Placement> placement;  // by partition
  bool starved = false;              // slices that are not ready lack memory
};

struct Engine::Impl {
  explicit Impl(EngineOptions o);

  // ---- the view ----
  absl::Status CheckPartitions(const v1::ClusterView& view) const;
  void UpdatePartitions(const v1::ClusterView& view);
  void DropTables(const v1::ClusterView& view);
  absl::Status UpdateJobs(const v1::ClusterView& view);
  absl::Status UpdateTable(const v1::Table& table);
  absl::Status CreateTable(const v1::Table& table, TableState* state);
  absl::Status CreateDense(const v1::Table& table, TableState* state);
  absl::Status CreateRows(const v1::Table& table, TableState* state);
  absl::Status Place(const v1::Table& table, TableState* state);
  JobState* JobOf(const std::string& name);
  void LimitJobs(const v1::ClusterView& view);
  void ForgetJobs();

  // ---- requests ----
  // Table and member of a request; kOk or why not.
  ReplyStatus Find(uint64_t worker, uint32_t table, TableState** state,
                   const Roster::Member** member);
  // kOk: *slice is ready, or kNone when the table has no chunk in the partition.
  ReplyStatus FindSlice(const TableState& state, const Group& group, uint32_t* slice) const;
  ReplyStatus FindChunk(const TableState& state, const Group& group, uint32_t* chunk) const;
  ReplyStatus CheckPayload(const PushRequest& request, const DenseTable& table,
                           const DenseTable::Chunk& chunk) const;
  PushOutcome Push(const PushRequest& request);
  // The same of requests about rows: the table is an embedding table.
  ReplyStatus FindRows(uint64_t worker, uint32_t table, TableState** state,
                       const Roster::Member** member);
  // kOk: *slice is ready and has all the group's keys.
  ReplyStatus FindKeys(const TableState& state, const Group& group, absl::Span<const uint64_t> keys,
                       uint32_t* slice) const;
  // The same of a table whose steps need norms over several chunks.
  ReplyStatus FindNorms(uint64_t worker, uint32_t table, TableState** state, shard::Norms** norms);
  GroupsOutcome RefuseGroups(size_t groups, ReplyStatus status);
  PullOutcome RefuseLookup(size_t groups, ReplyStatus status);
  void CountAnswer(ReplyStatus status);
  void RetryBlocked();

  const EngineOptions options;
  HeapAllocator heap;
  Sink sink;
  // By job, also of those that are forgotten while they have memory that is being written out.
  std::map<std::string, JobAccount> accounts;
  BufferPool pool;
  uint64_t revision = 0;
  uint32_t highest_table = 0;
  std::vector<PartitionInfo> partitions;
  std::map<std::string, JobState> jobs;   // nodes do not move: tables point at them
  std::map<uint32_t, TableState> tables;  // ordered: a replayed run makes the same events
  std::vector<ReplyStatus> group_status;
  std::vector<uint32_t> await_slices;
};

// The one of two groups' statuses that says more of their record.
ReplyStatus Worse(ReplyStatus a, ReplyStatus b);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_IMPL_H_
