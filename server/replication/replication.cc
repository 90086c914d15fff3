#include "server/replication/replication.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/nanoseconds.h"
#include "shard/failpoints.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"

namespace verbena::server {
namespace {

constexpr size_t kTakeAtOnce = 64;
// A step that is open in a partition that is to be handed over may end any moment.
constexpr int64_t kBetweenCloses = 1'000'000;  // nanoseconds

bool Good(ReplyStatus status) {
  return status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate;
}

int64_t Later(int64_t now, int64_t wait) { return wait >= kNever - now ? kNever : now + wait; }

shard::CopyRoom RoomOf(const Reply& reply) {
  if (reply.detail == 0) return {};
  return {uint64_t{reply.detail - 1} << 10, reply.version};
}

shard::CopyId CopyOf(const PeerId& peer) { return {peer.server, peer.shard}; }

}  // namespace

Replication::Replication(ReplicationOptions options, ControlChannel* control, const Clock* clock)
    : options_(std::move(options)), clock_(clock), calls_(control, &random_, options_.log) {
  if (options_.audit.interval_ns == kNever) next_audit_ns_ = kNever;
  if (options_.seed != 0) {
    random_.seed(options_.seed);
  } else {
    std::random_device device;
    std::seed_seq words{device(), device(), device(), device()};
    random_.seed(words);
  }
}

void Replication::Follow(std::shared_ptr<const v1::ClusterView> view, uint64_t self,
                         std::shared_ptr<shard::Engine> engine) {
  const int64_t now = clock_->NowNanos();
  if (engine != engine_) {
    for (auto& [id, peer] : peers_) peer.queue.clear();
    parts_.clear();
    hand_overs_.Reset();
    refused_ = 0;
  }
  self_ = self;
  engine_ = std::move(engine);
  view_ = std::move(view);
  leases_.Follow(*view_, {self_, options_.shard}, now);
  FollowCopies();
  hand_overs_.Follow(*view_, {self_, options_.shard}, engine_.get(), now);
  next_ask_ns_ = std::min(next_ask_ns_, hand_overs_.NextNanos(now));
  pace_.SetRate(MoveRateOf(*view_, self_), now);
}

void Replication::FollowCopies() {
  std::vector<PeerId> wanted;
  parts_.resize(view_->partitions_size());
  learners_.clear();
  for (const v1::Partition& partition : view_->partitions()) {
    std::vector<ReplicaProgress>& parts = parts_[partition.id()];
    std::vector<ReplicaProgress> now_are;
    const bool ours =
        self_ != 0 && partition.primary() == self_ && partition.shard() == options_.shard;
    for (const auto* copies : {&partition.followers(), &partition.learners()}) {
      for (const v1::Replica& copy : *copies) {
        if (!ours) continue;
        wanted.push_back({copy.server(), copy.shard()});
        now_are.emplace_back(wanted.back(), copy.since(), partition.epoch());
      }
    }
    for (const ReplicaProgress& part : parts) {
      const auto same = std::find_if(now_are.begin(), now_are.end(),
                                     [&](const ReplicaProgress& p) { return p.Same(part); });
      if (same != now_are.end()) {
        *same = part;
        continue;
      }
      refused_ -= part.refused() ? 1 : 0;
      ReleaseUnsent(part.copy(), partition.id());
    }
    parts = std::move(now_are);
    if (!ours) continue;
    if (!partition.learners().empty()) learners_.push_back(partition.id());
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (auto it = peers_.begin(); it != peers_.end();) {
    const bool keep = std::binary_search(wanted.begin(), wanted.end(), it->first);
    // With nothing out, no OnDead() is needed to know that nothing is read any more.
    if (keep || !it->second.out.empty()) {
      ++it;
      continue;
    }
    engine_->replicas().Lost(CopyOf(it->first));
    it = peers_.erase(it);
  }
  for (const PeerId& id : wanted) peers_[id];
  links_->Follow(view_, self_, wanted);
}

// ---- records ------------------------------------------------------------------------------------

bool Replication::TakeRecords() {
  const int64_t allowed = pace_.Refill(clock_->NowNanos());
  engine_->replicas().AllowMoves(allowed);
  const bool any = engine_->replicas().Take(&records_, kTakeAtOnce);
  pace_.Left(allowed, engine_->replicas().moves_allowed());
  return any;
}

bool Replication::Send() {
  if (engine_ == nullptr || !leases_.active()) return false;
  bool worked = false;
  while (TakeRecords()) {
    worked = true;
    for (shard::ReplicaRecord& record : records_) {
      const PeerId id = {record.to.server, record.to.shard};
      // Refused records are sent again first; these come again with them.
      const ReplicaProgress* const part = Find(record.group.partition, id);
      if (part != nullptr && part->refused()) continue;
      const auto it = peers_.find(id);
      if (it != peers_.end()) it->second.queue.push_back(record);
    }
    const bool more = records_.size() >= kTakeAtOnce;
    records_.clear();
    if (!more) break;
  }
  for (auto& [id, peer] : peers_) worked |= SendTo(id, &peer);
  return worked;
}

ReplicaProgress* Replication::Find(uint32_t partition, const PeerId& copy) {
  if (partition >= parts_.size()) return nullptr;
  for (ReplicaProgress& part : parts_[partition]) {
    if (part.copy() == copy) return &part;
  }
  return nullptr;
}

ReplicaProgress* Replication::PartOf(const PeerId& copy, const Out& out) {
  if (!out.groups.empty()) return nullptr;
  ReplicaProgress* const part = Find(out.partition, copy);
  const bool counts = part != nullptr && part->in_flight() && part->since() == out.since &&
                      part->epoch() == out.epoch;
  return counts ? part : nullptr;
}

bool Replication::SendTo(const PeerId& id, Peer* peer) {
  bool worked = false;
  while (!peer->blocked && !(peer->beacons.empty() && peer->queue.empty())) {
    // A lane with one small slot has none left for beacons while there are records to send.
    if (!(peer->beacons.empty() ? SendFirst(id, peer) : SendBeacon(id, peer))) {
      peer->blocked = true;
      break;
    }
    worked = true;
  }
  return worked;
}

bool Replication::SendFirst(const PeerId& id, Peer* peer) {
  const size_t most = links_->max_data_bytes(id);
  if (most == 0) return false;
  const shard::ReplicaRecord& record = peer->queue.front();
  const uint32_t total = record.header.total_bytes;
  const auto bytes = static_cast<uint32_t>(std::min<size_t>(total - peer->offset, most));
  ReplicaHeader header = record.header;
  header.part_offset = peer->offset;
  if (FollowersRead()) header.committed = engine_->replicas().Settled(record.group.partition);
  PeerRecord out;
  out.type = RecordType::kReplicate;
  out.table = record.table;
  out.groups = {&record.group, 1};
  out.header = &header;
  if (bytes > 0) {
    // Tables' memory is the slab allocator's, whose handle that is.
    out.data = {record.data.data + peer->offset, bytes,
                static_cast<const rdma::MemoryBlock*>(record.data.handle)};
  }
  out.cookie = ++last_cookie_;
  if (!links_->Send(id, out)) return false;
  const uint32_t partition = record.group.partition;
  uint64_t since = 0, epoch = 0;
  if (ReplicaProgress* const part = Find(partition, id)) {
    since = part->since();
    epoch = part->epoch();
    part->Sent(clock_->NowNanos());
  }
  peer->offset += bytes;
  const bool last = peer->offset == total;
  peer->out[out.cookie] = {partition, record.group.sequence, last, since, epoch, 0, {}};
  if (!last) return true;
  ++counters_.sent_records;
  peer->queue.pop_front();
  peer->offset = 0;
  return true;
}

void Replication::OnOpen(const PeerId& peer) {
  const auto it = peers_.find(peer);
  if (it != peers_.end()) it->second.blocked = false;
}

void Replication::OnRoom(const PeerId& peer) { OnOpen(peer); }

void Replication::OnDead(const PeerId& id) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  for (const auto& [cookie, out] : peer.out) {
    if (ReplicaProgress* part = PartOf(id, out)) part->Ended();
  }
  peer.out.clear();
  peer.queue.clear();
  peer.offset = 0;
  if (engine_ != nullptr) engine_->replicas().Lost(CopyOf(id));
}

void Replication::OnReply(const PeerId& id, uint64_t cookie, const Reply& reply) {
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) return;
  const auto it = peer->second.out.find(cookie);
  if (it == peer->second.out.end()) return;
  const Out out = std::move(it->second);
  peer->second.out.erase(it);
  if (engine_ != nullptr) engine_->replicas().SetRoom(CopyOf(id), RoomOf(reply));
  if (!out.groups.empty()) {
    peer->second.echo = std::max(peer->second.echo, reply.applies);
    for (size_t i = 0; i < out.groups.size() && i < reply.group_count; ++i) {
      if (reply.group_status[i] == ReplyStatus::kOk) {
        leases_.Acknowledged(id, out.groups[i], out.sent_ns);
      }
    }
    return;
  }
  peer->second.heard_ns = clock_->NowNanos();
  if (ReplicaProgress* part = PartOf(id, out)) {
    if (Good(reply.status)) {
      part->Taken(out.last, clock_->NowNanos());
    } else {
      OnRefused(&peer->second, out.partition, part, reply.status);
    }
  }
  if (out.last) engine_->replicas().Answered(CopyOf(id), out.partition, out.sequence, reply.status);
  // Also after the answer to a part: the rest of its record may have been dropped here.
  if (PartOf(id, out) == nullptr) ReleaseUnsent(id, out.partition);
  if (!out.last) return;
  // The learner may have everything with that.
  if (!learners_.empty() || hand_overs_.waits())
    next_ask_ns_ = std::min(next_ask_ns_, clock_->NowNanos());
}

// After a refusal, queued records are dropped here but remain handed over. They would be sent
// again, but not to a server that has no replica any more.
void Replication::ReleaseUnsent(const PeerId& copy, uint32_t partition) {
  const auto it = peers_.find(copy);
  if (it == peers_.end()) return;
  const Peer& peer = it->second;
  const auto sent = [&](const auto& out) {
    return out.second.groups.empty() && out.second.partition == partition;
  };
  const auto queued = [&](const shard::ReplicaRecord& record) {
    return record.group.partition == partition;
  };
  if (std::any_of(peer.out.begin(), peer.out.end(), sent) ||
      std::any_of(peer.queue.begin(), peer.queue.end(), queued)) {
    return;
  }
  engine_->replicas().Answered(CopyOf(copy), partition, UINT64_MAX, ReplyStatus::kNotReady);
}

void Replication::OnRefused(Peer* peer, uint32_t partition, ReplicaProgress* part,
                            ReplyStatus status) {
  ++counters_.refused;
  if (status == ReplyStatus::kDataLoss && !part->broken()) {
    ++counters_.mismatches;
    Log(absl::StrCat("replica of partition ", partition, " on server ", part->copy().server,
                     ": its contents differ from this primary's (the comparison of records failed);"
                     " it is dropped and copied again"));
  }
  if (part->Refuse(status, clock_->NowNanos(), random_)) {
    ++refused_;
    const bool learns = engine_->replicas().Learns(CopyOf(part->copy()), partition);
    if (status == ReplyStatus::kMemoryLimit && !learns) ++counters_.no_memory;
  }
  // Records queued behind it would be refused, too; they come again with it.
  if (!peer->queue.empty() && peer->queue.front().group.partition == partition) peer->offset = 0;
  std::erase_if(peer->queue, [&](const shard::ReplicaRecord& record) {
    return record.group.partition == partition;
  });
}

bool Replication::ResendRefused(int64_t now) {
  bool worked = false;
  for (uint32_t p = 0; refused_ > 0 && p < parts_.size(); ++p) {
    for (ReplicaProgress& part : parts_[p]) {
      if (part.retry_at() > now) continue;
      part.Resend();
      --refused_;
      ++counters_.resent;
      engine_->replicas().Resend(CopyOf(part.copy()), p);
      worked = true;
    }
  }
  return worked;
}

// ---- timers -------------------------------------------------------------------------------------

void Replication::SendBeacons(int64_t now) {
  for (auto& [id, peer] : peers_) peer.beacons.clear();
  for (ReplicaLeases::Beacon& beacon : leases_.TakeBeacons(now)) {
    const auto it = peers_.find(beacon.to);
    if (it != peers_.end()) it->second.beacons.push_back(std::move(beacon.groups));
  }
  // Also where records found no room: a slot is left to beacons, where there is more than one.
  for (auto& [id, peer] : peers_) {
    while (!peer.beacons.empty()) {
      if (SendBeacon(id, &peer)) continue;
      peer.blocked = true;
      break;
    }
  }
}

bool Replication::SendBeacon(const PeerId& id, Peer* peer) {
  PeerRecord out;
  out.type = RecordType::kBeacon;
  out.groups = peer->beacons.front();
  out.cookie = ++last_cookie_;
  out.echo = peer->echo;
  // Before it is sent: the lease must not count from later than the follower's own promise.
  const int64_t sent_ns = clock_->NowNanos();
  for (Group& group : peer->beacons.front()) {
    const bool vouches = FollowersRead() && leases_.Vouches(id, group, sent_ns);
    SetSettled(vouches ? engine_->replicas().SettledForReads(group.partition) : 0, &group);
  }
  if (!links_->Send(id, out)) return false;
  peer->out[out.cookie] = {0, 0, true, 0, 0, sent_ns, std::move(peer->beacons.front())};
  peer->beacons.pop_front();
  return true;
}

bool Replication::RunTimers(int64_t now) {
  if (engine_ == nullptr || !leases_.active()) return false;
  bool worked = false;
  if (leases_.NextTimerNanos() <= now) {
    SendBeacons(now);
    worked = true;
  }
  worked |= ResendRefused(now);
  if (next_audit_ns_ <= now) {
    next_audit_ns_ = Later(now, options_.audit.interval_ns);
    worked |= engine_->proofs().AuditFollowers(options_.audit.turn_bytes);
  }
  worked |= engine_->replicas().moves_held_back() && pace_.NextNanos() <= now;
  if (next_ask_ns_ <= now) {
    next_ask_ns_ = now + leases_.lease_ns() / 16;
    Reconfigure(now);
  }
  return worked;
}

int64_t Replication::NextTimerNanos() const {
  if (engine_ == nullptr || !leases_.active()) return kNever;
  int64_t next = std::min({leases_.NextTimerNanos(), next_ask_ns_, next_audit_ns_});
  if (engine_->replicas().moves_held_back()) next = std::min(next, pace_.NextNanos());
  for (uint32_t p = 0; refused_ > 0 && p < parts_.size(); ++p) {
    for (const ReplicaProgress& part : parts_[p]) next = std::min(next, part.retry_at());
  }
  return next;
}

void Replication::LookForWaiting(int64_t now) {
  const bool absent = now - looked_ns_ > leases_.lease_ns() / 2;
  looked_ns_ = now;
  absl::flat_hash_set<const ReplicaProgress*> queued;
  for (const auto& [id, peer] : peers_) {
    for (const shard::ReplicaRecord& record : peer.queue) {
      if (const auto* const part = Find(record.group.partition, id)) queued.insert(part);
    }
  }
  for (std::vector<ReplicaProgress>& parts : parts_) {
    for (ReplicaProgress& part : parts) part.Look(queued.contains(&part), absent, now);
  }
}

GiveUp Replication::Judge(uint32_t partition, const ReplicaProgress& part, int64_t now) const {
  const shard::CopyId copy = CopyOf(part.copy());
  if (part.broken() || engine_->replicas().Differs(copy, partition)) return GiveUp::kDiffers;
  const auto peer = peers_.find(part.copy());
  if (peer == peers_.end()) return GiveUp::kNo;
  return part.Judge(options_.patience, leases_.lease_ns(), peer->second.heard_ns,
                    engine_->replicas().Learns(copy, partition), now);
}

bool Replication::WantChange(const v1::Partition& p, int64_t now, WantedChange* wanted) {
  wanted->change.set_partition(p.id());
  wanted->change.set_configuration(p.configuration());
  for (const ReplicaProgress& part : parts_[p.id()]) {
    wanted->why = Judge(p.id(), part, now);
    if (wanted->why == GiveUp::kNo) continue;
    wanted->change.set_server(part.copy().server);
    wanted->change.set_kind(v1::ConfigurationChange::DROP_REPLICA);
    wanted->change.set_no_memory(wanted->why == GiveUp::kNoMemory);
    return true;
  }
  if (const uint64_t surplus = hand_overs_.Surplus(p.id()); surplus != 0) {
    wanted->why = GiveUp::kSurplus;
    wanted->change.set_server(surplus);
    wanted->change.set_kind(v1::ConfigurationChange::DROP_REPLICA);
    return true;
  }
  if (p.learners().empty()) {
    wanted->change.set_kind(v1::ConfigurationChange::HAND_OVER);
    wanted->change.set_server(hand_overs_.Ready(p.id(), {calls_.answered_ns(), calls_.ready()},
                                                leases_, engine_.get(), now));
    return wanted->change.server() != 0;
  }
  if (!engine_->replicas().CaughtUp(p.id())) return false;
  // Not before: a former primary may read until then by the lease that this shard granted. A
  // follower that is promoted meanwhile has granted none and would not wait.
  if (!leases_.MayServe(p.id(), now)) return false;
  wanted->change.set_server(p.learners(0).server());
  wanted->change.set_kind(v1::ConfigurationChange::ADMIT);
  return true;
}

void Replication::Reconfigure(int64_t now) {
  LookForWaiting(now);
  std::vector<v1::ConfigurationChange> by_leases;
  leases_.Judge(now, &by_leases);
  std::vector<WantedChange> wanted;
  bool needs_ticket = false;
  for (v1::ConfigurationChange& change : by_leases) {
    wanted.push_back({std::move(change), GiveUp::kSilent});
  }
  for (const v1::Partition& p : view_->partitions()) {
    if (p.primary() != self_ || p.shard() != options_.shard) continue;
    if (p.followers().empty() && p.learners().empty()) continue;
    const auto same = [&](const WantedChange& w) { return w.change.partition() == p.id(); };
    if (std::any_of(wanted.begin(), wanted.end(), same)) continue;
    needs_ticket |= hand_overs_.NeedsTicket(p.id(), calls_.answered_ns(), leases_, now);
    WantedChange w;
    if (WantChange(p, now, &w)) wanted.push_back(std::move(w));
  }
  if (const int64_t ask_ns = hand_overs_.AskNanos(now); ask_ns > now) {
    // The call for stopped partitions is not to wait for the answer to one that can wait.
    std::erase_if(wanted, [](const WantedChange& w) {
      return w.change.kind() == v1::ConfigurationChange::HAND_OVER ||
             w.change.kind() == v1::ConfigurationChange::ADMIT;
    });
    next_ask_ns_ = std::min(next_ask_ns_, ask_ns);
  }
  if (hand_overs_.closing()) next_ask_ns_ = std::min(next_ask_ns_, now + kBetweenCloses);
  next_ask_ns_ = std::min(next_ask_ns_, hand_overs_.NextNanos(now));
  if ((wanted.empty() && !needs_ticket) || !calls_.ready()) return;
  for (const WantedChange& w : wanted) {
    if (w.change.kind() == v1::ConfigurationChange::ADMIT) {
      leases_.Admitting(w.change.partition(), w.change.server());
    }
    if (w.change.kind() == v1::ConfigurationChange::HAND_OVER) {
      hand_overs_.Asked(w.change.partition(), now);
    }
  }
  calls_.Ask(self_, std::move(wanted), absl::Nanoseconds(leases_.lease_ns() / 2), now,
             [this, needs_ticket](const std::vector<WantedChange>& asked,
                                  ConfigurationCalls::Answer answer) {
               if (answer.again || needs_ticket || hand_overs_.waits_for_call()) {
                 next_ask_ns_ = clock_->NowNanos();
               }
               if (answer.late) return;
               for (const WantedChange& w : asked) {
                 if (w.change.kind() != v1::ConfigurationChange::DROP_REPLICA) continue;
                 if (w.change.partition() >= parts_.size()) continue;
                 for (ReplicaProgress& part : parts_[w.change.partition()]) {
                   if (part.copy().server == w.change.server()) part.Mend();
                 }
               }
             });
}

}  // namespace verbena::server
