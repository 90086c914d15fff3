// Lanes of a shard: granting, connecting, closing.
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/cluster_history.h"
#include "server/executor/shard_executor_impl.h"

namespace verbena::server {
namespace {

constexpr size_t kTokenBytes = sizeof(LaneHello::token);
// A lane is not granted smaller than this.
constexpr uint32_t kLeastSmallSlots = 4;

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool Shrink(rdma::LaneConfig* config) {
  if (config->large_slots > 1) {
    config->large_slots /= 2;
  } else if (config->small_slots > kLeastSmallSlots) {
    config->small_slots = std::max(config->small_slots / 2, kLeastSmallSlots);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool ShardExecutor::Impl::NewToken(std::string* token) {
  token->resize(kTokenBytes);
  if (options.seed == 0) {
    // Not waiting: other lanes' records would wait, too. Early after boot there is none yet.
    return getrandom(token->data(), kTokenBytes, GRND_NONBLOCK) ==
           static_cast<ssize_t>(kTokenBytes);
  }
  for (size_t i = 0; i < kTokenBytes; i += sizeof(uint64_t)) {
    const uint64_t word = NextRandom(&token_state);
    std::memcpy(token->data() + i, &word, sizeof(word));
  }
  return true;
}

std::string ShardExecutor::Impl::NameOf(const Peer& peer) const {
  if (!peer.server) return absl::StrCat("worker ", peer.incarnation);
  std::string name = "?";
  if (view != nullptr) {
    for (const v1::Server& server : view->servers()) {
      if (server.incarnation() == peer.incarnation) name = server.name();
    }
  }
  return absl::StrCat("shard ", peer.shard, " of server '", name, "' (incarnation ",
                      peer.incarnation, ")");
}

absl::StatusOr<ShardExecutor::Impl::Peer> ShardExecutor::Impl::CheckOpen(
    const v1::OpenLaneRequest& request) const {
  if (engine == nullptr || view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  if (request.server_incarnation() != incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("this is server incarnation ", incarnation,
                                                      ", not ", request.server_incarnation(),
                                                      "; fetch the cluster view again"));
  }
  if (request.shard() != options.shard) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", request.shard(), " asked of shard ", options.shard));
  }
  if (request.wire_version_min() > kWireVersion || request.wire_version_max() < kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no common wire version: the caller speaks ", request.wire_version_min(), " to ",
        request.wire_version_max(), ", this server ", kWireVersion, " to ", kWireVersion));
  }
  // The incarnations of two histories are not the same members.
  const History history = CompareHistory(*view, request.seen());
  if (history != History::kContinues && history != History::kBehind) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shard ", options.shard, ": incarnation ", request.incarnation(), " has seen ",
        DescribeSeen(request.seen()), " of cluster ", request.seen().cluster_id(),
        ", and this server ", DescribeSeen(SeenOf(*view)), " of cluster ", view->cluster_id(),
        " (the coordinator's state was replaced by an older one); "
        "the operator must put the newer state back"));
  }
  // One that has seen more than this server is no member because a member here has its number.
  if (history == History::kBehind && !ComesAfter(request.seen(), request.terms(), *view)) {
    return absl::UnavailableError(absl::StrCat(
        "shard ", options.shard, ": incarnation ", request.incarnation(), " has seen ",
        DescribeSeen(request.seen()), ", of whose history ", DescribeSeen(SeenOf(*view)),
        " of this server is not known to be a part; it is answered when this server has a newer "
        "view, or ends when the coordinator has found its state to be an old one"));
  }
  return CheckOpener(request);
}

absl::StatusOr<ShardExecutor::Impl::Peer> ShardExecutor::Impl::CheckOpener(
    const v1::OpenLaneRequest& request) const {
  const uint64_t opener = request.incarnation();
  if (workers.contains(opener)) return Peer{.incarnation = opener};
  if (servers.contains(opener)) {
    return Peer{.incarnation = opener, .server = true, .shard = request.source_shard()};
  }
  if (opener == incarnation) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation ", opener, " is this server itself"));
  }
  if (request.revision() > view->revision()) {
    return absl::UnavailableError(absl::StrCat("this server's view is at revision ",
                                               view->revision(), ", the caller's at ",
                                               request.revision()));
  }
  for (const v1::Server& server : view->servers()) {
    if (server.incarnation() != opener) continue;
    return absl::NotFoundError(
        absl::StrCat("server '", server.name(), "' (incarnation ", opener,
                     ") is silent, and no replicas of its partitions are kept here"));
  }
  return absl::NotFoundError(
      absl::StrCat("worker incarnation ", opener,
                   " is not a member of any job: its lease has ended or it has left"));
}

absl::StatusOr<rdma::LaneConfig> ShardExecutor::Impl::FitLane() const {
  rdma::LaneConfig config = options.lane;
  // A chunk on its way to a replica has a header more.
  static_assert(PayloadOffset(1) + sizeof(ReplicaHeader) <= 4096);
  const uint64_t chunk_slot = (uint64_t{4096} + largest_chunk.bytes() + kRecordAlignment - 1) /
                              kRecordAlignment * kRecordAlignment;
  config.large_slot_bytes =
      static_cast<uint32_t>(std::max<uint64_t>(config.large_slot_bytes, chunk_slot));
  const uint64_t left =
      options.lane_memory_limit > lane_memory ? options.lane_memory_limit - lane_memory : 0;
  // No lane takes more than half of the free lane memory, so that later workers get smaller lanes
  // rather than none.
  while (config.ring_bytes() > left / 2 && Shrink(&config)) {
  }
  if (config.ring_bytes() > left) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shard ", options.shard, ": lanes have ", lane_memory, " of ",
                     options.lane_memory_limit, " bytes (--lane-memory-limit), and the smallest ",
                     "lane needs ", config.ring_bytes(), "; raise it, or run fewer workers"));
  }
  return config;
}

absl::Status ShardExecutor::Impl::CheckFreeLanes(uint32_t rail) const {
  const size_t free = options.max_lanes - lanes.size() + free_ids.size();
  if (free == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shard ", options.shard, " has all its ", options.max_lanes,
                     " lanes in use; use more shards (--shards), or fewer workers"));
  }
  if (rail == 0) return absl::OkStatus();
  absl::flat_hash_set<uint64_t> served;
  for (const auto& lane : lanes) {
    if (lane != nullptr && !lane->closing && links[lane->transport].rail == 0) {
      served.insert(lane->peer.incarnation);
    }
  }
  for (const auto& [token, grant] : pending) {
    if (links[grant.transport].rail == 0) served.insert(grant.peer.incarnation);
  }
  const size_t members = workers.size() + servers.size();
  const size_t reserved = members > served.size() ? members - served.size() : 0;
  if (free > reserved) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("shard ", options.shard, ": no lane on rail ", rail, " (", free, " of ",
                   options.max_lanes, " lanes are free, reserved for rail 0 of ", reserved,
                   " members); use fewer rails or more shards"));
}

absl::Status ShardExecutor::Impl::LaneShortage() const {
  if (!lane_refused) return absl::OkStatus();
  if (absl::Status fits = FitLane().status(); !fits.ok()) return fits;
  return CheckFreeLanes(0);
}

absl::StatusOr<v1::OpenLaneResponse> ShardExecutor::Impl::OpenLane(
    const v1::OpenLaneRequest& request) {
  absl::StatusOr<Peer> peer = CheckOpen(request);
  if (!peer.ok()) return peer.status();
  v1::OpenLaneResponse response;
  if (!NewToken(response.mutable_token())) {
    return absl::UnavailableError("the system's random numbers are not ready yet; try again");
  }
  Pending grant;
  absl::StatusOr<size_t> transport = ChooseTransport(request, &grant.reason);
  if (transport.ok()) transport = ChooseRail(*transport, request.rail());
  if (!transport.ok()) return transport.status();
  if (absl::Status status = CheckLaneLimit(*peer, *transport); !status.ok()) {
    return status;
  }
  lane_refused = true;
  absl::StatusOr<rdma::LaneConfig> config = FitLane();
  if (!config.ok()) return config.status();
  if (absl::Status status = CheckFreeLanes(request.rail()); !status.ok()) return status;
  lane_refused = false;
  if (free_ids.empty()) {
    grant.id = static_cast<uint32_t>(lanes.size());
    lanes.emplace_back();
  } else {
    grant.id = free_ids.back();
    free_ids.pop_back();
  }
  grant.generation = next_generation++;
  grant.peer = *peer;
  grant.domain = peer->server ? kServersDomain : workers.at(peer->incarnation);
  grant.transport = *transport;
  grant.config = *config;
  grant.expires_ns = now_ns + absl::ToInt64Nanoseconds(options.lane_open_timeout);
  next_pending_check_ns = std::min(next_pending_check_ns, grant.expires_ns);
  lane_memory += grant.config.ring_bytes();

  response.set_lane(grant.id);
  response.set_generation(grant.generation);
  response.set_wire_version(kWireVersion);
  response.set_features(0);
  response.set_transport(std::string(links[grant.transport].endpoint->transport()));
  response.set_device(links[grant.transport].endpoint->device());
  response.set_transport_reason(grant.reason);
  response.set_address(links[grant.transport].address);
  response.set_rails(RailsOf(grant.transport));
  response.set_small_slots(grant.config.small_slots);
  response.set_small_slot_bytes(grant.config.small_slot_bytes);
  response.set_large_slots(grant.config.large_slots);
  response.set_large_slot_bytes(grant.config.large_slot_bytes);
  response.set_operations(grant.config.operations);
  pending.emplace(response.token(), std::move(grant));
  return response;
}

absl::Status ShardExecutor::Impl::CloseLane(const v1::CloseLaneRequest& request) {
  Lane* lane = request.lane() < lanes.size() ? lanes[request.lane()].get() : nullptr;
  if (lane != nullptr && lane->peer.incarnation == request.incarnation() &&
      lane->generation == request.generation()) {
    if (!lane->closing) {
      lane->lane->Close(absl::CancelledError(
          absl::StrCat("closed by its ", lane->peer.server ? "server" : "worker")));
      StartClosing(lane);
    }
    return absl::OkStatus();
  }
  for (const auto& [token, grant] : pending) {
    if (grant.id == request.lane() && grant.generation == request.generation() &&
        grant.peer.incarnation == request.incarnation()) {
      DropPending(token);
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(absl::StrCat("incarnation ", request.incarnation(), " has no lane ",
                                          request.lane(), " of generation ", request.generation()));
}

void ShardExecutor::Impl::DropPending(const std::string& token) {
  const auto it = pending.find(token);
  if (it == pending.end()) return;
  lane_memory -= it->second.config.ring_bytes();
  free_ids.push_back(it->second.id);
  pending.erase(it);
}

bool ShardExecutor::Impl::PollEvents(size_t transport) {
  Link& link = links[transport];
  const size_t n = link.endpoint->PollEvents(absl::MakeSpan(events));
  for (size_t i = 0; i < n; ++i) {
    const rdma::ConnectionEvent& event = events[i];
    if (event.kind == rdma::ConnectionEvent::Kind::kRequest) {
      OnRequest(transport, event);
      continue;
    }
    Lane* lane = FindLane(&link, event.connection);
    if (lane == nullptr) {
      peer_links->OnEvent(transport, event);
      continue;
    }
    lane->lane->OnEvent(event);
    if (Usable(lane) && event.kind == rdma::ConnectionEvent::Kind::kEstablished) {
      ++counters.lanes_opened;
    }
  }
  return n > 0;
}

absl::StatusOr<ShardExecutor::Impl::Pending> ShardExecutor::Impl::TakeToken(
    size_t transport, const std::string& private_data, LaneHello* hello) {
  // librdmacm hands private data over padded, so it may be longer than the data sent.
  if (private_data.size() < sizeof(LaneHello)) {
    return absl::InvalidArgumentError("no lane hello in the private data");
  }
  std::memcpy(hello, private_data.data(), sizeof(LaneHello));
  const std::string token(reinterpret_cast<const char*>(hello->token), kTokenBytes);
  const auto it = pending.find(token);
  if (it == pending.end()) {
    return absl::PermissionDeniedError("lane token unknown, used already or too late");
  }
  if (it->second.transport != transport) {
    return absl::PermissionDeniedError("lane token is for another transport");
  }
  if (it->second.expires_ns <= now_ns) {
    DropPending(token);
    return absl::PermissionDeniedError("lane token too late");
  }
  Pending grant = std::move(it->second);
  pending.erase(it);
  return grant;
}

// A worker has one lane to a shard on each rail of one transport, and opens the next only when the
// last on that rail, or of the transport before, is dead on its side. That one may be alive on
// ours: an outage can swallow the news.
bool ShardExecutor::Impl::TakesPlace(const Peer& peer, size_t link, const Lane& lane) const {
  if (lane.peer != peer) return false;
  const Link& old = links[lane.transport];
  const Link& next = links[link];
  return old.rail == next.rail || old.endpoint->transport() != next.endpoint->transport();
}

void ShardExecutor::Impl::CloseOlder(const Pending& grant) {
  for (auto& lane : lanes) {
    if (lane == nullptr || lane->generation > grant.generation ||
        !TakesPlace(grant.peer, grant.transport, *lane)) {
      continue;
    }
    Close(lane.get(), absl::UnavailableError(
                          absl::StrCat("its ", lane->peer.server ? "server" : "worker",
                                       " opened another one (generation ", grant.generation, ")")));
  }
}

void ShardExecutor::Impl::OnRequest(size_t transport, const rdma::ConnectionEvent& event) {
  ReadClock();
  Link& link = links[transport];
  LaneHello hello;
  absl::StatusOr<Pending> grant = TakeToken(transport, event.private_data, &hello);
  if (!grant.ok()) {
    ++counters.rejected_tokens;
    Log(absl::StrCat("connection refused on ", std::string(link.endpoint->transport()), ": ",
                     grant.status().message()));
    link.endpoint->Reject(event.connection, std::string(grant.status().message()));
    return;
  }
  CloseOlder(*grant);
  rdma::ShardLane::Params params{grant->id, grant->generation, grant->peer.incarnation,
                                 grant->config};
  params.domain = grant->domain;
  auto accepted = rdma::ShardLane::Accept(link.endpoint.get(), event.connection, hello, params);
  if (!accepted.ok()) {
    Log(absl::StrCat("lane ", grant->id, " of ", NameOf(grant->peer),
                     " not opened: ", accepted.status().message()));
    // Accept() has rejected the connection.
    lane_memory -= grant->config.ring_bytes();
    free_ids.push_back(grant->id);
    return;
  }
  auto lane = std::make_unique<Lane>();
  lane->id = grant->id;
  lane->generation = grant->generation;
  lane->peer = grant->peer;
  lane->domain = grant->domain;
  lane->transport = transport;
  lane->reason = std::move(grant->reason);
  lane->ring_bytes = grant->config.ring_bytes();
  lane->accept_deadline_ns = now_ns + absl::ToInt64Nanoseconds(options.lane_open_timeout);
  lane->operations.resize(grant->config.operations);
  lane->engine = engine;
  lane->lane = *std::move(accepted);
  next_pending_check_ns = std::min(next_pending_check_ns, lane->accept_deadline_ns);
  next_write_check_ns = std::min(next_write_check_ns, now_ns + rdma::WriteWatch::kIntervalNanos);
  link.by_connection[static_cast<uint32_t>(event.connection)] = lane.get();
  lanes[lane->id] = std::move(lane);
}

bool ShardExecutor::Impl::Usable(Lane* lane) {
  if (lane->closing) return false;
  const rdma::ShardLane::State state = lane->lane->state();
  if (state == rdma::ShardLane::State::kAccepting || state == rdma::ShardLane::State::kOpen) {
    return true;
  }
  ++counters.lanes_lost;
  Log(absl::StrCat("lane ", lane->id, " (generation ", lane->generation, ") of ",
                   NameOf(lane->peer), " over ",
                   std::string(links[lane->transport].endpoint->transport()),
                   " ended: ", lane->lane->error().message()));
  StartClosing(lane);
  return false;
}

void ShardExecutor::Impl::Close(Lane* lane, absl::Status reason) {
  if (lane->closing) return;
  lane->lane->Close(std::move(reason));
  Usable(lane);
}

void ShardExecutor::Impl::StartClosing(Lane* lane) {
  if (lane->closing) return;
  lane->closing = true;
  // Before its ring goes: the engine may still be holding a contribution that lies in a slot.
  lane->engine->ForgetLane(lane->id);
  ForgetWaiting(lane);
  closing.push_back(lane);
}

bool ShardExecutor::Impl::ReapClosing() {
  bool worked = false;
  for (size_t i = 0; i < closing.size();) {
    Lane* lane = closing[i];
    worked |= lane->lane->RunOnce();
    if (lane->lane->state() != rdma::ShardLane::State::kDead) {
      ++i;
      continue;
    }
    lane->lane->TakeAbandoned(&written);
    Unpin(lane, written);
    written.clear();
    Link& link = links[lane->transport];
    link.by_connection.erase(static_cast<uint32_t>(lane->lane->connection()));
    link.last_connection = rdma::ConnectionId::kNone;
    link.last_lane = nullptr;
    lane_memory -= lane->ring_bytes;
    retired_credit_messages += lane->lane->counters().credits;
    free_ids.push_back(lane->id);
    closing[i] = closing.back();
    closing.pop_back();
    lanes[lane->id].reset();
    worked = true;
  }
  return worked;
}

void ShardExecutor::Impl::CloseAll(const absl::Status& reason) {
  for (auto& lane : lanes) {
    if (lane != nullptr) Close(lane.get(), reason);
  }
  while (!pending.empty()) DropPending(std::string(pending.begin()->first));
}

void ShardExecutor::Impl::RetirePeers() {
  for (auto& lane : lanes) {
    if (lane == nullptr || lane->closing || MayHaveLanes(lane->peer)) continue;
    Close(lane.get(),
          absl::AbortedError(absl::StrCat(
              lane->peer.server ? "server" : "worker", " incarnation ", lane->peer.incarnation,
              lane->peer.server
                  ? " is silent or has left the cluster"
                  : " is not a member of any job: its lease has ended or it has left")));
  }
  std::vector<std::string> gone;
  for (const auto& [token, grant] : pending) {
    if (!MayHaveLanes(grant.peer)) gone.push_back(token);
  }
  for (const std::string& token : gone) DropPending(token);
}

bool ShardExecutor::Impl::RunTimers(int64_t now) {
  const bool pending_due = now >= next_pending_check_ns, writes_due = now >= next_write_check_ns;
  if (pending_due) CheckPending(now);
  if (writes_due) CheckWrites(now);
  const bool waited = RefuseWaiting(now) | RetryStarved(now);
  return peer_links->RunTimers(now) || pending_due || writes_due || waited;
}

void ShardExecutor::Impl::CheckPending(int64_t now) {
  next_pending_check_ns = kNever;
  std::vector<std::string> late;
  for (const auto& [token, grant] : pending) {
    if (grant.expires_ns <= now) {
      late.push_back(token);
    } else {
      next_pending_check_ns = std::min(next_pending_check_ns, grant.expires_ns);
    }
  }
  for (const std::string& token : late) DropPending(token);
  for (auto& lane : lanes) {
    if (lane == nullptr || lane->closing ||
        lane->lane->state() != rdma::ShardLane::State::kAccepting) {
      continue;
    }
    if (lane->accept_deadline_ns <= now) {
      Close(lane.get(), absl::DeadlineExceededError("the connection was not established in time"));
    } else {
      next_pending_check_ns = std::min(next_pending_check_ns, lane->accept_deadline_ns);
    }
  }
}

void ShardExecutor::Impl::CheckWrites(int64_t now) {
  next_write_check_ns = kNever;
  const int64_t timeout = absl::ToInt64Nanoseconds(options.write_timeout);
  for (auto& lane : lanes) {
    if (lane == nullptr || lane->closing) continue;
    next_write_check_ns = now + rdma::WriteWatch::kIntervalNanos;
    RelieveDeferred(lane.get(), now);
    if (!lane->lane->WritesHang(now, timeout)) continue;
    ++counters.write_timeouts;
    Close(lane.get(), absl::DeadlineExceededError(absl::StrCat(
                          "writes to the peer have been in flight for ",
                          absl::FormatDuration(options.write_timeout), " and none has ended")));
  }
}

}  // namespace verbena::server
