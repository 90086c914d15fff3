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
      const bool follows = was.role == Role::kFollower && part.role == Role::kFollower;
      if (same && follows && was.primary == part.primary) part.fresh_ns = was.fresh_ns;
      active_ = true;
    }
    active_ |= !part.copies.empty() || part.serve_from > now;
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
  // The primary before has stopped to read, and so had others before it. The view in which this
  // learner became a follower may have been left out on the way to here.
  const bool released = p.released_epoch() == p.epoch() &&
                        (was.role == Role::kFollower || was.role == Role::kLearner) &&
                        was.epoch + 1 == p.epoch();
  if (released) part->given_until = 0;
  if (was.role == Role::kFollower && !released) part->serve_from = was.heard_ns + lease_ns_;
  const bool waits = part->given_until > std::max(part->serve_from, now);
  if (!(waits && VERBENA_FAILPOINT(shard, skip_given_lease))) {
    part->serve_from = std::max(part->serve_from, part->given_until);
  }
  const auto add = [&](const v1::Replica& replica, bool follower) {
    Copy copy = {Id(replica), replica.since(), follower, 0, now};
    const auto same = [&](const Copy& c) { return c.id == copy.id && c.since == copy.since; };
    const auto before = std::find_if(was.copies.begin(), was.copies.end(), same);
    if (was.role == Role::kPrimary && before != was.copies.end()) {
      copy = *before;
      copy.leased |= follower;
    }
    part->copies.push_back(copy);
  };
  for (const v1::Replica& replica : p.followers()) add(replica, true);
  for (const v1::Replica& replica : p.learners()) add(replica, false);
  SetReadUntil(part);
}

void ReplicaLeases::SetReadUntil(Part* part) {
  read_all_known_ = false;
  part->read_until = kNever;
  for (const Copy& copy : part->copies) {
    if (!copy.leased) continue;
    const int64_t until = copy.sent_ns == 0 ? 0 : copy.sent_ns + lease_ns_ / 5 * 4;
    part->read_until = std::min(part->read_until, until);
  }
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
    for (const Copy& copy : part.copies) {
      auto it = std::find_if(beacons.begin(), beacons.end(), [&](const Beacon& b) {
        return b.to == copy.id && b.groups.size() < kMaxGroups;
      });
      if (it == beacons.end()) it = beacons.insert(beacons.end(), {copy.id, {}});
      Group group = {};
      group.partition = p;
      group.epoch = part.epoch;
      group.sequence = copy.since;
      it->groups.push_back(group);
    }
  }
  return beacons;
}

void ReplicaLeases::Acknowledged(const PeerId& from, const Group& group, int64_t sent_ns) {
  if (group.partition >= parts_.size()) return;
  Part& part = parts_[group.partition];
  if (part.epoch != group.epoch) return;
  for (Copy& copy : part.copies) {
    if (copy.id != from || copy.since != group.sequence) continue;
    copy.sent_ns = std::max(copy.sent_ns, sent_ns);
    copy.alive_ns = std::max(copy.alive_ns, sent_ns);
  }
  SetReadUntil(&part);
}

bool ReplicaLeases::Vouches(const PeerId& to, const Group& group, int64_t now) const {
  const Part& part = parts_[group.partition];
  // A learner does not have all that is applied here.
  const auto has = [&](const Copy& copy) {
    return copy.id == to && copy.since == group.sequence && copy.leased;
  };
  return part.role == Role::kPrimary && part.epoch == group.epoch &&
         std::any_of(part.copies.begin(), part.copies.end(), has) && MayRead(group.partition, now);
}

bool ReplicaLeases::Heard(uint32_t partition, uint64_t server, int64_t since) const {
  const std::vector<Copy>& copies = parts_[partition].copies;
  return std::any_of(copies.begin(), copies.end(), [&](const Copy& copy) {
    return copy.id.server == server && copy.sent_ns >= since && copy.sent_ns > 0;
  });
}

void ReplicaLeases::Admitting(uint32_t partition, uint64_t server) {
  for (Copy& copy : parts_[partition].copies) copy.leased |= copy.id.server == server;
  SetReadUntil(&parts_[partition]);
}

ReplyStatus ReplicaLeases::OnBeacon(const PeerId& from, const Group& group, int64_t now,
                                    int64_t echo) {
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
  if (SettledOf(group) != 0) part.fresh_ns = std::max(part.fresh_ns, std::min(echo, now));
  return ReplyStatus::kOk;
}

bool ReplicaLeases::IsFresh(const Group& group, int64_t age_ns, int64_t now) const {
  if (group.partition >= parts_.size()) return false;
  const Part& part = parts_[group.partition];
  if (part.role != Role::kFollower || part.epoch != group.epoch) return false;
  const bool fresh = part.fresh_ns > 0 && now - part.fresh_ns <= age_ns / 5 * 4;
  return fresh || VERBENA_FAILPOINT(shard, follower_answers_stale);
}

void ReplicaLeases::Judge(int64_t now, std::vector<v1::ConfigurationChange>* changes) {
  // Messages may have come meanwhile that were not read yet.
  const bool absent = now - judged_ns_ > lease_ns_ / 2;
  judged_ns_ = now;
  if (!active_) return;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    const auto want = [&](v1::ConfigurationChange::Kind kind) {
      v1::ConfigurationChange& change = changes->emplace_back();
      change.set_kind(kind);
      change.set_partition(p);
      change.set_configuration(part.configuration);
      return &change;
    };
    // One change makes the next: the others follow in its view.
    bool drops = false;
    for (Copy& copy : part.copies) {
      if (absent) copy.alive_ns = now;
      if (drops || now - copy.alive_ns < lease_ns_) continue;
      want(v1::ConfigurationChange::DROP_REPLICA)->set_server(copy.id.server);
      drops = true;
    }
    if (part.role != Role::kFollower) continue;
    if (absent) part.heard_ns = now;
    if (now - part.heard_ns >= lease_ns_) want(v1::ConfigurationChange::PROMOTE);
  }
}

}  // namespace verbena::server
