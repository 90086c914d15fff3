// Servers that are trained on in random order and saved meanwhile: one table of a job, its
// partitions spread over engines.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_CHECKPOINT_RIG_H_
#define VERBENA_TESTS_SHARD_CHECKPOINT_RIG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/shard/engine_fixture.h"
#include "tests/shard/fake_cold_store.h"

namespace verbena::shard {

struct CheckpointPlan {
  uint32_t seed = 1;
  bool rows = false;
  v1::Consistency consistency = v1::CONSISTENCY_SYNC;
  v1::Optimizer optimizer;
  v1::DType dtype = v1::DTYPE_F32;
  v1::DType gradient_dtype = v1::DTYPE_F32;
  v1::Reduction reduction = v1::REDUCTION_SUM;
  uint32_t table = kTable;
  uint32_t workers = 2;
  uint32_t servers = 1;
  uint32_t partitions = 3;
  uint32_t elements = 70;
  uint32_t chunk_elements = 16;
  uint32_t dim = 4;
  uint32_t keys = 60;
  v1::Eviction eviction = {};  // rows, as the next two
  v1::DType row_dtype = v1::DTYPE_F32;
  bool stochastic = false;
  bool cold = false;  // rows, most of which are not in memory
  uint32_t spares = 4;
  uint64_t first_step = 0;  // that workers push
  bool restoring = false;
  bool lost = false;    // all of the table's partitions, before the engines get the view
  bool copies = false;  // each partition has a follower on the next server
  ReplicaLogLimits log = {};
  bool assigns = false;  // workers assign some chunks, or rows, instead of a push
  // Sums of gradients are exact, whatever their order.
  bool exact = false;
};

// A plan of the given kind, chosen by the seed.
CheckpointPlan MakeCheckpointPlan(uint32_t seed, bool rows, v1::Consistency consistency);

struct SavedChunk {
  uint64_t version = 0, applies = 0;
  uint32_t count = 0;
  std::vector<std::byte> parameters;
  std::vector<float> master;
  std::vector<std::vector<float>> state;
  bool operator==(const SavedChunk&) const = default;
};
struct SavedRow {
  uint32_t applies = 0;
  std::vector<float> parameters;
  std::vector<std::vector<float>> state;
  bool operator==(const SavedRow&) const = default;
};
struct SavedLocalPartition {
  uint64_t version = 0, applies = 0;
  std::map<uint64_t, uint64_t> prefix;  // sequences by worker
  bool operator==(const SavedLocalPartition&) const = default;
};
struct Saved {
  std::map<uint64_t, SavedChunk> chunks;           // by first element
  std::map<uint64_t, SavedRow> rows;               // by key
  std::map<uint32_t, SavedLocalPartition> slices;  // by partition
  uint32_t incremental = 0;                        // slices
  bool operator==(const Saved&) const = default;
};

class CheckpointRig {
 public:
  explicit CheckpointRig(const CheckpointPlan& plan);

  Engine& engine(size_t i) { return *engines_[i]; }
  size_t engines() const { return engines_.size(); }
  v1::ClusterView& view() { return view_; }
  // Passes the view to all engines.
  void ApplyView();

  // Workers push up to that step (async: that many pushes each).
  void SetGoal(uint64_t goal) { goal_ = goal; }
  // Async: so many pushes of this worker to this partition, whatever the goal.
  void SetLimit(uint64_t worker, uint32_t partition, uint64_t pushes) {
    limits_[{worker, partition}] = pushes;
  }
  bool Done() const;
  // Something random by workers.
  void Act();
  // Until the goal is reached. False: it is not, after long.
  bool Finish();

  // ---- saves ----
  absl::Status Begin(PartitionCheckpointRequest request, uint64_t* newest);
  // At a later step, if that one is over.
  absl::Status Begin(uint64_t step, uint64_t memory_bytes = 1 << 20);
  uint64_t step() const { return step_; }  // that it began with
  // Takes or releases a piece, or nothing; released pieces are in saved().
  void ActCheckpoint();
  bool CheckpointComplete();
  // Goes on with workers and save in random order until both are done.
  bool FinishCheckpoint();
  void ReleaseAll();
  const Saved& saved() const { return saved_; }
  uint64_t id() const { return id_; }
  // All there is now, while nobody does anything.
  Saved CheckpointIdle();
  std::vector<CheckpointPiece> Out() const;  // taken, not released

  // ---- restores: for plans with `restoring` ----
  void Load(const Saved& saved, ElementType dtype, uint64_t version, bool state = true);
  absl::Status FinishRestore();
  // Applies the view in which the restore is done.
  void Serve();
  // All records for copies arrive.
  void DeliverAll();
  Group GroupOf(uint32_t partition, uint64_t sequence) const;

  // The greatest version; of rows, of partitions that have some.
  uint64_t Newest();
  // Sequence of each worker, by (worker, partition).
  const std::map<std::pair<uint64_t, uint32_t>, uint64_t>& acknowledged() const {
    return acknowledged_;
  }
  uint64_t most_memory = 0;  // that a save had
  std::string error;
  const CheckpointPlan plan;

  void TakeEvents();

 private:
  struct Stream {
    uint32_t rank;
    uint32_t item;  // sync dense: chunk. Others: partition
    uint64_t position = 0;
    bool out = false;  // held, or deferred
  };
  struct OutPiece {
    size_t engine;
    CheckpointPiece piece;
  };

  uint32_t Pick(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool sync() const { return plan.consistency == v1::CONSISTENCY_SYNC; }
  uint32_t chunks() const { return LayoutOf(view_.tables(0).spec()).chunks(); }
  bool Ended(const Stream& stream) const;
  Engine& EngineOf(uint32_t partition) { return *engines_[partition % engines_.size()]; }
  void Try(Stream* stream);
  ReplyStatus TryDense(Stream* stream, bool* later);
  ReplyStatus TryRows(Stream* stream, bool* later);
  void Deliver();
  void ActNorms();
  void ActPins();
  void UnpinAll();
  std::vector<float> GradientOf(uint32_t rank, uint64_t first, uint64_t step, size_t n) const;
  // Whether the worker's push number `position` to the chunk or partition is an assignment.
  bool Assigns(uint32_t rank, uint32_t item, uint64_t position) const;
  std::vector<uint64_t> KeysOf(uint32_t rank, uint32_t partition, uint64_t step) const;
  void Collect(const CheckpointPiece& piece, Saved* saved);

  std::mt19937 random_;
  v1::ClusterView view_;
  std::vector<std::unique_ptr<FakeColdStore>> stores_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Stream> streams_;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> acknowledged_;
  std::vector<std::pair<size_t, uint64_t>> pins_;
  std::deque<std::vector<std::byte>> payloads_;
  std::map<size_t, std::deque<ReplicaRecord>> links_;  // by primary
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> limits_;
  uint64_t goal_ = 0;
  uint64_t id_ = 0, last_id_ = 0;
  uint64_t step_ = 0;
  std::vector<OutPiece> out_;
  Saved saved_;
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_CHECKPOINT_RIG_H_
