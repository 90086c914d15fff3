#include "server/replication/peer_links.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/lane/lane_request.h"

namespace verbena::server {
namespace {

constexpr int64_t kNoTimer = std::numeric_limits<int64_t>::max();
constexpr absl::Duration kCallTimeout = absl::Nanoseconds(rdma::LaneWatch::kOpenTimeoutNanos);
// A transport whose peer has to confirm a close reports it by an event; this look is for the other
// transports.
constexpr int64_t kLookAgainNanos = 10'000'000;
// Memory could not be registered: other users of the limit may have released some by then.
constexpr int64_t kRegisterAgainNanos = 100'000'000;

uint64_t Key(size_t transport, rdma::ConnectionId connection) {
  return uint64_t{transport} << 32 | static_cast<uint32_t>(connection);
}

uint64_t SeedOf(const PeerLinkOptions& options) {
  return options.seed != 0 ? options.seed : std::random_device()();
}

// The bytes of the largest slot.
size_t LargestSlot(const rdma::LaneConfig& config) {
  return config.large_slots > 0 ? config.large_slot_bytes : config.small_slot_bytes;
}

bool Named(const std::vector<rdma::MissingTransport>& list, std::string_view transport) {
  return std::any_of(list.begin(), list.end(),
                     [&](const auto& missing) { return missing.transport == transport; });
}

const v1::Server* FindServer(const v1::ClusterView& view, uint64_t incarnation) {
  for (const v1::Server& server : view.servers()) {
    if (server.incarnation() == incarnation) return &server;
  }
  return nullptr;
}

}  // namespace

PeerLinks::PeerLinks(PeerLinkOptions options, std::vector<Transport> transports,
                     std::vector<rdma::MissingTransport> missing, ControlChannel* control,
                     const Clock* clock, PeerListener* listener)
    : options_(std::move(options)),
      transports_(std::move(transports)),
      kinds_(static_cast<size_t>(std::count_if(transports_.begin(), transports_.end(),
                                               [](const auto& one) { return one.rail == 0; }))),
      missing_(std::move(missing)),
      control_(control),
      clock_(clock),
      listener_(listener),
      random_(SeedOf(options_)) {}

PeerLinks::~PeerLinks() {
  *alive_ = false;
  for (auto& [id, link] : links_) {
    if (link->lane != nullptr) link->lane->Close(absl::CancelledError("the shard stops"));
  }
}

std::string PeerLinks::Name(const Link& link) const {
  return absl::StrCat("shard ", link.id.shard, " of server '", link.name, "' (incarnation ",
                      link.id.server, ")");
}

// ---- wanted links ------------------------------------------------------------------------------

void PeerLinks::SetSelf(uint64_t self) {
  if (self == std::exchange(self_, self)) return;
  // Open and requested lanes belong to the old incarnation, which is gone.
  for (auto& [id, link] : links_) {
    if (link->state == State::kAsking) link->state = State::kIdle;
    Close(link.get(),
          absl::CancelledError(absl::StrCat("this server has a new incarnation, ", self)));
  }
}

void PeerLinks::Follow(std::shared_ptr<const v1::ClusterView> view, uint64_t self,
                       absl::Span<const PeerId> wanted) {
  if (control_ == nullptr) return;
  SetSelf(self);
  view_ = view;
  for (auto& [id, link] : links_) link->wanted = false;
  for (const PeerId& id : wanted) {
    const v1::Server* server = FindServer(*view, id.server);
    if (server == nullptr || id.server == self) continue;
    std::unique_ptr<Link>& link = links_[id];
    if (link == nullptr) {
      link = std::make_unique<Link>();
      link->id = id;
    }
    link->wanted = true;
    link->name = server->name();
    link->address = server->address();
  }
  for (auto it = links_.begin(); it != links_.end();) {
    Link* link = it->second.get();
    if (!link->wanted) {
      const bool gone = FindServer(*view, link->id.server) == nullptr;
      if (gone) link->address.clear();
      Close(link, absl::CancelledError(gone ? "the server is not in the cluster any more"
                                            : "it keeps no replicas of this shard's partitions"));
    }
    // The answer to a call in flight is then ignored.
    it = !link->wanted && link->lane == nullptr ? links_.erase(it) : std::next(it);
  }
}

// ---- opening ------------------------------------------------------------------------------------

void PeerLinks::Ask(Link* link) {
  v1::OpenLaneRequest request =
      rdma::NewLaneRequest(self_, link->id.server, link->id.shard, *view_);
  request.set_source_shard(options_.shard);
  for (const Transport& transport : transports_) {
    const std::string_view name = transport.endpoint->transport();
    if (transport.rail == 0 && !Named(link->unusable, name))
      rdma::AddOffer(name, transport.host, &request);
  }
  rdma::AddMissing(missing_, &request);
  rdma::AddMissing(link->unusable, &request);
  link->state = State::kAsking;
  link->ask = ++asks_;
  Call<v1::OpenLaneResponse>(
      *control_, link->address, "/verbena.v1.Shard/OpenLane", request, kCallTimeout,
      [this, alive = alive_, id = link->id, ask = link->ask, self = self_,
       address = link->address](absl::StatusOr<v1::OpenLaneResponse> response) {
        if (!*alive) return;
        const auto it = links_.find(id);
        if (it != links_.end() && it->second->ask == ask && it->second->state == State::kAsking) {
          return OnGranted(it->second.get(), std::move(response));
        }
        // Not wanted any more: the grant is given back.
        if (!response.ok()) return;
        const absl::StatusOr<rdma::LaneTicket> ticket = rdma::TicketOf(*response, self);
        if (ticket.ok()) Disown(address, id, *ticket);
      });
}

void PeerLinks::OnGranted(Link* link, absl::StatusOr<v1::OpenLaneResponse> response) {
  absl::Status status = response.status();
  if (status.ok()) status = Connect(link, *response);
  if (!status.ok()) Failed(link, status);
}

absl::Status PeerLinks::Connect(Link* link, const v1::OpenLaneResponse& response) {
  size_t index = 0;
  while (index < transports_.size() &&
         (transports_[index].rail > 0 ||
          transports_[index].endpoint->transport() != response.transport())) {
    ++index;
  }
  if (index == transports_.size()) {
    return absl::InternalError(
        absl::StrCat("the server chose transport '", response.transport(), "', not offered"));
  }
  absl::StatusOr<rdma::LaneTicket> ticket = rdma::TicketOf(response, self_);
  if (!ticket.ok()) return ticket.status();
  link->failures.Begin(transports_[index].opened);
  auto lane = rdma::WorkerLane::Open(transports_[index].endpoint, *ticket);
  if (!lane.ok()) {
    NoteOpenFailure(link, index, lane.status());
    Disown(link->address, link->id, *ticket);
    return lane.status();
  }
  // Failures count in a row over one transport.
  if (link->transport != index) link->failures.Reset();
  link->lane = *std::move(lane);
  link->transport = index;
  link->reason = response.transport_reason();
  link->registered_block = 0;
  link->state = State::kOpening;
  link->watch.Opening(clock_->NowNanos());
  by_connection_[Key(index, link->lane->connection())] = link;
  touched_ = true;
  return absl::OkStatus();
}

void PeerLinks::NoteOpenFailure(Link* link, size_t transport, const absl::Status& status) {
  link->failures.Failed(status, transports_[transport].opened);
  if (kinds_ < 2 || !link->failures.enough()) return;
  link->failures.Reset();
  link->unusable.push_back({std::string(transports_[transport].endpoint->transport()),
                            absl::StrCat("does not open: ", status.message())});
  // None is left: from the start again.
  if (link->unusable.size() >= kinds_) link->unusable.clear();
}

void PeerLinks::Failed(Link* link, const absl::Status& status) {
  link->state = State::kIdle;
  link->retry_at = clock_->NowNanos() + link->backoff.Next(random_);
  if (std::exchange(link->last_told, status.code()) == status.code()) return;
  Log(absl::StrCat("no link to ", Name(*link), ": ", status.message()));
}

// ---- ending -------------------------------------------------------------------------------------

void PeerLinks::Close(Link* link, absl::Status reason) {
  if (link->lane == nullptr || link->state == State::kClosing) return;
  link->lane->Close(std::move(reason));
  touched_ = true;
}

// Nothing depends on its coming through: the link's next lane ends this one, too.
void PeerLinks::Disown(const std::string& address, const PeerId& peer,
                       const rdma::LaneTicket& ticket) {
  if (address.empty()) return;
  Call<v1::CloseLaneResponse>(*control_, address, "/verbena.v1.Shard/CloseLane",
                              rdma::CloseRequest(ticket, peer.shard), kCallTimeout,
                              [](const absl::StatusOr<v1::CloseLaneResponse>&) {});
}

bool PeerLinks::Advance(Link* link) {
  using LaneState = rdma::WorkerLane::State;
  const State before = link->state;
  if (link->lane->state() == LaneState::kOpen && link->state == State::kOpening) {
    link->state = State::kOpen;
    link->watch.Opened(clock_->NowNanos());
    link->failures.Reset();
    ++transports_[link->transport].opened;
    link->last_told = absl::StatusCode::kOk;
    link->stalled = false;
    link->room_at = kNoTimer;
    link->was_open = true;
    ++counters_.opened;
    ++counters_.open;
    Log(absl::StrCat("link to ", Name(*link), " is open over ",
                     std::string(transports_[link->transport].endpoint->transport()), " (",
                     link->reason, ")"));
    listener_->OnOpen(link->id);
  }
  // Not else: OnOpen() may have sent something that closed it.
  if (link->lane->state() == LaneState::kClosing) {
    if (link->state != State::kClosing) {
      link->state = State::kClosing;
      link->retry_at = clock_->NowNanos() + kLookAgainNanos;
    }
    link->lane->RunOnce();
  }
  if (link->lane->state() == LaneState::kDead) Ended(link);
  return link->state != before;
}

void PeerLinks::Ended(Link* link) {
  const absl::Status error = link->lane->error();
  const rdma::WorkerLaneCounters& lane = link->lane->counters();
  counters_.records += lane.records;
  counters_.payload_bytes += lane.payload_bytes;
  // A lane that failed before its first reply counts towards the backoff; one that worked resets
  // it.
  if (lane.replies > 0) link->backoff.Reset();
  const bool was_open = std::exchange(link->was_open, false);
  if (was_open) {
    --counters_.open;
    if (link->wanted) ++counters_.lost;
    link->unusable.clear();
  } else if (!absl::IsCancelled(error)) {
    NoteOpenFailure(link, link->transport, error);
  }
  Disown(link->address, link->id, link->lane->ticket());
  by_connection_.erase(Key(link->transport, link->lane->connection()));
  link->lane.reset();
  if (link->wanted) {
    Failed(link, error);
  } else {
    link->state = State::kIdle;
    if (was_open) Log(absl::StrCat("link to ", Name(*link), " closed: ", error.message()));
  }
  if (was_open) listener_->OnDead(link->id);
}

// ---- records ------------------------------------------------------------------------------------

PeerLinks::Link* PeerLinks::FindOpen(const PeerId& peer) const {
  const auto it = links_.find(peer);
  return it == links_.end() || it->second->state != State::kOpen ? nullptr : it->second.get();
}

bool PeerLinks::IsOpen(const PeerId& peer) const { return FindOpen(peer) != nullptr; }

size_t PeerLinks::max_data_bytes(const PeerId& peer) const {
  const Link* link = FindOpen(peer);
  if (link == nullptr) return 0;
  return LargestSlot(link->lane->ticket().config) - PayloadOffset(1) - sizeof(ReplicaHeader);
}

bool PeerLinks::Registered(Link* link, const rdma::MemoryBlock& block) {
  const rdma::MemoryBlock& root = block.root();
  if (root.id() == link->registered_block) return true;
  // The slab is ours; only the interface to it is const.
  const absl::Status status = transports_[link->transport].endpoint->Register(
      const_cast<rdma::MemoryBlock&>(root).shared_from_this());
  if (status.ok()) {
    link->registered_block = root.id();
    link->last_told = absl::StatusCode::kOk;
  } else if (std::exchange(link->last_told, status.code()) != status.code()) {
    Log(absl::StrCat("nothing goes to ", Name(*link), ": ", status.message()));
  }
  return status.ok();
}

bool PeerLinks::Send(const PeerId& peer, const PeerRecord& record) {
  Link* link = FindOpen(peer);
  if (link == nullptr) return false;
  rdma::WorkerLane& lane = *link->lane;
  const rdma::LaneConfig& config = lane.ticket().config;
  rdma::WorkerLane::Request request;
  if (record.header != nullptr) {
    request.prefix = {reinterpret_cast<const std::byte*>(record.header), sizeof(ReplicaHeader)};
  }
  const size_t bytes = request.prefix.size() + record.data.bytes;
  rdma::WorkerLane::Reserve reserve;
  if (record.type != RecordType::kBeacon) {
    reserve.operations = config.operations > 1;
    reserve.small_slots = config.small_slots > 1;
  }
  const auto refuse = [&] {
    link->stalled = true;
    link->heard = false;
    ++counters_.stalls;
    return false;
  };
  if (!lane.CanPost(record.groups.size(), bytes, reserve)) {
    if (record.groups.empty() || record.groups.size() > kMaxGroups ||
        PayloadOffset(static_cast<uint32_t>(record.groups.size())) + bytes > LargestSlot(config)) {
      Close(link, absl::InvalidArgumentError(
                      absl::StrCat("a record of ", record.groups.size(), " groups and ", bytes,
                                   " bytes fits no slot of ", LargestSlot(config), " bytes")));
    }
    return refuse();
  }
  if (record.data.bytes > 0 && record.data.block != nullptr &&
      !Registered(link, *record.data.block)) {
    link->room_at = clock_->NowNanos() + kRegisterAgainNanos;
    return refuse();
  }
  request.header.type = record.type;
  request.header.table = record.table;
  request.groups = record.groups;
  request.payload = record.data;
  request.cookie = record.cookie;
  request.header.min_version = record.echo;
  const absl::Status posted = lane.Post(request);
  if (posted.ok()) return true;
  // Otherwise the connection is in error, or the lane has closed itself.
  if (absl::IsInvalidArgument(posted)) Close(link, posted);
  touched_ = true;
  return refuse();
}

// ---- progress -----------------------------------------------------------------------------------

PeerLinks::Link* PeerLinks::Find(size_t transport, rdma::ConnectionId connection) const {
  const auto it = by_connection_.find(Key(transport, connection));
  return it == by_connection_.end() ? nullptr : it->second;
}

bool PeerLinks::OnEvent(size_t transport, const rdma::ConnectionEvent& event) {
  Link* link = Find(transport, event.connection);
  if (link == nullptr) return false;
  link->lane->OnEvent(event);
  touched_ = true;
  return true;
}

bool PeerLinks::OnCompletion(size_t transport, const rdma::Completion& completion) {
  Link* link = Find(transport, completion.connection);
  if (link == nullptr) return false;
  touched_ = true;
  link->watch.Heard();
  link->heard = true;
  answers_.clear();
  link->lane->OnCompletion(completion, &answers_);
  for (const rdma::WorkerLane::Answer& answer : answers_) {
    listener_->OnReply(link->id, answer.cookie, answer.reply);
  }
  return true;
}

bool PeerLinks::RunOnce() {
  if (!touched_) return false;
  touched_ = false;
  bool worked = false;
  for (auto it = links_.begin(); it != links_.end();) {
    Link* link = it->second.get();
    if (link->lane != nullptr) worked |= Advance(link);
    if (link->state == State::kOpen && link->stalled && link->heard) {
      link->stalled = false;
      worked = true;
      listener_->OnRoom(link->id);
    }
    touched_ |= link->state == State::kClosing;
    it = !link->wanted && link->lane == nullptr ? links_.erase(it) : std::next(it);
  }
  return worked;
}

bool PeerLinks::RunTimers(int64_t now) {
  bool worked = false;
  for (auto& [id, link] : links_) {
    switch (link->state) {
      case State::kIdle:
        if (link->retry_at > now) break;
        Ask(link.get());
        worked = true;
        break;
      case State::kAsking:  // the call has a deadline
        break;
      case State::kOpen:
        if (link->stalled && link->room_at <= now) {
          link->room_at = kNoTimer;
          link->stalled = false;
          worked = true;
          listener_->OnRoom(id);
        }
        [[fallthrough]];
      case State::kOpening: {
        absl::Status status = link->watch.Check(
            link->lane.get(), transports_[link->transport].endpoint->transport(), now);
        if (status.ok()) break;
        Close(link.get(), std::move(status));
        worked = true;
        break;
      }
      case State::kClosing:
        if (link->retry_at <= now) link->retry_at = now + kLookAgainNanos;
        break;
    }
  }
  return worked;
}

int64_t PeerLinks::NextTimerNanos() const {
  int64_t next = kNoTimer;
  for (const auto& [id, link] : links_) {
    switch (link->state) {
      case State::kIdle:
      case State::kClosing:
        next = std::min(next, link->retry_at);
        break;
      case State::kAsking:
        break;
      case State::kOpen:
        if (link->stalled) next = std::min(next, link->room_at);
        [[fallthrough]];
      case State::kOpening:
        next = std::min(next, link->watch.due());
        break;
    }
  }
  return next;
}

PeerLinkCounters PeerLinks::counters() const {
  PeerLinkCounters counters = counters_;
  for (const auto& [id, link] : links_) {
    if (link->lane == nullptr) continue;
    counters.records += link->lane->counters().records;
    counters.payload_bytes += link->lane->counters().payload_bytes;
  }
  return counters;
}

}  // namespace verbena::server
