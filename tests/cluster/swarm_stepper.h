// A worker's part in the steps of sync tables: its step of each table, the units that it has pushed
// in this step, and its next operation.
//
// Tables that one norm spans are stepped together: a step is ended on each of them before the next
// one is on any, and on none while one of them cannot take part: then the job begins a new run
// (SwarmNorm::Apart(), and Apart() for a worker that was ahead when a table came).
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_STEPPER_H_
#define VERBENA_TESTS_CLUSTER_SWARM_STEPPER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmStepper {
 public:
  // The next operations on a table, in the order of the fields that are set.
  struct Turn {
    bool read = false, whole = false;  // units of the open version; all of them
    bool push = false;                 // some that were not pushed in this step
    bool push_pull = false;            // all of them, which ends the step
    bool end = false;
  };

  SwarmStepper(SwarmWorld* world, const SwarmJob* job);

  // The run that the worker has joined.
  void Join(uint32_t generation) { generation_ = generation; }
  // A table is opened: the first step of an elastic job's worker.
  void Begin(uint32_t table, uint64_t first);
  uint32_t generation() const { return generation_; }
  // `view`: the client's, by which it refuses to end steps.
  Turn Draw(const SwarmTable& table, const v1::ClusterView& view);
  // Whether this worker can end no further step on some tables that one norm spans.
  bool Apart(const v1::ClusterView& view) const;
  uint64_t step(uint32_t table) const;
  uint64_t first(uint32_t table) const;
  // The first step that nothing was pushed to.
  uint64_t unpushed_step(uint32_t table) const;
  // Whether nothing but `version`, which a read has asked for, can have been shown: a later one
  // would take this worker, too.
  bool Shows(const SwarmTable& table, uint32_t unit, uint64_t version) const;
  // The first run (dense) or all (rows) of `units` that may be pushed in this step.
  std::vector<uint32_t> Unpushed(const SwarmTable& table, const std::vector<uint32_t>& units) const;

  // A pull may wait for others, and holds an operation of its lane meanwhile: one at a time, so
  // that the operations that the others wait for have room.
  void Reads(bool reads) { reads_ = reads; }
  void Pushed(uint32_t table, const std::vector<uint32_t>& units);
  void End(uint32_t table);
  // All of the table is known to be at `version`.
  void Known(uint32_t table, uint64_t version);
  // The step of each table, and the version that it is known to have.
  std::string Describe() const;

 private:
  struct Steps {
    uint64_t step = 0, known = 0;
    std::set<uint32_t> pushed;
    uint64_t first = 0;
  };
  bool MayEnd(const SwarmTable& table, const v1::ClusterView& view) const;
  bool Spanned(const v1::Table& table) const;

  SwarmWorld* const world_;
  const SwarmJob* const job_;
  uint32_t generation_ = 0;
  bool reads_ = false;
  std::map<uint32_t, Steps> steps_;  // by table
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_STEPPER_H_
