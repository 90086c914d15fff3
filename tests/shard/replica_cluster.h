// Several engines with replicas of each other's partitions, links between them that lose and delay,
// and workers that resend unanswered requests: the parts of executor, coordinator and client that
// matter to an engine.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_REPLICA_CLUSTER_H_
#define VERBENA_TESTS_SHARD_REPLICA_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/shard/engine_fixture.h"
#include "tests/shard/fake_cold_store.h"

namespace verbena::shard {

struct ReplicaPlan {
  uint32_t seed = 0;
  uint32_t replicas = 2;
  bool faults = true;
  bool rows = false;
  v1::Consistency consistency = v1::CONSISTENCY_SYNC;
  std::string optimizer = "sgd";
  v1::Admission admission = {};  // rows
  v1::Eviction eviction = {};    // rows
  bool cold = false;             // rows, most of which are not in memory
  bool assigns = false;          // some pushes are new parameters, or state of adagrad
  bool narrow = false;           // rows of bf16, rounded by chance
  bool changes = false;          // workers change the optimizer's rate
  uint32_t workers = 3;
  uint32_t partitions = 3;
  uint32_t steps = 12;
  uint32_t spares = 16;
  bool promote_learners = false;  // failpoint: a learner may become the primary
};

// One of a few kinds, by the seed.
ReplicaPlan MakeReplicaPlan(uint32_t seed, bool rows, v1::Consistency consistency);

class ReplicaCluster {
 public:
  static constexpr uint32_t kNodes = 3;
  static constexpr uint32_t kChunks = 6;
  static constexpr uint32_t kElements = 16;
  static constexpr uint32_t kDim = 4;
  // For every other seed: a few records of a partition.
  static constexpr ReplicaLogLimits kTightLog = {2048, 4096, 512};

  explicit ReplicaCluster(const ReplicaPlan& plan);
  // Until all workers have done all steps. False: no end in sight.
  bool Run();
  // The primaries' contents: by chunk, or by key.
  std::map<uint64_t, std::vector<float>> Contents();
  // Every copy takes the place of its primary; all copies are followers that have everything.
  void PromoteAll();
  uint32_t promotions() const { return promotions_; }
  uint32_t admitted() const { return admitted_; }
  uint64_t cold_reads() const;
  std::string error;

 private:
  static bool Good(ReplyStatus status) {
    return status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate;
  }
  struct Node {
    uint64_t server = 0;
    std::unique_ptr<FakeColdStore> cold;
    std::unique_ptr<Engine> engine;
    uint64_t revision = 0;
    std::vector<uint64_t> pins;
  };
  // A record, or a part of one, between two nodes.
  struct Message {
    ReplicaRecord record;
    uint32_t offset = 0;
    uint32_t bytes = 0;
    ReplyStatus status = ReplyStatus::kOk;  // of a reply
  };
  struct Link {
    std::deque<Message> there, back;
  };
  struct Op {
    bool end = false;
    bool assigns = false;
    uint8_t array = 0;  // of an assignment of state
    uint64_t applies = 0;
    double rate = 0;     // not 0: a change of the optimizer
    uint32_t index = 0;  // chunk, a step's push, or the number of the change
    uint64_t sequence = 0;
    uint32_t count = 0;  // end
    uint64_t step = 0;
    std::vector<float> values;
    std::vector<uint64_t> keys;
    bool acked = false;
    bool out = false;
  };
  struct Stream {  // of a worker to a partition
    std::vector<Op> ops;
    size_t step_begin = 0;  // sync: first op of the step that is not committed
    uint64_t epoch = 0;
  };
  struct Asked {
    uint64_t server;
    uint32_t worker;
    uint32_t partition;
    size_t op;
    uint64_t epoch;
    std::shared_ptr<std::vector<float>> payload;  // of the slot that the worker sent it from
  };
  // A pull that waits for a version.
  struct Deferred {
    uint64_t server;
    uint64_t version;
  };
  using LinkId = std::pair<uint64_t, CopyId>;

  uint32_t Pick(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool sync() const { return plan_.consistency == v1::CONSISTENCY_SYNC; }
  v1::Partition* PartitionAt(uint32_t p) { return view_.mutable_partitions(static_cast<int>(p)); }
  void MakeView();
  void MakeOps();
  Op MakePush(uint32_t worker, uint32_t index, uint64_t step) const;
  void Start(Node* node);
  Node* Find(uint64_t server);
  bool Alive(uint64_t server) { return Find(server) != nullptr; }

  // Makes a random next event.
  void Fault();
  void Kill(Node* node);
  bool MayPromote(uint32_t partition);
  void Promote(uint32_t partition);
  void Repair();
  void Pin();
  PullRequest PullOf(uint32_t chunk);
  void Defer();
  void CheckDeferred(const Event& event);
  void ForgetDeferred(uint64_t server);
  void Unpin(Node* node);
  bool tight_log() const { return plan_.seed % 2 == 1; }
  void CheckLog(const Node& node);
  void ApplyView(Node* node);
  void Replicate(Node* node);
  void Deliver();
  void Cut(LinkId id);
  void Post(uint32_t worker, uint32_t partition);
  void PostOp(uint32_t worker, uint32_t partition, size_t op);
  // A rate that some workers set before they push to the step; 0: this one sets none.
  double RateOf(uint32_t worker, uint64_t step) const;
  void Answered(const Asked& asked, ReplyStatus status);
  void TakeEvents(Node* node);
  void LearnCommit(uint32_t worker, uint32_t partition);
  bool Done() const;
  bool Settled();

  const ReplicaPlan plan_;
  std::mt19937 random_;
  v1::ClusterView view_;
  std::vector<Node> nodes_;
  uint64_t next_server_ = 100;
  std::map<LinkId, Link, bool (*)(const LinkId&, const LinkId&)> links_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> out_;  // by server and partition: in flight
  std::map<std::pair<uint64_t, uint32_t>, bool> refused_;  // to be sent again when nothing is
  std::vector<std::vector<Stream>> streams_;               // by worker, by partition
  std::map<uint32_t, Asked> asked_;                        // by operation
  std::map<uint32_t, Deferred> deferred_;                  // by operation
  // Payloads of all pushes: engines may still hold records that came on closed lanes.
  std::vector<std::shared_ptr<std::vector<float>>> payloads_;
  uint32_t next_operation_ = 0;
  uint32_t promotions_ = 0, admitted_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_REPLICA_CLUSTER_H_
