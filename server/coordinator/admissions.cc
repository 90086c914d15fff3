#include "server/coordinator/admissions.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/coordinator/failpoints.h"
#include "server/coordinator/jobs.h"

namespace verbena::server {
namespace {

// No run has so many steps.
constexpr uint64_t kMostSteps = uint64_t{1} << 62;
// Steps that a table may have before the first iteration: one that assigns its first parameters.
constexpr uint64_t kInitialSteps = 1;
// The greatest first step of workers that were admitted then: the next step has perhaps been pushed
// to, and the one after it was free.
constexpr uint64_t kInitialFirst = kInitialSteps + 3;

// How far tables with one norm over all of them are apart: a step is ended on each before the next
// is on any, and the next but one may have been pushed to. The norm of a worker that joins would
// leave out those with lesser first steps.
constexpr uint64_t kMostApart = 3;

bool IsClipped(const v1::Table& table) { return table.spec().optimizer().clip_global_norm() > 0; }

uint64_t FirstHeld(const v1::HeldSteps& held) { return std::min(held.first_held(), kMostSteps); }

std::vector<uint64_t> JoiningOf(const v1::Job& job) {
  std::vector<uint64_t> joining;
  for (const v1::Worker& member : job.members()) {
    if (member.joining()) joining.push_back(member.incarnation());
  }
  return joining;
}

void GiveRank(uint64_t incarnation, int32_t rank, uint32_t admission, const std::string& job,
              ViewEditor* view) {
  v1::Worker* member = view->EditMember(incarnation);
  member->set_rank(rank);
  member->set_joining(false);
  member->set_admission(admission);
  auto* departed = view->EditJob(job)->mutable_departed_ranks();
  departed->erase(std::remove(departed->begin(), departed->end(), rank), departed->end());
}

// Tables that one iteration of a trainer pushes to are at the same step or, in the midst of the
// iteration, at two successive ones. A worker that joins begins with the same step of all of them;
// also of a table that was created after the request, of which the caller has sent nothing.
v1::MemberAdmission FirstSteps(const v1::AdmitMembersRequest& request, const std::string& job,
                               const ViewEditor& view) {
  absl::flat_hash_map<uint32_t, const v1::HeldSteps*> named;
  for (const v1::HeldSteps& held : request.tables()) named[held.table()] = &held;
  std::vector<std::pair<uint32_t, const v1::HeldSteps*>> tables;
  uint64_t greatest = 0;
  for (const auto& [id, table] : view.TablesOf(job)) {
    if (table->spec().consistency() != v1::CONSISTENCY_SYNC) continue;
    const auto it = named.find(id);
    tables.emplace_back(id, it == named.end() ? nullptr : it->second);
    if (it != named.end()) greatest = std::max(greatest, FirstHeld(*it->second));
  }
  const auto first_of = [greatest](const v1::HeldSteps* held) {
    const uint64_t step = held == nullptr ? greatest : FirstHeld(*held);
    return (greatest - step <= 1 ? greatest : step) + 1;
  };
  uint64_t clipped = 0;
  for (const auto& [id, held] : tables) {
    if (IsClipped(*view.FindTable(id))) clipped = std::max(clipped, first_of(held));
  }
  v1::MemberAdmission admission;
  for (const auto& [id, held] : tables) {
    // In the midst of training nothing was sent of it, or it was created since the worker was
    // asked: all begin with its step 0.
    if (held == nullptr && greatest + 1 > kInitialFirst) continue;
    const uint64_t committed = held == nullptr ? 0 : held->committed();
    uint64_t step = first_of(held);
    if (IsClipped(*view.FindTable(id)) && clipped - step <= kMostApart) step = clipped;
    v1::FirstStep* first = admission.add_first_steps();
    first->set_table(id);
    first->set_step(step);
    if (VERBENA_FAILPOINT(server, join_open_step)) first->set_step(committed);
    first->set_open(std::min(committed, first->step()));
  }
  return admission;
}

uint64_t GreatestOf(const v1::MemberAdmission& admission) {
  uint64_t greatest = 0;
  for (const v1::FirstStep& first : admission.first_steps()) {
    greatest = std::max(greatest, first.step());
  }
  return greatest;
}

// Forgets first steps that are committed: the workers have contributed to them, and count in all
// later ones. Also those of tables and workers that are gone.
void Prune(const v1::AdmitMembersRequest& request, const ViewEditor& view, v1::Job* job) {
  absl::flat_hash_map<uint32_t, uint64_t> committed;
  for (const v1::HeldSteps& held : request.tables()) committed[held.table()] = held.committed();
  absl::flat_hash_set<uint32_t> used;
  for (const v1::Worker& member : job->members()) used.insert(member.admission());
  auto* admissions = job->mutable_admissions();
  for (v1::MemberAdmission& admission : *admissions) {
    auto* steps = admission.mutable_first_steps();
    const auto over = [&](const v1::FirstStep& first) {
      const auto it = committed.find(first.table());
      return view.FindTable(first.table()) == nullptr ||
             (it != committed.end() && it->second > first.step());
    };
    steps->erase(std::remove_if(steps->begin(), steps->end(), over), steps->end());
  }
  const auto empty = [&](const v1::MemberAdmission& admission) {
    return admission.first_steps().empty() || !used.contains(admission.number());
  };
  admissions->erase(std::remove_if(admissions->begin(), admissions->end(), empty),
                    admissions->end());
}

}  // namespace

int32_t LeastFreeRank(const v1::Job& job) {
  std::vector<bool> used(job.max_workers());
  for (const v1::Worker& member : job.members()) {
    if (member.rank() >= 0 && static_cast<size_t>(member.rank()) < used.size()) {
      used[member.rank()] = true;
    }
  }
  const auto free = std::find(used.begin(), used.end(), false);
  return free == used.end() ? -1 : static_cast<int32_t>(free - used.begin());
}

bool Admit(const v1::AdmitMembersRequest& request, ViewEditor* view) {
  const v1::Job* found = view->JobOf(request.incarnation());
  if (!IsElastic(*found) || found->admission() != request.admission()) return false;
  const std::string name = found->name();
  v1::Job* job = view->EditJob(name);
  job->set_admission(job->admission() + 1);
  Prune(request, *view, job);
  v1::MemberAdmission admission = FirstSteps(request, name, *view);
  admission.set_number(job->admission());
  bool any = false;
  for (const uint64_t incarnation : JoiningOf(*job)) {
    const int32_t rank = LeastFreeRank(*job);
    if (rank < 0) break;
    GiveRank(incarnation, rank, admission.number(), name, view);
    any = true;
  }
  if (any) *job->add_admissions() = std::move(admission);
  return true;
}

void BeginTable(const v1::Table& table, uint64_t ended_steps, ViewEditor* view) {
  if (table.spec().consistency() != v1::CONSISTENCY_SYNC || ended_steps > kInitialSteps) return;
  const v1::Job* found = view->FindJob(table.spec().job());
  if (found == nullptr || found->admissions().empty()) return;
  const bool begins = std::all_of(
      found->admissions().begin(), found->admissions().end(),
      [](const v1::MemberAdmission& admission) { return GreatestOf(admission) <= kInitialFirst; });
  if (!begins) return;
  // No server has the table before it has these first steps, so none has committed one of them.
  v1::Job* job = view->EditJob(table.spec().job());
  for (v1::MemberAdmission& admission : *job->mutable_admissions()) {
    const uint64_t greatest = GreatestOf(admission);
    if (greatest == 0) continue;
    v1::FirstStep* first = admission.add_first_steps();
    first->set_table(table.id());
    first->set_step(greatest);
  }
}

void ForgetDeparted(const std::string& name, ViewEditor* view) {
  const v1::Job* found = view->FindJob(name);
  if (found == nullptr || found->admissions().empty()) return;
  const auto used = [found](const v1::MemberAdmission& admission) {
    const auto of_it = [&](const v1::Worker& w) { return w.admission() == admission.number(); };
    return std::any_of(found->members().begin(), found->members().end(), of_it);
  };
  if (std::all_of(found->admissions().begin(), found->admissions().end(), used)) return;
  auto* admissions = view->EditJob(name)->mutable_admissions();
  admissions->erase(std::remove_if(admissions->begin(), admissions->end(), std::not_fn(used)),
                    admissions->end());
}

void BeginWithJoining(const std::string& name, ViewEditor* view) {
  const v1::Job* found = view->FindJob(name);
  if (found == nullptr || !IsElastic(*found) || HasWorkers(*found)) return;
  const std::vector<uint64_t> joining = JoiningOf(*found);
  if (joining.empty()) return;
  v1::Job* job = view->EditJob(name);
  const uint32_t expected = job->expected_workers(), most = job->max_workers();
  StartGeneration(job);
  job->set_expected_workers(expected);
  job->set_max_workers(most);
  for (uint32_t rank = 0; rank < expected && rank < joining.size(); ++rank) {
    GiveRank(joining[rank], static_cast<int32_t>(rank), 0, name, view);
  }
}

}  // namespace verbena::server
