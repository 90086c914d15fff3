// Engines of a primary and of a replica of its one partition, for tests of one replica's content.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_REPLICA_PAIR_H_
#define VERBENA_TESTS_SHARD_REPLICA_PAIR_H_

#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {

inline constexpr uint64_t kReplica = kServer + 1;

// A failpoint until the end of the scope.
class Planted {
 public:
  explicit Planted(Failpoint Failpoints::*bug, bool on = true) : bug_(bug) {
    failpoints().*bug_ = on;
  }
  ~Planted() { failpoints().*bug_ = false; }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

 private:
  Failpoint Failpoints::*bug_;
};

inline RowOptions OnePartition(v1::Consistency consistency) {
  RowOptions o;
  o.workers = 1;
  o.partitions = 1;
  o.consistency = consistency;
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  o.initializer.set_a(3);
  return o;
}

// A primary and a replica of its one partition. Both follow the primary's view.
class Pair {
 public:
  // `of_replica` may have another cold store.
  Pair(const RowOptions& o, const RowOptions& of_replica)
      : primary(o), replica(of_replica, kReplica), sync_(o.consistency == v1::CONSISTENCY_SYNC) {}
  explicit Pair(const RowOptions& o) : Pair(o, o) {}

  // Engines without any view yet.
  void Restart(const ReplicaLogLimits& log = {}) {
    EngineOptions options;
    options.replica_log = log;
    options.server = kServer;
    primary.engine = std::make_unique<Engine>(options);
    options.server = kReplica;
    replica.engine = std::make_unique<Engine>(options);
  }
  v1::Partition* partition() { return primary.view.mutable_partitions(0); }
  void ApplyPrimary() { REQUIRE(primary.Apply().ok()); }
  void ApplyReplica() {
    replica.view = primary.view;
    REQUIRE(replica.Apply().ok());
  }
  void Apply() {
    ApplyPrimary();
    ApplyReplica();
  }
  void AddLearner() {
    v1::Replica* learner = partition()->add_learners();
    learner->set_server(kReplica);
    learner->set_since(2);
    partition()->set_configuration(2);
  }
  void Admit() {
    *partition()->add_followers() = partition()->learners(0);
    partition()->clear_learners();
    partition()->set_configuration(3);
    Apply();
  }
  void Promote() {
    partition()->clear_followers();
    partition()->clear_learners();
    partition()->set_primary(kReplica);
    partition()->set_epoch(2);
    ApplyReplica();
  }

  void Take() { primary.engine->replicas().Take(&records_, 1000); }
  // Delivers the taken records. Records after a refused one are lost, as with its link.
  ReplyStatus Deliver() {
    ReplyStatus status = ReplyStatus::kOk;
    for (const ReplicaRecord& r : std::exchange(records_, {})) {
      const ReplicaBytes bytes(r);
      for (int i = 0; i < 100; ++i) {
        status = replica.engine->copies()
                     .Replicate({kServer, 0}, bytes.record(), bytes.payload())
                     .status;
        replica.Events();
        if (status != ReplyStatus::kResourceExhausted) break;
      }
      primary.engine->replicas().Answered(r.to, 0, r.group.sequence, status);
      Collect();
      if (status != ReplyStatus::kOk) return status;
    }
    return status;
  }
  // All there is.
  ReplyStatus Ship() {
    for (int i = 0; i < 1000; ++i) {
      Take();
      if (records_.empty()) break;
      if (const ReplyStatus status = Deliver(); status != ReplyStatus::kOk) return status;
    }
    return ReplyStatus::kOk;
  }
  void Collect() {
    for (const Event& event : primary.Events()) {
      acknowledged += event.kind == Event::Kind::kReplicated ? 1 : 0;
    }
  }
  // A push of ones to these keys that ends its step.
  void Push(const std::vector<uint64_t>& keys) {
    REQUIRE(primary.PushValue(0, 0, next_, keys, 1) == ReplyStatus::kOk);
    if (!sync_) ++next_;
    REQUIRE(primary.EndStatus(0, 0, next_, 1, ++steps_) == ReplyStatus::kOk);
    ++next_;
  }

  // Workers count from the first again.
  void BeginGeneration() {
    next_ = sync_ ? 0 : 1;
    steps_ = 0;
  }

  RowFixture primary, replica;
  uint64_t acknowledged = 0;

 private:
  const bool sync_;
  uint64_t next_ = sync_ ? 0 : 1;
  uint64_t steps_ = 0;
  std::vector<ReplicaRecord> records_;
};

inline v1::Consistency AnyConsistency() {
  return GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC, v1::CONSISTENCY_SSP);
}

// The primary has the learner, and then the table; the learner's first record comes under a view
// with both.
inline void CreateUnderLearner(Pair* pair) {
  const v1::Table table = pair->primary.view.tables(0);
  v1::Table other = table;
  other.set_id(3);
  other.mutable_spec()->set_name("other");
  *pair->primary.view.mutable_tables(0) = other;
  pair->Restart();
  pair->Apply();
  pair->AddLearner();
  pair->ApplyPrimary();
  *pair->primary.view.add_tables() = table;
  pair->Apply();
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_REPLICA_PAIR_H_
