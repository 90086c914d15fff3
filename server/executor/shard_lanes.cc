#include "server/executor/shard_lanes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/shard_core.h"

namespace verbena::server {

ShardLanes::~ShardLanes() {
  for (auto& lane : lanes_) {
    if (lane != nullptr) lane->lane->Close(absl::CancelledError("the shard stops"));
  }
}

bool ShardLanes::PollEvents(size_t transport) {
  TransportLink& link = core_.transports.links()[transport];
  const size_t n = link.endpoint->PollEvents(absl::MakeSpan(events_));
  for (size_t i = 0; i < n; ++i) {
    const rdma::ConnectionEvent& event = events_[i];
    if (event.kind == rdma::ConnectionEvent::Kind::kRequest) {
      OnRequest(transport, event);
      continue;
    }
    Lane* lane = Find(&link, event.connection);
    if (lane == nullptr) {
      core_.peer_links->OnEvent(transport, event);
      continue;
    }
    lane->lane->OnEvent(event);
    if (Usable(lane) && event.kind == rdma::ConnectionEvent::Kind::kEstablished) {
      ++core_.counters.lanes_opened;
    }
  }
  return n > 0;
}

// A worker has one lane to a shard on each rail of one transport, and opens the next only when the
// last on that rail, or of the transport before, is dead on its side. That one may be alive on
// ours: an outage can swallow the news.
bool ShardLanes::TakesPlace(const LanePeer& peer, size_t link, const Lane& lane) const {
  if (lane.peer != peer) return false;
  const TransportLink& old = core_.transports.links()[lane.transport];
  const TransportLink& next = core_.transports.links()[link];
  return old.rail == next.rail || old.endpoint->transport() != next.endpoint->transport();
}

void ShardLanes::CloseOlder(const LaneGrant& grant) {
  for (auto& lane : lanes_) {
    if (lane == nullptr || lane->generation > grant.generation ||
        !TakesPlace(grant.peer, grant.transport, *lane)) {
      continue;
    }
    Close(lane.get(), absl::UnavailableError(
                          absl::StrCat("its ", lane->peer.server ? "server" : "worker",
                                       " opened another one (generation ", grant.generation, ")")));
  }
}

void ShardLanes::OnRequest(size_t transport, const rdma::ConnectionEvent& event) {
  core_.ReadClock();
  TransportLink& link = core_.transports.links()[transport];
  LaneHello hello;
  absl::StatusOr<LaneGrant> grant = core_.grants.Take(transport, event.private_data, &hello);
  if (!grant.ok()) {
    ++core_.counters.rejected_tokens;
    core_.Log(absl::StrCat("connection refused on ", std::string(link.endpoint->transport()), ": ",
                           grant.status().message()));
    link.endpoint->Reject(event.connection, std::string(grant.status().message()));
    return;
  }
  CloseOlder(*grant);
  rdma::ShardLane::Params params{grant->id, grant->generation, grant->peer.incarnation,
                                 grant->config};
  params.domain = grant->domain;
  params.protocol = grant->protocol;
  auto accepted = rdma::ShardLane::Accept(link.endpoint.get(), event.connection, hello, params);
  if (!accepted.ok()) {
    core_.Log(absl::StrCat("lane ", grant->id, " of ", core_.members.NameOf(grant->peer),
                           " not opened: ", accepted.status().message()));
    // Accept() has rejected the connection.
    core_.grants.Release(grant->id, grant->config.ring_bytes());
    return;
  }
  auto lane = std::make_unique<Lane>();
  lane->id = grant->id;
  lane->generation = grant->generation;
  lane->peer = grant->peer;
  lane->protocol = grant->protocol;
  lane->domain = grant->domain;
  lane->transport = transport;
  lane->reason = std::move(grant->reason);
  lane->ring_bytes = grant->config.ring_bytes();
  lane->accept_deadline_ns =
      core_.now_ns + absl::ToInt64Nanoseconds(core_.options.lane_open_timeout);
  lane->operations.resize(grant->config.operations);
  lane->engine = core_.engine;
  lane->lane = *std::move(accepted);
  core_.grants.CheckBy(lane->accept_deadline_ns);
  next_write_check_ns_ =
      std::min(next_write_check_ns_, core_.now_ns + rdma::WriteWatch::kIntervalNanos);
  link.by_connection[static_cast<uint32_t>(event.connection)] = lane.get();
  if (lanes_.size() <= lane->id) lanes_.resize(lane->id + 1);
  lanes_[lane->id] = std::move(lane);
}

bool ShardLanes::Usable(Lane* lane) {
  if (lane->closing) return false;
  const rdma::ShardLane::State state = lane->lane->state();
  if (state == rdma::ShardLane::State::kAccepting || state == rdma::ShardLane::State::kOpen) {
    return true;
  }
  ++core_.counters.lanes_lost;
  core_.Log(
      absl::StrCat("lane ", lane->id, " (generation ", lane->generation, ") of ",
                   core_.members.NameOf(lane->peer), " over ",
                   std::string(core_.transports.links()[lane->transport].endpoint->transport()),
                   " ended: ", lane->lane->error().message()));
  StartClosing(lane);
  return false;
}

void ShardLanes::Close(Lane* lane, absl::Status reason) {
  if (lane->closing) return;
  lane->lane->Close(std::move(reason));
  Usable(lane);
}

void ShardLanes::StartClosing(Lane* lane) {
  if (lane->closing) return;
  lane->closing = true;
  // Before its ring goes: the engine may still be holding a contribution that lies in a slot.
  lane->engine->ForgetLane(lane->id);
  core_.waiting.Forget(lane);
  closing_.push_back(lane);
}

bool ShardLanes::Reap() {
  bool worked = false;
  for (size_t i = 0; i < closing_.size();) {
    Lane* lane = closing_[i];
    worked |= lane->lane->RunOnce();
    if (lane->lane->state() != rdma::ShardLane::State::kDead) {
      ++i;
      continue;
    }
    lane->lane->TakeAbandoned(&written_);
    core_.answers.Unpin(lane, written_);
    written_.clear();
    TransportLink& link = core_.transports.links()[lane->transport];
    link.by_connection.erase(static_cast<uint32_t>(lane->lane->connection()));
    link.last_connection = rdma::ConnectionId::kNone;
    link.last_lane = nullptr;
    retired_credits_ += lane->lane->counters().credits;
    core_.grants.Release(lane->id, lane->ring_bytes);
    closing_[i] = closing_.back();
    closing_.pop_back();
    lanes_[lane->id].reset();
    worked = true;
  }
  return worked;
}

void ShardLanes::CloseAll(const absl::Status& reason) {
  for (auto& lane : lanes_) {
    if (lane != nullptr) Close(lane.get(), reason);
  }
  core_.grants.DropAll();
}

void ShardLanes::Retire() {
  for (auto& lane : lanes_) {
    if (lane == nullptr || lane->closing || core_.members.MayHaveLanes(lane->peer)) continue;
    Close(lane.get(),
          absl::AbortedError(absl::StrCat(
              lane->peer.server ? "server" : "worker", " incarnation ", lane->peer.incarnation,
              lane->peer.server
                  ? " is silent or has left the cluster"
                  : " is not a member of any job: its lease has ended or it has left")));
  }
  core_.grants.DropRetired();
}

absl::Status ShardLanes::CloseLane(const v1::CloseLaneRequest& request) {
  Lane* lane = request.lane() < lanes_.size() ? lanes_[request.lane()].get() : nullptr;
  if (lane != nullptr && lane->peer.incarnation == request.incarnation() &&
      lane->generation == request.generation()) {
    if (!lane->closing) {
      lane->lane->Close(absl::CancelledError(
          absl::StrCat("closed by its ", lane->peer.server ? "server" : "worker")));
      StartClosing(lane);
    }
    return absl::OkStatus();
  }
  if (core_.grants.Close(request)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("incarnation ", request.incarnation(), " has no lane ",
                                          request.lane(), " of generation ", request.generation()));
}

void ShardLanes::CheckAccepting(int64_t now) {
  for (auto& lane : lanes_) {
    if (lane == nullptr || lane->closing ||
        lane->lane->state() != rdma::ShardLane::State::kAccepting) {
      continue;
    }
    if (lane->accept_deadline_ns <= now) {
      Close(lane.get(), absl::DeadlineExceededError("the connection was not established in time"));
    } else {
      core_.grants.CheckBy(lane->accept_deadline_ns);
    }
  }
}

void ShardLanes::CheckWrites(int64_t now) {
  next_write_check_ns_ = kNever;
  const int64_t timeout = absl::ToInt64Nanoseconds(core_.options.write_timeout);
  for (auto& lane : lanes_) {
    if (lane == nullptr || lane->closing) continue;
    next_write_check_ns_ = now + rdma::WriteWatch::kIntervalNanos;
    core_.answers.RelieveDeferred(lane.get(), now);
    if (!lane->lane->WritesHang(now, timeout)) continue;
    ++core_.counters.write_timeouts;
    Close(lane.get(),
          absl::DeadlineExceededError(absl::StrCat(
              "writes to the peer have been in flight for ",
              absl::FormatDuration(core_.options.write_timeout), " and none has ended")));
  }
}

}  // namespace verbena::server
