#include "shard/partition/parking.h"

#include <algorithm>

namespace verbena::shard {

void Parking::Resize() {
  if (pulls_.size() < table_->chunks()) pulls_.resize(table_->chunks());
  if (waiters_.size() < table_->slices()) waiters_.resize(table_->slices());
}

void Parking::ParkPull(uint32_t chunk, const PullRequest& request) {
  Resize();
  pulls_[chunk].push_back({request.token, request.worker, request.min_version, request.destination,
                           request.destination_key});
  ++parked_pulls_;
  ++sink_->counters.parked;
}

void Parking::ParkAwait(const GroupsRequest& request, absl::Span<const uint32_t> slices) {
  Resize();
  auto index = static_cast<uint32_t>(awaits_.size());
  if (free_awaits_.empty()) {
    awaits_.emplace_back();
  } else {
    index = free_awaits_.back();
    free_awaits_.pop_back();
  }
  awaits_[index] = {request.token, request.worker, static_cast<uint32_t>(slices.size()), false};
  for (const uint32_t s : slices) waiters_[s].push_back({index, request.min_version});
  ++parked_awaits_;
  ++sink_->counters.parked;
}

void Parking::EndAwait(uint32_t index, const ReplyStatus* why, uint64_t version) {
  Await& a = awaits_[index];
  if (why != nullptr) {
    sink_->events.push_back({Event::Kind::kAwaitDone, a.token, {*why, 0, version}, {}, 0, 0});
  }
  a = {};
  free_awaits_.push_back(index);
  --parked_awaits_;
  --sink_->counters.parked;
}

void Parking::ReleaseChunk(uint32_t chunk, Ready ready) {
  if (chunk >= pulls_.size() || pulls_[chunk].empty()) return;
  std::vector<Pull>& pulls = pulls_[chunk];
  const auto answer = [&](const Pull& p) {
    Answer reply;
    if (!ready(p.worker, chunk, p.min_version, &reply)) return false;
    const ChunkView view = table_->Pin(chunk);
    sink_->events.push_back(
        {Event::Kind::kPullReady, p.token, reply, view, p.destination, p.destination_key});
    sink_->Pulled(view, &table_->counters(), by_version_ ? nullptr : &reply.detail);
    --sink_->counters.parked;
    --parked_pulls_;
    return true;
  };
  pulls.erase(std::remove_if(pulls.begin(), pulls.end(), answer), pulls.end());
}

void Parking::Release(uint32_t slice, Ready ready) {
  if (parked_pulls_ == 0) return;
  for (const uint32_t chunk : table_->slice(slice).chunks) ReleaseChunk(chunk, ready);
}

void Parking::Advanced(uint32_t chunk) {
  const DenseTable::Chunk& c = table_->chunk(chunk);
  if (by_version_ && parked_pulls_ > 0) {
    ReleaseChunk(chunk, [&](uint64_t, uint32_t, uint64_t min_version, Answer* answer) {
      answer->version = c.version;
      return min_version <= c.version;
    });
  }
  if (parked_awaits_ == 0 || c.slice >= waiters_.size()) return;
  std::vector<Waiter>& waiters = waiters_[c.slice];
  const uint64_t reached = table_->slice(c.slice).min_version;
  const auto done = [&](const Waiter& w) {
    if (w.min_version > reached) return false;
    const ReplyStatus ok = ReplyStatus::kOk;
    if (--awaits_[w.await].remaining == 0) EndAwait(w.await, &ok, reached);
    return true;
  };
  waiters.erase(std::remove_if(waiters.begin(), waiters.end(), done), waiters.end());
}

void Parking::RemovePulls(PullMatch match, const ReplyStatus* why) {
  if (parked_pulls_ == 0) return;
  for (uint32_t chunk = 0; chunk < pulls_.size(); ++chunk) {
    std::vector<Pull>& pulls = pulls_[chunk];
    const auto remove = [&](const Pull& p) {
      if (!match(chunk, p)) return false;
      if (why != nullptr) {
        sink_->events.push_back({Event::Kind::kPullFailed,
                                 p.token,
                                 {*why, 0, 0},
                                 {},
                                 p.destination,
                                 p.destination_key});
      }
      --sink_->counters.parked;
      --parked_pulls_;
      return true;
    };
    pulls.erase(std::remove_if(pulls.begin(), pulls.end(), remove), pulls.end());
  }
}

void Parking::RemoveFailedAwaits(const ReplyStatus* why) {
  if (parked_awaits_ == 0) return;
  for (std::vector<Waiter>& waiters : waiters_) {
    const auto failed = [&](const Waiter& w) { return awaits_[w.await].failed; };
    waiters.erase(std::remove_if(waiters.begin(), waiters.end(), failed), waiters.end());
  }
  for (uint32_t i = 0; i < awaits_.size(); ++i) {
    if (awaits_[i].failed) EndAwait(i, why, 0);
  }
}

void Parking::FailSlice(uint32_t slice, ReplyStatus why) {
  RemovePulls([&](uint32_t chunk, const Pull&) { return table_->chunk(chunk).slice == slice; },
              &why);
  if (slice >= waiters_.size()) return;
  for (const Waiter& w : waiters_[slice]) awaits_[w.await].failed = true;
  RemoveFailedAwaits(&why);
}

void Parking::FailAll(ReplyStatus why) {
  RemovePulls([](uint32_t, const Pull&) { return true; }, &why);
  for (Await& a : awaits_) a.failed = a.remaining > 0;
  RemoveFailedAwaits(&why);
}

void Parking::FailWorkers(absl::FunctionRef<bool(uint64_t)> expired) {
  const ReplyStatus why = ReplyStatus::kExpired;
  RemovePulls([&](uint32_t, const Pull& p) { return expired(p.worker); }, &why);
  for (Await& a : awaits_) a.failed = a.remaining > 0 && expired(a.worker);
  RemoveFailedAwaits(&why);
}

void Parking::ForgetLane(uint32_t lane) {
  RemovePulls([&](uint32_t, const Pull& p) { return p.token.lane == lane; }, nullptr);
  for (Await& a : awaits_) a.failed = a.remaining > 0 && a.token.lane == lane;
  RemoveFailedAwaits(nullptr);
}

}  // namespace verbena::shard
