#include "shard/partition/deferred_requests.h"

#include <algorithm>

namespace verbena::shard {

void DeferredRequests::DeferAwait(const GroupsRequest& request, absl::Span<const uint32_t> slices) {
  auto index = static_cast<uint32_t>(awaits_.size());
  if (free_awaits_.empty()) {
    awaits_.emplace_back();
  } else {
    index = free_awaits_.back();
    free_awaits_.pop_back();
  }
  awaits_[index] = {request.token, request.worker, static_cast<uint32_t>(slices.size()), false};
  for (const uint32_t s : slices) {
    if (s >= waiters_.size()) waiters_.resize(s + 1);
    waiters_[s].push_back({index, request.min_version});
  }
  ++deferred_awaits_;
  ++sink_->counters.deferred;
}

void DeferredRequests::EndAwait(uint32_t index, const ReplyStatus* why, uint64_t version) {
  Await& a = awaits_[index];
  if (why != nullptr) {
    sink_->events.push_back({Event::Kind::kAwaitDone, a.token, {*why, 0, version}, {}, 0, 0});
  }
  a = {};
  free_awaits_.push_back(index);
  --deferred_awaits_;
  --sink_->counters.deferred;
}

void DeferredRequests::LocalPartitionReached(uint32_t slice, uint64_t version) {
  if (deferred_awaits_ == 0 || slice >= waiters_.size()) return;
  std::vector<Waiter>& waiters = waiters_[slice];
  const auto done = [&](const Waiter& w) {
    if (w.min_version > version) return false;
    const ReplyStatus ok = ReplyStatus::kOk;
    if (--awaits_[w.await].remaining == 0) EndAwait(w.await, &ok, version);
    return true;
  };
  waiters.erase(std::remove_if(waiters.begin(), waiters.end(), done), waiters.end());
}

void DeferredRequests::RemoveFailedAwaits(const ReplyStatus* why) {
  if (deferred_awaits_ == 0) return;
  for (std::vector<Waiter>& waiters : waiters_) {
    const auto failed = [&](const Waiter& w) { return awaits_[w.await].failed; };
    waiters.erase(std::remove_if(waiters.begin(), waiters.end(), failed), waiters.end());
  }
  for (uint32_t i = 0; i < awaits_.size(); ++i) {
    if (awaits_[i].failed) EndAwait(i, why, 0);
  }
}

void DeferredRequests::FailLocalPartition(uint32_t slice, ReplyStatus why) {
  RemoveReadsOf(slice, why);
  if (slice >= waiters_.size()) return;
  for (const Waiter& w : waiters_[slice]) awaits_[w.await].failed = true;
  RemoveFailedAwaits(&why);
}

void DeferredRequests::FailAll(ReplyStatus why) {
  RemoveReads([](const Token&, uint64_t) { return true; }, &why);
  for (Await& a : awaits_) a.failed = a.remaining > 0;
  RemoveFailedAwaits(&why);
}

void DeferredRequests::FailWorkers(absl::FunctionRef<bool(uint64_t)> expired) {
  const ReplyStatus why = ReplyStatus::kExpired;
  RemoveReads([&](const Token&, uint64_t worker) { return expired(worker); }, &why);
  for (Await& a : awaits_) a.failed = a.remaining > 0 && expired(a.worker);
  RemoveFailedAwaits(&why);
}

void DeferredRequests::ForgetLane(uint32_t lane) {
  RemoveReads([&](const Token& token, uint64_t) { return token.lane == lane; }, nullptr);
  for (Await& a : awaits_) a.failed = a.remaining > 0 && a.token.lane == lane;
  RemoveFailedAwaits(nullptr);
}

void DeferredRequests::ReturnReads(uint32_t lane, absl::FunctionRef<bool(uint32_t)> which) {
  const ReplyStatus why = ReplyStatus::kTooEarly;
  RemoveReads(
      [&](const Token& token, uint64_t) { return token.lane == lane && which(token.operation); },
      &why);
}

}  // namespace verbena::shard
