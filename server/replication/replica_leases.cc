#include "server/replication/replica_leases.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::server {
namespace {

PeerId Id(const v1::Replica& replica) { return {replica.server(), replica.shard()}; }

}  // namespace

void ReplicaLeases::Follow(const v1::ClusterView& view, const PeerId& self, int64_t now) {
  if (self != self_) parts_.clear();
  self_ = self;
  // No view of a coordinator has 0: with it there would be beacons for ever.
  lease_ns_ = std::max<int64_t>(view.lease_ms(), 1) * kNanosPerMilli;
  parts_.resize(view.partitions_size());
  const bool was_active = active_;
  active_ = read_all_known_ = false;
  for (const v1::Partition& p : view.partitions()) {
    if (p.id() >= parts_.size()) continue;
    Part& part = parts_[p.id()];
    const Part was = part;
    part = {};
    part.epoch = p.epoch();
    part.configuration = p.configuration();
    part.given_until = was.given_until;
    part.primary = {p.primary(), p.shard()};
    const auto find = [&](const auto& replicas, Role role) {
      for (const v1::Replica& r : replicas) {
        if (Id(r) != self) continue;
        part.role = role;
        part.since = r.since();
      }
    };
    find(p.learners(), Role::kLearner);
    find(p.followers(), Role::kFollower);
    if (p.primary() != 0 && part.primary == self) {
      FollowPrimary(p, &part, was, now);
    } else if (part.role != Role::kNone) {
      const bool same = was.since == part.since && was.epoch == part.epoch;
      const bool copied = was.role == Role::kFollower || was.role == Role::kLearner;
      part.heard_ns = same && copied ? was.heard_ns : now;
      active_ = true;
    }
    active_ |= part.copy.server != 0 || part.serve_from > now;
  }
  if (!active_) {
    next_beacon_ns_ = kNever;
  } else if (!was_active) {
    next_beacon_ns_ = judged_ns_ = now;
  } else {
    next_beacon_ns_ = std::min(next_beacon_ns_, now);  // to new replicas
  }
}

void ReplicaLeases::FollowPrimary(const v1::Partition& p, Part* part, const Part& was,
                                  int64_t now) {
  part->role = Role::kPrimary;
  if (was.role == Role::kPrimary) part->serve_from = was.serve_from;
  if (was.role == Role::kFollower) part->serve_from = was.heard_ns + lease_ns_;
  const bool waits = part->given_until > std::max(part->serve_from, now);
  if (!(waits && VERBENA_FAILPOINT(shard, skip_given_lease))) {
    part->serve_from = std::max(part->serve_from, part->given_until);
  }
  const bool follower = !p.followers().empty();
  if (!follower && p.learners().empty()) return;
  const v1::Replica& replica = follower ? p.followers(0) : p.learners(0);
  part->copy = Id(replica);
  part->since = replica.since();
  part->leased = follower;
  if (was.role == Role::kPrimary && was.copy == part->copy && was.since == part->since) {
    part->leased |= was.leased;
    part->sent_ns = was.sent_ns;
    part->alive_ns = was.alive_ns;
  } else {
    part->alive_ns = now;
  }
  SetReadUntil(part);
}

void ReplicaLeases::SetReadUntil(Part* part) {
  read_all_known_ = false;
  part->read_until = kNever;
  if (part->leased) part->read_until = part->sent_ns == 0 ? 0 : part->sent_ns + lease_ns_ / 5 * 4;
}

bool ReplicaLeases::MayReadAll(int64_t now) {
  if (!active_) return true;
  if (!read_all_known_) {
    read_all_until_ = kNever;
    for (const Part& part : parts_) {
      if (part.role == Role::kPrimary) read_all_until_ = std::min(read_all_until_, part.read_until);
    }
    read_all_known_ = true;
  }
  return now < read_all_until_;
}

std::vector<ReplicaLeases::Beacon> ReplicaLeases::TakeBeacons(int64_t now) {
  std::vector<Beacon> beacons;
  if (!active_ || now < next_beacon_ns_) return beacons;
  next_beacon_ns_ = now + lease_ns_ / 8;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    if (part.copy.server == 0) continue;
    auto it = std::find_if(beacons.begin(), beacons.end(), [&](const Beacon& b) {
      return b.to == part.copy && b.groups.size() < kMaxGroups;
    });
    if (it == beacons.end()) it = beacons.insert(beacons.end(), {part.copy, {}});
    Group group = {};
    group.partition = p;
    group.epoch = part.epoch;
    group.sequence = part.since;
    it->groups.push_back(group);
  }
  return beacons;
}

void ReplicaLeases::Acknowledged(const PeerId& from, const Group& group, int64_t sent_ns) {
  if (group.partition >= parts_.size()) return;
  Part& part = parts_[group.partition];
  if (part.copy != from || part.epoch != group.epoch || part.since != group.sequence) return;
  part.sent_ns = std::max(part.sent_ns, sent_ns);
  part.alive_ns = std::max(part.alive_ns, sent_ns);
  SetReadUntil(&part);
}

void ReplicaLeases::Admitting(uint32_t partition) {
  parts_[partition].leased = true;
  SetReadUntil(&parts_[partition]);
}

ReplyStatus ReplicaLeases::OnBeacon(const PeerId& from, const Group& group, int64_t now) {
  if (group.partition >= parts_.size()) {
    return parts_.empty() ? ReplyStatus::kNotReady : ReplyStatus::kOutOfRange;
  }
  Part& part = parts_[group.partition];
  if (group.epoch > part.epoch) return ReplyStatus::kNotReady;
  if (group.epoch < part.epoch || part.primary != from) return ReplyStatus::kWrongEpoch;
  const bool copy = part.role == Role::kFollower || part.role == Role::kLearner;
  if (!copy || group.sequence > part.since) return ReplyStatus::kNotReady;
  if (group.sequence < part.since) return ReplyStatus::kWrongEpoch;
  part.heard_ns = now;
  part.given_until = std::max(part.given_until, now + lease_ns_);
  return ReplyStatus::kOk;
}

void ReplicaLeases::Judge(int64_t now, std::vector<v1::ConfigurationChange>* changes) {
  // Messages may have come meanwhile that were not read yet.
  const bool absent = now - judged_ns_ > lease_ns_ / 2;
  judged_ns_ = now;
  if (!active_) return;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    const bool primary = part.role == Role::kPrimary && part.copy.server != 0;
    if (!primary && part.role != Role::kFollower) continue;
    int64_t& last = primary ? part.alive_ns : part.heard_ns;
    if (absent) last = now;
    if (now - last < lease_ns_) continue;
    v1::ConfigurationChange change;
    change.set_kind(primary ? v1::ConfigurationChange::DROP_REPLICA
                            : v1::ConfigurationChange::PROMOTE);
    change.set_partition(p);
    change.set_configuration(part.configuration);
    if (primary) change.set_server(part.copy.server);
    changes->push_back(change);
  }
}

}  // namespace verbena::server
