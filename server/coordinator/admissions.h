// Admissions of workers to a run of an elastic job: their ranks, and their first steps.
//
// A worker that joins a run of a job with sync tables is `joining` first. A worker of the run names
// a step of each sync table that it sends nothing of before its view has the decision
// (AdmitMembersRequest). No server commits a step without that worker, so none commits one of these
// before its own view has the decision either: the worker's records name the admission, and a
// server with an older view takes none of them. If the worker is gone, that is in a later view. So
// every server counts the same workers in a step, also one that becomes primary later.
//
// **Thread safety**: functions without state of their own, on a view.
//
// Invariants:
//  1. A first step is one more than the step that was named. A former owner of the rank has pushed
//     to no such step: a server takes pushes to one step beyond those that all workers have ended.
//  2. Job.admission grows with every decision, and a request names the one that its sender has
//     seen: none takes effect after its sender may have gone on.
//  3. Workers create their tables one after another before they begin the first iteration. A table
//     that is created after a decision at the beginning has the first step of the others, with
//     which the joined workers then begin on all. Later tables wait for them in every step, as they
//     do where nobody knows how far training is: an operator's or a restored one.
//  4. Tables with one norm (clip_global_norm) have one first step, if workers may end their steps.
#ifndef VERBENA_SERVER_COORDINATOR_ADMISSIONS_H_
#define VERBENA_SERVER_COORDINATOR_ADMISSIONS_H_

#include <cstdint>
#include <string>

#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline bool IsElastic(const v1::Job& job) { return job.max_workers() > 0; }

// The least rank of an elastic job that no member has; -1: there is none.
int32_t LeastFreeRank(const v1::Job& job);

// A decision: admits all joining workers of the caller's job, as far as there are ranks. False: it
// was made already. The caller is a worker.
bool Admit(const v1::AdmitMembersRequest& request, ViewEditor* view);

// A new table of a job: the first steps of workers that have joined its run. ended_steps: of the
// caller (CreateTableRequest), 0 also of one that is no worker.
void BeginTable(const v1::Table& table, uint64_t ended_steps, ViewEditor* view);

// Forgets the first steps of workers that have left the job.
void ForgetDeparted(const std::string& job, ViewEditor* view);

// All workers of an elastic job's run are gone: its joining workers, if any, begin the next run.
void BeginWithJoining(const std::string& job, ViewEditor* view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ADMISSIONS_H_
