#include "server/executor/lane_grants.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/control/cluster_history.h"
#include "proto/protocol_version.h"
#include "server/executor/shard_core.h"
#include "shard/failpoints.h"

namespace verbena::server {
namespace {

constexpr size_t kTokenBytes = sizeof(LaneHello::token);
// A lane is not granted smaller than this.
constexpr uint32_t kLeastSmallSlots = 4;
// The header and the largest chunk that a table may have: a lane is not granted larger slots for
// what its caller says alone.
constexpr uint32_t kMaxRecordBytes = 4096 + (8 << 20);

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

Protocols CallerProtocols(const v1::OpenLaneRequest& request) {
  return {request.oldest_protocol(), request.newest_protocol()};
}

}  // namespace

bool LaneGrants::NewToken(std::string* token) {
  token->resize(kTokenBytes);
  if (core_.options.seed == 0) {
    // Not waiting: other lanes' records would wait, too. Early after boot there is none yet.
    return getrandom(token->data(), kTokenBytes, GRND_NONBLOCK) ==
           static_cast<ssize_t>(kTokenBytes);
  }
  for (size_t i = 0; i < kTokenBytes; i += sizeof(uint64_t)) {
    const uint64_t word = NextRandom(&token_state_);
    std::memcpy(token->data() + i, &word, sizeof(word));
  }
  return true;
}

absl::StatusOr<LanePeer> LaneGrants::CheckOpen(const v1::OpenLaneRequest& request) const {
  if (core_.engine == nullptr || core_.view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  if (request.server_incarnation() != core_.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("this is server incarnation ", core_.incarnation, ", not ",
                     request.server_incarnation(), "; fetch the cluster view again"));
  }
  if (request.shard() != core_.options.shard) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", request.shard(), " asked of shard ", core_.options.shard));
  }
  const Protocols caller = CallerProtocols(request);
  if (CommonProtocol(caller, core_.options.protocols) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shard ", core_.options.shard, ": no common protocol version: the caller speaks ",
        DescribeProtocols(caller), ", this server ", DescribeProtocols(core_.options.protocols),
        "; upgrade the ", caller.newest < core_.options.protocols.oldest ? "caller" : "server"));
  }
  // The incarnations of two histories are not the same members.
  const History history = CompareHistory(*core_.view, request.seen());
  if (history != History::kContinues && history != History::kBehind) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard ", core_.options.shard, ": incarnation ", request.incarnation(),
                     " has seen ", DescribeSeen(request.seen()), " of cluster ",
                     request.seen().cluster_id(), ", and this server ",
                     DescribeSeen(SeenOf(*core_.view)), " of cluster ", core_.view->cluster_id(),
                     " (the coordinator's state was replaced by an older one); "
                     "the operator must put the newer state back"));
  }
  // One that has seen more than this server is no member because a member here has its number.
  if (history == History::kBehind && !ComesAfter(request.seen(), request.terms(), *core_.view)) {
    return absl::UnavailableError(absl::StrCat(
        "shard ", core_.options.shard, ": incarnation ", request.incarnation(), " has seen ",
        DescribeSeen(request.seen()), ", of whose history ", DescribeSeen(SeenOf(*core_.view)),
        " of this server is not known to be a part; it is answered when this server has a newer "
        "view, or ends when the coordinator has found its state to be an old one"));
  }
  return core_.members.CheckOpener(request);
}

absl::StatusOr<rdma::LaneConfig> LaneGrants::FitLane(uint32_t record_bytes) const {
  rdma::LaneConfig config = core_.options.lane;
  // A chunk on its way to a replica has a header more.
  static_assert(PayloadOffset(1) + sizeof(ReplicaHeader) <= 4096);
  if (VERBENA_FAILPOINT(shard, ignore_record_bytes)) record_bytes = 0;
  const uint64_t record = std::max<uint64_t>(4096 + core_.largest_chunk.bytes(),
                                             std::min(record_bytes, kMaxRecordBytes));
  const uint64_t slot = (record + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  config.large_slot_bytes =
      static_cast<uint32_t>(std::max<uint64_t>(config.large_slot_bytes, slot));
  const uint64_t left =
      core_.options.lane_memory_limit > memory_ ? core_.options.lane_memory_limit - memory_ : 0;
  // No lane takes more than half of the free lane memory, so that later workers get smaller lanes
  // rather than none.
  while (config.ring_bytes() > left / 2 && Shrink(&config)) {
  }
  if (config.ring_bytes() > left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shard ", core_.options.shard, ": lanes have ", memory_, " of ",
        core_.options.lane_memory_limit, " bytes (--lane-memory-limit), and the smallest ",
        "lane needs ", config.ring_bytes(), "; raise it, or run fewer workers"));
  }
  return config;
}

absl::Status LaneGrants::CheckFreeLanes(uint32_t rail) const {
  const size_t free = core_.options.max_lanes - ids_ + free_ids_.size();
  if (free == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shard ", core_.options.shard, " has all its ", core_.options.max_lanes,
                     " lanes in use; use more shards (--shards), or fewer workers"));
  }
  if (rail == 0) return absl::OkStatus();
  absl::flat_hash_set<uint64_t> served;
  for (const auto& lane : core_.lanes.all()) {
    if (lane != nullptr && !lane->closing && core_.transports.links()[lane->transport].rail == 0) {
      served.insert(lane->peer.incarnation);
    }
  }
  for (const auto& [token, grant] : grants_) {
    if (core_.transports.links()[grant.transport].rail == 0) served.insert(grant.peer.incarnation);
  }
  const size_t members = core_.members.size();
  const size_t reserved = members > served.size() ? members - served.size() : 0;
  if (free > reserved) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("shard ", core_.options.shard, ": no lane on rail ", rail, " (", free, " of ",
                   core_.options.max_lanes, " lanes are free, reserved for rail 0 of ", reserved,
                   " members); use fewer rails or more shards"));
}

absl::Status LaneGrants::Shortage() const {
  if (!refused_) return absl::OkStatus();
  if (absl::Status fits = FitLane(0).status(); !fits.ok()) return fits;
  return CheckFreeLanes(0);
}

uint32_t LaneGrants::LanesOf(uint64_t domain, const LanePeer& peer, size_t link) const {
  uint32_t count = 0;
  for (const auto& [token, grant] : grants_) count += grant.domain == domain ? 1 : 0;
  for (const auto& lane : core_.lanes.all()) {
    if (lane == nullptr || lane->domain != domain) continue;
    if (lane->closing || !core_.lanes.TakesPlace(peer, link, *lane)) ++count;
  }
  return count;
}

absl::Status LaneGrants::CheckLaneLimit(const LanePeer& peer, size_t link) const {
  const ShardMembers::Job* job = peer.server ? nullptr : core_.members.JobOf(peer.incarnation);
  if (job == nullptr || job->lane_limit == 0) return absl::OkStatus();
  // A lane that is open on our side alone must not keep its worker from opening the next.
  const uint32_t has = LanesOf(core_.members.DomainOf(peer), peer, link);
  if (has < job->lane_limit) return absl::OkStatus();
  const std::string& name = job->name;
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", name, "' is at its limit of lanes to shard ", core_.options.shard,
                   ": it has ", has, " (granted, open or closing), allowed are ", job->lane_limit,
                   ". Have fewer workers, or raise the limit ('verbena limits ", name, " --lanes ",
                   has + 1, "')"));
}

absl::StatusOr<v1::OpenLaneResponse> LaneGrants::Open(const v1::OpenLaneRequest& request) {
  absl::StatusOr<LanePeer> peer = CheckOpen(request);
  if (!peer.ok()) return peer.status();
  v1::OpenLaneResponse response;
  if (!NewToken(response.mutable_token())) {
    return absl::UnavailableError("the system's random numbers are not ready yet; try again");
  }
  LaneGrant grant;
  absl::StatusOr<size_t> transport = core_.transports.Choose(request, &grant.reason);
  if (transport.ok()) transport = core_.transports.ChooseRail(*transport, request.rail());
  if (!transport.ok()) return transport.status();
  if (absl::Status status = CheckLaneLimit(*peer, *transport); !status.ok()) {
    return status;
  }
  refused_ = true;
  absl::StatusOr<rdma::LaneConfig> config = FitLane(request.record_bytes());
  if (!config.ok()) return config.status();
  if (absl::Status status = CheckFreeLanes(request.rail()); !status.ok()) return status;
  refused_ = false;
  if (free_ids_.empty()) {
    grant.id = ids_++;
  } else {
    grant.id = free_ids_.back();
    free_ids_.pop_back();
  }
  grant.generation = next_generation_++;
  grant.peer = *peer;
  grant.protocol = CommonProtocol(CallerProtocols(request), core_.options.protocols);
  grant.domain = core_.members.DomainOf(*peer);
  grant.transport = *transport;
  grant.config = *config;
  grant.expires_ns = core_.now_ns + absl::ToInt64Nanoseconds(core_.options.lane_open_timeout);
  next_check_ns_ = std::min(next_check_ns_, grant.expires_ns);
  memory_ += grant.config.ring_bytes();

  response.set_lane(grant.id);
  response.set_generation(grant.generation);
  response.set_protocol(grant.protocol);
  response.set_features(0);
  response.set_transport(
      std::string(core_.transports.links()[grant.transport].endpoint->transport()));
  response.set_device(core_.transports.links()[grant.transport].endpoint->device());
  response.set_transport_reason(grant.reason);
  response.set_address(core_.transports.links()[grant.transport].address);
  response.set_rails(core_.transports.RailsOf(grant.transport));
  response.set_small_slots(grant.config.small_slots);
  response.set_small_slot_bytes(grant.config.small_slot_bytes);
  response.set_large_slots(grant.config.large_slots);
  response.set_large_slot_bytes(grant.config.large_slot_bytes);
  response.set_operations(grant.config.operations);
  grants_.emplace(response.token(), std::move(grant));
  return response;
}

void LaneGrants::Drop(const std::string& token) {
  const auto it = grants_.find(token);
  if (it == grants_.end()) return;
  Release(it->second.id, it->second.config.ring_bytes());
  grants_.erase(it);
}

bool LaneGrants::Close(const v1::CloseLaneRequest& request) {
  for (const auto& [token, grant] : grants_) {
    if (grant.id == request.lane() && grant.generation == request.generation() &&
        grant.peer.incarnation == request.incarnation()) {
      Drop(token);
      return true;
    }
  }
  return false;
}

void LaneGrants::DropAll() {
  while (!grants_.empty()) Drop(std::string(grants_.begin()->first));
}

void LaneGrants::DropRetired() {
  std::vector<std::string> gone;
  for (const auto& [token, grant] : grants_) {
    if (!core_.members.MayHaveLanes(grant.peer)) gone.push_back(token);
  }
  for (const std::string& token : gone) Drop(token);
}

void LaneGrants::DropLate(int64_t now) {
  next_check_ns_ = kNever;
  std::vector<std::string> late;
  for (const auto& [token, grant] : grants_) {
    if (grant.expires_ns <= now) {
      late.push_back(token);
    } else {
      next_check_ns_ = std::min(next_check_ns_, grant.expires_ns);
    }
  }
  for (const std::string& token : late) Drop(token);
}

absl::StatusOr<LaneGrant> LaneGrants::Take(size_t transport, const std::string& private_data,
                                           LaneHello* hello) {
  // librdmacm hands private data over padded, so it may be longer than the data sent.
  if (private_data.size() < sizeof(LaneHello)) {
    return absl::InvalidArgumentError("no lane hello in the private data");
  }
  std::memcpy(hello, private_data.data(), sizeof(LaneHello));
  const std::string token(reinterpret_cast<const char*>(hello->token), kTokenBytes);
  const auto it = grants_.find(token);
  if (it == grants_.end()) {
    return absl::PermissionDeniedError("lane token unknown, used already or too late");
  }
  if (it->second.transport != transport) {
    return absl::PermissionDeniedError("lane token is for another transport");
  }
  if (it->second.expires_ns <= core_.now_ns) {
    Drop(token);
    return absl::PermissionDeniedError("lane token too late");
  }
  LaneGrant grant = std::move(it->second);
  grants_.erase(it);
  return grant;
}

}  // namespace verbena::server
