#include "server/coordinator/jobs.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "server/coordinator/admissions.h"
#include "server/coordinator/failpoints.h"

namespace verbena::server {
namespace {

bool HasDeparted(const v1::Job& job, int32_t rank) {
  return std::find(job.departed_ranks().begin(), job.departed_ranks().end(), rank) !=
         job.departed_ranks().end();
}

// The condition for a rank beyond expected_workers: a job without sync tables, in which no worker
// waits for others.
bool NoSyncTables(const v1::Job& job, const ViewEditor& view) {
  return !view.TablesOf(job.name()).empty() && view.SumsOf(job.name()).sync_tables == 0;
}

absl::StatusOr<int32_t> NamedRank(int32_t rank, const v1::Job& job) {
  if (rank >= static_cast<int32_t>(job.expected_workers())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of job '", job.name(), "': expected_workers is ",
                     job.expected_workers(), ", so ranks are 0 to ", job.expected_workers() - 1));
  }
  for (const v1::Worker& member : job.members()) {
    if (member.rank() != rank) continue;
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " of job '", job.name(),
                                                 "' is held by worker '", member.name(),
                                                 "' (incarnation ", member.incarnation(),
                                                 "); it is free once that has left, or, if it "
                                                 "was killed, once its lease has ended"));
  }
  if (HasDeparted(job, rank) && IsElastic(job)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " of job '", job.name(), "' has left this run (generation ",
                     job.generation(),
                     "); the job is elastic: a worker that joins without a rank gets one that is "
                     "free"));
  }
  if (HasDeparted(job, rank)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " of job '", job.name(), "' has left this run (generation ",
                     job.generation(),
                     "), which goes on without it; the rank is free again in the "
                     "next run, once all members of this one are gone"));
  }
  return rank;
}

// A rank of an elastic job whose expected workers have all joined this run; -1: for a time as a
// joining worker, because steps that were begun go on without it.
absl::StatusOr<int32_t> LateRank(const v1::Job& job, const ViewEditor& view) {
  const auto workers = std::count_if(
      job.members().begin(), job.members().end(),
      [](const v1::Worker& member) { return member.rank() >= 0 || member.joining(); });
  if (workers >= static_cast<int64_t>(job.max_workers())) {
    return absl::AlreadyExistsError(
        absl::StrCat("job '", job.name(), "' has ", workers, " workers already (max_workers)"));
  }
  const bool waits =
      view.SumsOf(job.name()).sync_tables > 0 && !VERBENA_FAILPOINT(server, reuse_ranks);
  return waits ? -1 : LeastFreeRank(job);
}

// A rank beyond the expected ones is free again when its worker has gone, because no step waits for
// it. So a run without an end has ranks for all new workers.
absl::StatusOr<int32_t> FreeRank(const v1::Job& job, const ViewEditor& view) {
  const auto expected = static_cast<int32_t>(job.expected_workers());
  // One of these is free beyond the expected ones, too.
  std::vector<bool> used(static_cast<size_t>(expected) + job.members_size() + 1);
  const auto use = [&](int32_t rank) {
    if (rank >= 0 && static_cast<size_t>(rank) < used.size()) used[rank] = true;
  };
  for (const int32_t rank : job.departed_ranks()) {
    if (rank < expected) use(rank);
  }
  for (const v1::Worker& member : job.members()) use(member.rank());
  for (int32_t rank = 0; rank < expected; ++rank) {
    if (!used[rank]) return rank;
  }
  if (IsElastic(job)) return LateRank(job, view);
  if (!NoSyncTables(job, view)) {
    const bool all_live = job.departed_ranks().empty();
    return absl::Status(
        all_live ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kFailedPrecondition,
        absl::StrCat("job '", job.name(), "' has its ", expected,
                     " workers already (expected_workers; living or departed); more may join only "
                     "once it has tables, none of which is sync"));
  }
  int32_t next = expected;
  while (used[next]) ++next;
  if (next >= static_cast<int32_t>(kMaxWorkers)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job '", job.name(), "' has ", kMaxWorkers, " workers, as many as may be"));
  }
  return next;
}

absl::Status CheckExpected(const v1::JoinWorkerRequest& request) {
  if (request.expected_workers() >= 1 && request.expected_workers() <= kMaxWorkers) {
    const uint32_t most = request.max_workers();
    if (most == 0 || (most >= request.expected_workers() && most <= kMaxWorkers)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("max_workers of job '", request.job(), "' is ", most,
                     "; allowed: 0 (the job is not elastic), or expected_workers, which is ",
                     request.expected_workers(), ", to ", kMaxWorkers));
  }
  return absl::InvalidArgumentError(absl::StrCat("expected_workers of job '", request.job(),
                                                 "' is ", request.expected_workers(),
                                                 "; allowed: 1 to ", kMaxWorkers));
}

// `added`: a table that the job is to have, too; may be null.
absl::Status CheckContributions(const v1::Job& job, const ViewEditor& view,
                                const v1::TableSpec* added) {
  const auto partitions = static_cast<uint64_t>(view.view().partitions_size());
  const uint64_t entries = view.SumsOf(job.name()).contributions +
                           (added == nullptr ? 0 : ContributionsOf(*added, partitions));
  const uint32_t workers = std::max({job.expected_workers(), job.max_workers(), 1u});
  const uint64_t allowed = kMaxContributions / workers;
  if (entries <= allowed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", job.name(), "' with ", workers, " workers: its sync tables have ",
                   entries, " chunks and partitions; allowed: ", allowed,
                   " for so many workers. Greater chunk_bytes make fewer chunks"));
}

// Starts the job or its next generation where this join does so.
absl::Status OpenGeneration(const v1::JoinWorkerRequest& request, const ViewEditor& view,
                            v1::Job* job) {
  if (absl::Status status = CheckExpected(request); !status.ok()) return status;
  if (!HasWorkers(*job)) {
    if (job->departed_ranks_size() > 0) StartGeneration(job);
    // 0 also when only observers have come so far.
    if (job->expected_workers() == 0) {
      job->set_expected_workers(request.expected_workers());
      job->set_max_workers(request.max_workers());
    }
  }
  if (job->expected_workers() != request.expected_workers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected_workers is ", request.expected_workers(), ", but job '", job->name(),
                     "' was started with ", job->expected_workers(),
                     "; every member must give the same number"));
  }
  if (job->max_workers() != request.max_workers()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_workers is ", request.max_workers(), ", but job '", job->name(), "' was started with ",
        job->max_workers(), "; every member must give the same number"));
  }
  return CheckContributions(*job, view, nullptr);
}

}  // namespace

bool WaitsForNextRun(const v1::JoinWorkerRequest& request, const v1::Job& job) {
  if (request.observer() || IsElastic(job) || !HasWorkers(job)) return false;
  return request.rank() < 0 ? job.departed_ranks_size() > 0 : HasDeparted(job, request.rank());
}

bool HasWorkers(const v1::Job& job) {
  return std::any_of(job.members().begin(), job.members().end(),
                     [](const v1::Worker& w) { return w.rank() >= 0; });
}

void StartGeneration(v1::Job* job) {
  job->set_generation(job->generation() + 1);
  job->clear_departed_ranks();
  job->set_expected_workers(0);
  job->set_max_workers(0);
  job->clear_admissions();
}

absl::StatusOr<int32_t> AdmitWorker(const v1::JoinWorkerRequest& request, v1::Worker member,
                                    ViewEditor* view) {
  if (view->FindJob(request.job()) == nullptr) view->AddJob(request.job());
  int32_t rank = -1;
  if (!request.observer()) {
    v1::Job* job = view->EditJob(request.job());
    if (absl::Status status = OpenGeneration(request, *view, job); !status.ok()) return status;
    absl::StatusOr<int32_t> given =
        request.rank() >= 0 ? NamedRank(request.rank(), *job) : FreeRank(*job, *view);
    if (!given.ok()) return given.status();
    rank = *given;
    member.set_joining(rank < 0);
    // Earlier versions kept those beyond the expected ones, too.
    auto* departed = job->mutable_departed_ranks();
    departed->erase(std::remove(departed->begin(), departed->end(), rank), departed->end());
  }
  member.set_name(request.name().empty() ? absl::StrCat("worker-", member.incarnation())
                                         : request.name());
  member.set_rank(rank);
  view->AddMember(request.job(), member);
  return rank;
}

bool RetireWorker(uint64_t incarnation, ViewEditor* view) {
  if (view->JobOf(incarnation) == nullptr) return false;
  const std::string job = view->JobOf(incarnation)->name();
  view->RemoveMember(incarnation);
  ForgetDeparted(job, view);
  BeginWithJoining(job, view);
  return true;
}

absl::Status CheckJobOfSyncTable(const v1::TableSpec& spec, const ViewEditor& view) {
  const v1::Job* job = view.FindJob(spec.job());
  if (job == nullptr) return absl::OkStatus();
  for (const v1::Worker& member : job->members()) {
    const uint32_t ranks = std::max(job->expected_workers(), job->max_workers());
    if (member.rank() < static_cast<int32_t>(ranks)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("a sync table cannot be added to job '", job->name(), "': worker '",
                     member.name(), "' has rank ", member.rank(), ", beyond expected_workers (",
                     job->expected_workers(), "); use another job"));
  }
  return CheckContributions(*job, view, &spec);
}

}  // namespace verbena::server
