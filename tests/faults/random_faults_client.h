// The clients of one worker process of random_faults: those of the plan, and those that come and
// go.
//
// **Thread safety**: each function blocks, and may run beside the others in a thread of its own.
//
// **Invariants**
// 1. The clients of the plan stay until Phase::kStop, and end at equal steps; visitors end whenever
//    they like, and no step waits for a client that has left.
// 2. A table that comes and goes is checked for its exact sum before it is dropped.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLIENT_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLIENT_H_

#include <memory>
#include <string>

#include "tests/faults/random_faults_ledger.h"
#include "tests/faults/random_faults_plan.h"
#include "verbena/client.h"

namespace verbena::test {

// The state that all parts of a process share.
struct Run {
  FaultOptions options;
  Plan plan;
  std::string cluster;  // address of the coordinator
  Ledger* ledger;
};

// A client of the plan: a thread that pushes for each table of its job, one that reads, and in the
// first of a job one that makes and drops tables.
void RunClient(const Run& run, const ClientPlan& plan);

// Readers and, in jobs without sync tables, workers, that join and leave one after the other.
void RunVisitors(const Run& run, int process);

// Quick calls to an idle table while another thread, of the same client, waits for an answer.
void RunProbe(const Run& run);

// Reads every table of the plan and checks its exact sums, after all pushes have ended.
void CheckSums(const Run& run);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLIENT_H_
