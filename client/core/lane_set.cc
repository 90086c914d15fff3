#include "client/core/lane_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/lane/lane_request.h"

namespace verbena::client {
namespace {

constexpr size_t kPollBatch = 64;
constexpr absl::Duration kCallTimeout = absl::Nanoseconds(rdma::LaneWatch::kOpenTimeoutNanos);
constexpr int kRefusalsBeforeFinal = 3;

uint64_t Key(size_t endpoint, rdma::ConnectionId connection) {
  return uint64_t{endpoint} << 32 | static_cast<uint32_t>(connection);
}

bool Unusable(const Peer& peer, const std::string& transport) {
  return std::any_of(peer.unusable.begin(), peer.unusable.end(),
                     [&](const auto& missing) { return missing.transport == transport; });
}

bool Watched(const Stream& stream) {
  return stream.state == Stream::State::kOpening || stream.state == Stream::State::kOpen;
}

// Whether a stream of the peer has a lane or requests one.
bool Active(const Peer& peer) {
  return std::any_of(peer.rails.begin(), peer.rails.end(), [](const Stream* stream) {
    return stream->state == Stream::State::kAsking || stream->lane != nullptr;
  });
}

}  // namespace

LaneSet::LaneSet(std::vector<LaneTransport> transports, std::vector<rdma::MissingTransport> missing,
                 Session* session, ControlChannel* control, const Clock* clock, Random* random,
                 CurrentCall* call, Registrar* registrar, LaneListener* listener)
    : transports_(std::move(transports)),
      missing_(std::move(missing)),
      session_(session),
      control_(control),
      clock_(clock),
      random_(random),
      call_(call),
      listener_(listener),
      memory_(&transports_, registrar, clock, random, call),
      completions_(kPollBatch) {
  for (const LaneTransport& transport : transports_) transport_kinds_ += transport.rail == 0;
}

LaneSet::~LaneSet() { *alive_ = false; }

Peer* LaneSet::Get(uint64_t server, uint32_t shard) {
  for (const auto& peer : peers_) {
    if (peer->server == server && peer->shard == shard) return peer.get();
  }
  auto peer = std::make_unique<Peer>();
  peer->server = server;
  peer->shard = shard;
  AddRail(peer.get());
  peers_.push_back(std::move(peer));
  return peers_.back().get();
}

Stream* LaneSet::AddRail(Peer* peer) {
  auto stream = std::make_unique<Stream>();
  stream->peer = peer;
  stream->server = peer->server;
  stream->shard = peer->shard;
  stream->rail = static_cast<uint32_t>(peer->rails.size());
  peer->rails.push_back(stream.get());
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

bool LaneSet::AnyOpen(const Peer& peer) {
  return std::any_of(peer.rails.begin(), peer.rails.end(),
                     [](const Stream* stream) { return stream->open(); });
}

// ---- opening ------------------------------------------------------------------------------------

void LaneSet::Want(Stream* stream) {
  if (stream->wanted) return;
  stream->wanted = true;
  if (stream->state == Stream::State::kIdle && stream->retry_at <= clock_->NowNanos()) Ask(stream);
}

void LaneSet::Ask(Stream* stream) {
  const v1::Server* server = session_->FindServer(stream->server);
  if (server == nullptr || session_->state() != Session::State::kJoined) {
    // Until OnView() brings a new view there is nothing to do.
    stream->retry_at = kNever;
    return;
  }
  // Rail 0 determines the transport; SetRails() wakes the others.
  const Peer& peer = *stream->peer;
  if (stream->rail > 0 && (peer.transport.empty() || stream->rail >= peer.rail_count)) {
    stream->retry_at = kNever;
    return;
  }
  v1::OpenLaneRequest request = rdma::NewLaneRequest(session_->incarnation(), stream->server,
                                                     stream->shard, session_->view());
  request.set_rail(stream->rail);
  request.set_record_bytes(stream->record_bytes);
  AddOffers(peer, &request);
  stream->state = Stream::State::kAsking;
  stream->changed_at = clock_->NowNanos();
  stream->ask = ++asks_;
  Call<v1::OpenLaneResponse>(
      *control_, server->address(), "/verbena.v1.Shard/OpenLane", request, kCallTimeout,
      [this, alive = alive_, stream,
       ask = stream->ask](absl::StatusOr<v1::OpenLaneResponse> response) {
        if (!*alive || stream->ask != ask || stream->state != Stream::State::kAsking) return;
        OnGranted(stream, std::move(response));
      });
}

// All lanes to a shard use one transport: after its selection no other is offered.
void LaneSet::AddOffers(const Peer& peer, v1::OpenLaneRequest* request) const {
  for (const LaneTransport& transport : transports_) {
    const std::string name(transport.endpoint->transport());
    if (transport.rail > 0) continue;  // a further rail of the same transport
    if (peer.transport.empty() ? Unusable(peer, name) : name != peer.transport) continue;
    rdma::AddOffer(name, transport.host, request);
  }
  rdma::AddMissing(missing_, request);
  rdma::AddMissing(peer.unusable, request);
}

size_t LaneSet::FindTransport(const std::string& transport, uint32_t rail) const {
  size_t i = 0;
  while (i < transports_.size() &&
         (transports_[i].endpoint->transport() != transport || transports_[i].rail != rail)) {
    ++i;
  }
  return i;
}

void LaneSet::SetRails(Peer* peer, uint32_t server_rails) {
  peer->rail_count = 1;
  while (peer->rail_count < server_rails &&
         FindTransport(peer->transport, peer->rail_count) < transports_.size()) {
    ++peer->rail_count;
  }
  while (peer->rails.size() < peer->rail_count) AddRail(peer);
  const int64_t now = clock_->NowNanos();
  for (uint32_t i = 1; i < peer->rail_count; ++i) {
    Stream* stream = peer->rails[i];
    stream->wanted = true;
    if (stream->retry_at == kNever) stream->retry_at = now;
    // At once: the rail with the granted lane may fail, and then no other stream would request one.
    if (stream->state == Stream::State::kIdle && stream->retry_at <= now) Ask(stream);
  }
}

void LaneSet::OnGranted(Stream* stream, absl::StatusOr<v1::OpenLaneResponse> response) {
  absl::Status status = response.status();
  const bool granted = status.ok();
  if (granted) status = Connect(stream, *response);
  if (status.ok()) return;
  // A failure of this side to use a grant is not a refusal: it may work the next time.
  if (!granted && status.code() == absl::StatusCode::kFailedPrecondition) {
    // Another incarnation is at this address (the view will show it), or no communication is
    // possible.
    if (stream->refusals == 0) stream->refreshes = session_->refreshes();
    session_->Refresh();
    // Only with a view that is newer than the first refusal: until then the server may be another
    // one at the same address, and an unresponsive coordinator must not end calls.
    if (++stream->refusals >= kRefusalsBeforeFinal && session_->refreshes() > stream->refreshes &&
        session_->FindServer(stream->server) != nullptr && !AnyOpen(*stream->peer)) {
      listener_->OnLaneRefused(stream, status);
    }
  } else if (status.code() == absl::StatusCode::kNotFound) {
    session_->Refresh();
  } else {
    stream->refusals = 0;
  }
  Failed(stream, std::move(status));
}

absl::Status LaneSet::Connect(Stream* stream, const v1::OpenLaneResponse& response) {
  Peer* peer = stream->peer;
  const size_t endpoint = FindTransport(response.transport(), stream->rail);
  if (endpoint == transports_.size() ||
      (!peer->transport.empty() && response.transport() != peer->transport)) {
    return absl::InternalError(
        absl::StrCat("the server chose transport '", response.transport(), "', not offered"));
  }
  const bool chosen = peer->transport.empty();
  peer->transport = response.transport();
  if (chosen) SetRails(peer, response.rails());
  absl::StatusOr<rdma::LaneTicket> ticket = rdma::TicketOf(response, session_->incarnation());
  if (!ticket.ok()) return ticket.status();
  const CurrentCall::Scope scope(call_, "opening a lane", ticket->config.mailbox_bytes());
  stream->failures.Begin(transports_[endpoint].opened);
  auto lane = rdma::WorkerLane::Open(transports_[endpoint].endpoint, *ticket);
  if (!lane.ok()) {
    NoteOpenFailure(stream, endpoint, lane.status());
    Disown(*stream, *ticket);
    return lane.status();
  }
  stream->lane = *std::move(lane);
  stream->endpoint = endpoint;
  stream->needs_staging = response.transport() == "shm";
  if (stream->transport != response.transport()) stream->failures.Reset();
  stream->transport = response.transport();
  stream->device = transports_[endpoint].endpoint->device();
  stream->registered_block = stream->exposed_block = 0;
  stream->reason = response.transport_reason();
  stream->state = Stream::State::kOpening;
  stream->changed_at = clock_->NowNanos();
  stream->watch.Opening(stream->changed_at);
  by_connection_[Key(endpoint, stream->lane->connection())] = stream;
  with_lane_.push_back(stream);
  return absl::OkStatus();
}

void LaneSet::NoteOpenFailure(Stream* stream, size_t endpoint, const absl::Status& status) {
  stream->failures.Failed(status, transports_[endpoint].opened);
  Peer* peer = stream->peer;
  // Another rail's lane shows that the transport works.
  if (transport_kinds_ < 2 || AnyOpen(*peer)) return;
  for (uint32_t i = 0; i < peer->rail_count; ++i) {
    if (!peer->rails[i]->failures.enough()) return;
  }
  for (Stream* rail : peer->rails) rail->failures.Reset();
  peer->unusable.push_back({std::string(transports_[endpoint].endpoint->transport()),
                            absl::StrCat("does not open: ", status.message())});
  // None is left: start over.
  if (peer->unusable.size() >= transport_kinds_) peer->unusable.clear();
}

void LaneSet::Failed(Stream* stream, absl::Status status) {
  stream->state = Stream::State::kIdle;
  stream->changed_at = clock_->NowNanos();
  stream->last_error = std::move(status);
  stream->retry_at = stream->changed_at + stream->backoff.Next(*random_);
  // No lane of its transport is left: the next lane may use another one.
  if (!Active(*stream->peer)) stream->peer->transport.clear();
}

// ---- closing ------------------------------------------------------------------------------------

void LaneSet::Close(Stream* stream, absl::Status reason) {
  if (stream->state == Stream::State::kAsking) {
    Failed(stream, std::move(reason));
  } else if (stream->lane != nullptr && stream->state != Stream::State::kClosing) {
    stream->lane->Close(std::move(reason));
    stream->state = Stream::State::kClosing;
    stream->changed_at = clock_->NowNanos();
    Advance(stream);
  }
}

void LaneSet::CloseAll(const absl::Status& reason) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i]->wanted = false;
    Close(streams_[i].get(), reason);
  }
}

void LaneSet::OnView() {
  const int64_t now = clock_->NowNanos();
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = streams_[i].get();
    if (stream->server == 0) continue;
    if (session_->FindServer(stream->server) == nullptr) {
      Close(stream, absl::UnavailableError(absl::StrCat("server incarnation ", stream->server,
                                                        " is not in the cluster any more")));
    } else if (stream->state == Stream::State::kIdle && stream->retry_at == kNever) {
      stream->retry_at = now;
    }
  }
}

void LaneSet::Disown(const Stream& stream, const rdma::LaneTicket& ticket) {
  const v1::Server* server = session_->FindServer(stream.server);
  if (server == nullptr || session_->state() != Session::State::kJoined) return;
  // No retry is needed: the rail's next lane also ends this one.
  Call<v1::CloseLaneResponse>(*control_, server->address(), "/verbena.v1.Shard/CloseLane",
                              rdma::CloseRequest(ticket, stream.shard), kCallTimeout,
                              [](const absl::StatusOr<v1::CloseLaneResponse>&) {});
}

void LaneSet::Forget(Stream* stream) {
  by_connection_.erase(Key(stream->endpoint, stream->lane->connection()));
  last_stream_ = nullptr;
  with_lane_.erase(std::find(with_lane_.begin(), with_lane_.end(), stream));
  counters_.credit_stalls += stream->lane->counters().credit_stalls;
  stream->lane.reset();
}

// Applies the lane's state to the stream.
void LaneSet::Advance(Stream* stream) {
  using LaneState = rdma::WorkerLane::State;
  switch (stream->lane->state()) {
    case LaneState::kConnecting:
    case LaneState::kGranting:
      return;
    case LaneState::kOpen:
      if (stream->state != Stream::State::kOpening) return;
      stream->state = Stream::State::kOpen;
      stream->was_open = true;
      stream->changed_at = clock_->NowNanos();
      stream->refusals = 0;
      stream->failures.Reset();
      ++transports_[stream->endpoint].opened;
      stream->watch.Opened(stream->changed_at);
      memory_.OnLaneOpen(stream->endpoint);
      ++counters_.opened;
      listener_->OnLaneOpen(stream);
      return;
    case LaneState::kClosing:
      if (stream->state != Stream::State::kClosing) {
        stream->state = Stream::State::kClosing;
        stream->changed_at = clock_->NowNanos();
      }
      stream->lane->RunOnce();
      if (stream->lane->state() != LaneState::kDead) return;
      break;
    case LaneState::kDead:
      break;
  }
  absl::Status error = stream->lane->error();
  // A lane that failed before it was open counts towards the backoff; a lane that worked resets it.
  if (stream->lane->counters().replies > 0) stream->backoff.Reset();
  if (stream->was_open) {
    ++counters_.lost;
    stream->peer->unusable.clear();
    if (AnyOpen(*stream->peer)) Disown(*stream, stream->lane->ticket());
  } else {
    if (!absl::IsCancelled(error)) NoteOpenFailure(stream, stream->endpoint, error);
    Disown(*stream, stream->lane->ticket());
  }
  stream->was_open = false;
  Forget(stream);
  Failed(stream, std::move(error));
  listener_->OnLaneDead(stream);
}

// ---- progress -----------------------------------------------------------------------------------

Stream* LaneSet::Find(size_t endpoint, rdma::ConnectionId connection) {
  const uint64_t key = Key(endpoint, connection);
  if (last_stream_ != nullptr && last_key_ == key) return last_stream_;
  const auto it = by_connection_.find(key);
  if (it == by_connection_.end()) return nullptr;
  last_key_ = key;
  last_stream_ = it->second;
  return it->second;
}

bool LaneSet::HandleCompletions() {
  const bool worked = handled_ < polled_;
  while (handled_ < polled_ && !listener_->TurnIsFull()) {
    const rdma::Completion& completion = completions_[handled_++];
    Stream* stream = Find(polled_from_, completion.connection);
    if (stream == nullptr) continue;  // of a lane that is gone
    stream->watch.Heard();
    answers_.clear();
    stream->lane->OnCompletion(completion, &answers_);
    for (const rdma::WorkerLane::Answer& answer : answers_) {
      listener_->OnAnswer(stream, answer.cookie, answer.reply);
      if (stream->lane == nullptr) break;  // closed meanwhile: its records returned unanswered
    }
    listener_->OnCredit(stream);
  }
  return worked;
}

bool LaneSet::Poll() {
  listener_->BeginTurn();
  bool worked = HandleCompletions();  // from the last turn
  const size_t first = std::exchange(poll_first_, 0);
  for (size_t i = 0; i < transports_.size() && handled_ == polled_; ++i) {
    polled_from_ = (first + i) % transports_.size();
    rdma::Endpoint* endpoint = transports_[polled_from_].endpoint;
    events_.resize(8);
    const size_t events = endpoint->PollEvents(absl::MakeSpan(events_));
    for (size_t j = 0; j < events; ++j) {
      worked = true;
      if (Stream* stream = Find(polled_from_, events_[j].connection)) {
        stream->lane->OnEvent(events_[j]);
      }
    }
    handled_ = 0;
    polled_ = endpoint->Poll(absl::MakeSpan(completions_));
    worked |= HandleCompletions();
  }
  // The first endpoints must not fill every turn.
  if (handled_ < polled_) poll_first_ = (polled_from_ + 1) % transports_.size();
  for (size_t i = 0; i < with_lane_.size();) {
    Stream* stream = with_lane_[i];
    const auto before = stream->state;
    Advance(stream);
    worked |= stream->state != before;
    if (i < with_lane_.size() && with_lane_[i] == stream) ++i;
  }
  return worked;
}

bool LaneSet::RunTimers(int64_t now) {
  bool worked = false;
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = streams_[i].get();
    if (stream->state == Stream::State::kIdle && stream->wanted && stream->server != 0 &&
        stream->retry_at <= now) {
      Ask(stream);
      worked = true;
    } else if (Watched(*stream) && stream->watch.due() <= now) {
      absl::Status status = stream->watch.Check(stream->lane.get(), stream->transport, now);
      if (status.ok()) continue;
      // So that its records use a new lane.
      Close(stream, std::move(status));
      worked = true;
    }
  }
  return worked;
}

int64_t LaneSet::NextTimerNanos() const {
  int64_t next = kNever;
  for (const auto& stream : streams_) {
    if (stream->state == Stream::State::kIdle && stream->wanted && stream->server != 0) {
      next = std::min(next, stream->retry_at);
    } else if (Watched(*stream)) {
      next = std::min(next, stream->watch.due());
    }
  }
  return next;
}

bool LaneSet::Arm(rdma::SleepUntil until) {
  if (handled_ < polled_) return false;
  for (size_t i = 0; i < transports_.size(); ++i) {
    if (transports_[i].endpoint->Arm(until)) continue;
    for (size_t j = 0; j < i; ++j) transports_[j].endpoint->Disarm();
    return false;
  }
  return true;
}

bool LaneSet::WakeOnAnything() {
  bool nothing = true;
  for (const LaneTransport& transport : transports_) {
    nothing &= transport.endpoint->WakeOnAnything();
  }
  return nothing;
}

void LaneSet::Disarm() {
  for (const LaneTransport& transport : transports_) transport.endpoint->Disarm();
}

void LaneSet::AppendDescriptors(std::vector<int>* fds) const {
  for (const LaneTransport& transport : transports_) transport.endpoint->AppendDescriptors(fds);
}

LaneCounters LaneSet::counters() const {
  LaneCounters counters = counters_;
  for (const Stream* stream : with_lane_) {
    counters.credit_stalls += stream->lane->counters().credit_stalls;
  }
  return counters;
}

}  // namespace verbena::client
