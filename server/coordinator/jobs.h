// Members of a job: ranks, departures, and the start of a new run (generation) of a job.
//
// **Thread safety**: functions without state of their own, on a view.
//
// Invariants:
//  1. A rank has at most one living member. Within a generation, a departed rank below
//     expected_workers is not given out again: servers have ended its steps and no longer wait for
//     it. A higher rank is free again: servers wait for none of these. An elastic job's ranks are
//     given out again with a first step (admissions.h).
//  2. A generation ends when its last member that is not an observer has left, or when an operator
//     resets a table then.
#ifndef VERBENA_SERVER_COORDINATOR_JOBS_H_
#define VERBENA_SERVER_COORDINATOR_JOBS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr uint32_t kMaxWorkers = 65536;  // of one job
// Servers keep about 50 bytes for each chunk of a job's sync tables and each of its workers, from
// the table's creation on. That counts against their memory limits but is never refused, so it is
// limited here: 3 GiB on all servers together.
inline constexpr uint64_t kMaxContributions = uint64_t{1} << 26;

// Whether the join can only succeed in the job's next run: its ranks have left this one.
bool WaitsForNextRun(const v1::JoinWorkerRequest& request, const v1::Job& job);
// Members that are not observers.
bool HasWorkers(const v1::Job& job);
// For a job without workers: the next worker that joins begins a new run.
void StartGeneration(v1::Job* job);

// Adds the worker to its job (created if new). `member` has all but its name and rank. Returns the
// rank; -1 for an observer, and for a worker of an elastic job that is joining.
absl::StatusOr<int32_t> AdmitWorker(const v1::JoinWorkerRequest& request, v1::Worker member,
                                    ViewEditor* view);

// Removes it from its job. False when no job has it. If it was the last worker of an elastic job,
// those that are joining begin the next run.
bool RetireWorker(uint64_t incarnation, ViewEditor* view);

// Whether the job of `spec`, a sync table, can have it. A sync table waits for ranks below
// expected_workers: FAILED_PRECONDITION when the job has members beyond (they joined while it had
// only async tables). RESOURCE_EXHAUSTED: kMaxContributions.
absl::Status CheckJobOfSyncTable(const v1::TableSpec& spec, const ViewEditor& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_JOBS_H_
