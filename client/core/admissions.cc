#include "client/core/admissions.h"

#include <algorithm>

#include "client/core/backoff.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"
#include "proto/control/view_tables.h"

namespace verbena::client {
namespace {

// Steps that are posted between the request and the decision: as long as training takes for these,
// it does not wait for the answer.
constexpr uint64_t kFreeSteps = 1;
// An answer takes so long at most; then the request is sent again.
constexpr int64_t kAskEvery = 5 * kSecond;
// Awaits of a joining worker: for no more steps before its first one.
constexpr uint64_t kMostAwaited = 64;

}  // namespace

bool Admissions::IsAsked(const v1::Job& job) const {
  bool joining = false;
  uint64_t least = UINT64_MAX;
  for (const v1::Worker& member : job.members()) {
    joining |= member.joining();
    if (member.rank() >= 0) least = std::min(least, member.incarnation());
  }
  return joining && least == tracker_.session->incarnation();
}

void Admissions::OnView() {
  const v1::Job* job = tracker_.session->OwnJob();
  if (job == nullptr || job->max_workers() == 0) return;
  known_ = std::max(known_, job->admission());
  const v1::Worker* own = FindMember(tracker_.session->incarnation(), *job);
  if (!begun_ && own != nullptr && own->rank() >= 0) {
    begun_ = true;
    // Some are known since before the admission.
    for (const auto& [id, table] : tracker_.tables.all()) Begin(table.get());
  }
  if (holds_ && known_ > request_.admission()) Release();
  if (!holds_ && !tracker_.closed && IsAsked(*job)) Hold(*job);
}

void Admissions::Hold(const v1::Job& job) {
  holds_ = true;
  request_ = {};
  request_.set_incarnation(tracker_.session->incarnation());
  request_.set_admission(job.admission());
  first_held_.clear();
  const v1::Worker* own = FindMember(tracker_.session->incarnation(), job);
  for (const v1::Table& info : tracker_.session->view().tables()) {
    if (info.spec().job() != job.name() || info.spec().consistency() != v1::CONSISTENCY_SYNC) {
      continue;
    }
    const v1::FirstStep* first = own == nullptr ? nullptr : FirstStepOf(info.id(), *own, job);
    // The least step of which this worker has sent nothing.
    uint64_t next = first == nullptr ? 0 : first->step();
    uint64_t committed = first == nullptr ? 0 : first->open();
    const auto it = tracker_.tables.all().find(info.id());
    if (it != tracker_.tables.all().end() && !it->second->dropped) {
      next = std::max({next, it->second->step, it->second->pushed_step});
      committed = std::max(committed, it->second->committed);
    }
    v1::HeldSteps* held = request_.add_tables();
    held->set_table(info.id());
    held->set_first_held(next + kFreeSteps);
    held->set_committed(committed);
    first_held_[info.id()] = held->first_held();
  }
  for (const auto& [id, table] : tracker_.tables.all()) {
    const auto it = first_held_.find(id);
    table->first_held = it == first_held_.end() ? 0 : it->second;
  }
  ask_at_ = 0;
}

void Admissions::Release() {
  holds_ = false;
  ask_at_ = kNever;
  for (const auto& [id, table] : tracker_.tables.all()) table->first_held = UINT64_MAX;
  for (const auto& stream : tracker_.lanes->streams()) tracker_.queue.Touch(stream.get());
}

uint64_t Admissions::EndedSteps() const {
  uint64_t steps = 0;
  for (const auto& [id, table] : tracker_.tables.all()) {
    if (table->sync && !table->dropped) steps = std::max(steps, table->step - table->first_step);
  }
  return steps;
}

void Admissions::RunOnce(int64_t now) {
  if (now < ask_at_) return;
  ask_at_ = now + kAskEvery;
  if (!holds_ || tracker_.closed) {
    ask_at_ = kNever;
    return;
  }
  // The view brings the decision.
  tracker_.session->AdmitMembers(request_, ask_at_);
}

void Admissions::Begin(TableState* table) {
  if (!table->sync || table->dropped) return;
  if (holds_) {
    const auto held = first_held_.find(table->id());
    table->first_held = held == first_held_.end() ? 0 : held->second;
  }
  const v1::Job* job = tracker_.session->OwnJob();
  const v1::Worker* own = job == nullptr || table->info.spec().job() != job->name()
                              ? nullptr
                              : FindMember(tracker_.session->incarnation(), *job);
  const v1::FirstStep* first = own == nullptr ? nullptr : FirstStepOf(table->id(), *own, *job);
  if (first == nullptr || first->step() == 0) return;
  table->step = table->first_step = first->step();
  for (uint32_t part = 0; part < table->parts.size(); ++part) {
    tracker_.commits.LearnPart(table, part, first->open());
  }
  // Nothing is sent before the steps of others are over. In a table with norms those need this
  // worker if it is the only one left, so it follows each.
  const bool norms = table->clipped || table->trust;
  const uint64_t step = first->step();
  const uint64_t from = step > kMostAwaited ? step - kMostAwaited : 1;
  const uint64_t least = norms ? std::max(first->open() + 1, from) : step;
  for (uint64_t version = least; version <= step; ++version) {
    tracker_.requests.await.AddAll(table, version);
  }
}

}  // namespace verbena::client
