#include "server/coordinator/configurations.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/control/planned_moves.h"
#include "proto/wire/table_partitions.h"
#include "server/coordinator/configuration_moves.h"
#include "server/coordinator/placement.h"

namespace verbena::server {
namespace {

using Replicas = google::protobuf::RepeatedPtrField<v1::Replica>;

const v1::Replica* FindReplica(const Replicas& replicas, uint64_t server) {
  const auto it = std::find_if(replicas.begin(), replicas.end(),
                               [&](const v1::Replica& r) { return r.server() == server; });
  return it == replicas.end() ? nullptr : &*it;
}

// New replicas came with the current configuration.
void Date(Replicas* copies, uint64_t configuration) {
  for (v1::Replica& copy : *copies) {
    if (copy.since() == 0) copy.set_since(configuration);
  }
}

// Alone, at first.
void MakePrimary(uint64_t server, uint32_t shard, v1::Partition* partition) {
  partition->set_primary(server);
  partition->set_shard(shard);
  partition->set_epoch(partition->epoch() + 1);
  partition->clear_followers();
  partition->clear_learners();
  // A move that was under way has succeeded, or its primary is gone.
  const bool ended =
      partition->move_to() != 0 && (partition->move_to() != server || partition->move_from() != 0);
  partition->set_last_move(ended ? v1::MOVE_END_SOURCE_GONE : v1::MOVE_END_UNSPECIFIED);
  partition->clear_move_to();
  partition->clear_move_from();
  partition->clear_unwanted();
  Grow(partition);
}

// Its data are lost. The new primary may have been a replica that learns of this only after the
// reset of the partition.
void Renew(v1::Partition* partition) { partition->set_renewed_epoch(partition->epoch()); }

// It has not been promoted, because a promotion is to the next epoch.
void SkipEpoch(v1::Partition* partition) {
  partition->set_epoch(partition->epoch() + 1);
  Grow(partition);
}

// Followers that are alive stay: they have all that was acknowledged. Others would keep the new
// primary waiting. The follower by value: the partition's own are cleared.
void Promote(v1::Replica follower, const v1::ClusterView& view, v1::Partition* partition) {
  const Replicas before = partition->followers();
  MakePrimary(follower.server(), follower.shard(), partition);
  for (const v1::Replica& other : before) {
    if (other.server() != follower.server() && IsAlive(other.server(), view)) {
      *partition->add_followers() = other;
    }
  }
}

// Gives a partition without data these replicas.
void Become(const v1::Partition& wanted, v1::Partition* partition) {
  const bool moves =
      partition->primary() != wanted.primary() || partition->shard() != wanted.shard();
  const bool same_follower =
      partition->followers_size() == wanted.followers_size() &&
      std::equal(wanted.followers().begin(), wanted.followers().end(),
                 partition->followers().begin(), [](const v1::Replica& a, const v1::Replica& b) {
                   return a.server() == b.server() && a.shard() == b.shard();
                 });
  if (!moves && same_follower && partition->learners().empty()) return;
  if (moves) {
    MakePrimary(wanted.primary(), wanted.shard(), partition);
    // It may have been a follower, and its new followers have nothing of what it had.
    Renew(partition);
  } else {
    Grow(partition);
  }
  *partition->mutable_followers() = wanted.followers();
  Date(partition->mutable_followers(), partition->configuration());
  partition->clear_learners();
}

template <typename Gone>
bool DropIf(const Gone& gone, Replicas* replicas) {
  const auto kept = std::remove_if(replicas->begin(), replicas->end(), gone);
  const bool any = kept != replicas->end();
  replicas->erase(kept, replicas->end());
  return any;
}

// The best replica that a lost primary leaves: one that is alive, else one whose data returns.
std::optional<v1::Replica> Heir(const v1::Partition& partition, const v1::ClusterView& view) {
  for (const v1::Replica& follower : partition.followers()) {
    if (IsAlive(follower.server(), view)) return follower;
  }
  for (const v1::Replica& follower : partition.followers()) {
    if (FindServer(follower.server(), view) != nullptr) return follower;
  }
  return std::nullopt;
}

// For every table that has chunks there. `names` gets those that had not lost it before.
void Lose(uint32_t partition, ViewEditor* view, std::set<std::string>* names) {
  const auto partitions = static_cast<uint32_t>(view->view().partitions_size());
  for (const v1::Table& table : view->view().tables()) {
    if (!HasChunkIn(table, partition, partitions)) continue;
    const auto& before = table.lost_partitions();
    if (std::binary_search(before.begin(), before.end(), partition)) continue;
    auto* lost = view->EditTable(table.id())->mutable_lost_partitions();
    const auto at = std::lower_bound(lost->begin(), lost->end(), partition);
    const auto index = at - lost->begin();
    lost->Add(partition);
    std::rotate(lost->begin() + index, lost->end() - 1, lost->end());
    if (names != nullptr) names->insert(table.spec().name());
  }
}

absl::Status WrongField(const char* field, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("changes.", field, " is ", value, "; allowed: ", allowed));
}

std::string ServersOf(const Replicas& replicas) {
  return absl::StrJoin(replicas, ", ", [](std::string* out, const v1::Replica& replica) {
    absl::StrAppend(out, replica.server());
  });
}

absl::Status NotItsToAsk(const v1::ConfigurationChange& change, uint64_t server,
                         const std::string& whose) {
  return absl::FailedPreconditionError(
      absl::StrCat(v1::ConfigurationChange::Kind_Name(change.kind()), " of partition ",
                   change.partition(), " by server incarnation ", server, "; allowed: ", whose));
}

absl::Status DropReplica(const v1::ConfigurationChange& change, v1::Partition* partition) {
  const auto named = [&](const v1::Replica& r) { return r.server() == change.server(); };
  const bool dropped =
      DropIf(named, partition->mutable_followers()) | DropIf(named, partition->mutable_learners());
  if (dropped) {
    if (partition->unwanted() == change.server()) partition->clear_unwanted();
    Grow(partition);
    return absl::OkStatus();
  }
  Replicas copies = partition->followers();
  copies.MergeFrom(partition->learners());
  return WrongField("server", absl::StrCat(change.server()),
                    copies.empty() ? absl::StrCat("none, partition ", partition->id(),
                                                  " has no followers and learners")
                                   : absl::StrCat("the followers and learners of partition ",
                                                  partition->id(), ": ", ServersOf(copies)));
}

absl::Status Admit(const v1::ConfigurationChange& change, v1::Partition* partition) {
  const v1::Replica* learner = FindReplica(partition->learners(), change.server());
  if (learner == nullptr) {
    return WrongField("server", absl::StrCat(change.server()),
                      partition->learners().empty()
                          ? absl::StrCat("none, partition ", partition->id(), " has no learners")
                          : absl::StrCat("the learners of partition ", partition->id(), ": ",
                                         ServersOf(partition->learners())));
  }
  *partition->add_followers() = *learner;
  DropIf([&](const v1::Replica& r) { return r.server() == change.server(); },
         partition->mutable_learners());
  if (partition->move_from() != 0 && partition->move_to() == change.server()) {
    if (FindReplica(partition->followers(), partition->move_from()) != nullptr) {
      partition->set_unwanted(partition->move_from());
    }
    partition->clear_move_to();
    partition->clear_move_from();
  }
  Grow(partition);
  return absl::OkStatus();
}

// A partition has one learner at a time: its primary copies contents to one only. One that is
// unwanted has to go first where there would be too many.
bool WantsLearner(const v1::Partition& partition, const v1::ClusterView& view) {
  return partition.learners().empty() &&
         partition.followers_size() < static_cast<int>(kMaxReplicas) &&
         IsAlive(partition.primary(), view) &&
         (StayingReplicas(partition, view) < view.replicas() || MissingTarget(partition) != 0);
}

// Whether its learner is one of kMovesAtOnce.
bool IsMoved(const v1::Partition& partition, const v1::ClusterView& view) {
  return PrimaryLeaves(partition, view) || partition.move_to() != 0;
}

// Those that were refused for memory come last, so that a server whose memory is scarce gets the
// partitions that fit.
std::vector<uint32_t> WantingLearners(const LearnerBars& bars, const v1::ClusterView& view) {
  std::vector<uint32_t> wanting;
  for (const v1::Partition& partition : view.partitions()) {
    if (WantsLearner(partition, view)) wanting.push_back(partition.id());
  }
  if (!bars.full().empty()) {
    std::stable_sort(wanting.begin(), wanting.end(),
                     [&](uint32_t a, uint32_t b) { return bars.RefusedAt(a) < bars.RefusedAt(b); });
  }
  return wanting;
}

// Moves to a server that has just refused one for memory, whose copies have not begun: each of them
// would be refused in turn, with a longer pause each time.
void EndWaitingMoves(uint64_t server, ViewEditor* view) {
  for (const v1::Partition& partition : view->view().partitions()) {
    if (MissingTarget(partition) != server || !partition.learners().empty()) continue;
    EndMove(v1::MOVE_END_NO_MEMORY, partition.id(), view);
  }
}

absl::Status Broken(const v1::Partition& partition, const char* what) {
  return absl::DataLossError(
      absl::StrCat("the coordinator's state makes no sense: partition ", partition.id(), what));
}

absl::Status CheckConfiguration(const v1::Partition& partition,
                                const std::map<uint64_t, const v1::Server*>& servers) {
  // 0: written before there were configurations.
  if (partition.configuration() != 0 && partition.configuration() < partition.epoch()) {
    return Broken(partition, ": configuration is less than epoch");
  }
  if (partition.renewed_epoch() > partition.epoch()) {
    return Broken(partition, ": renewed_epoch is greater than epoch");
  }
  const int copies = partition.followers_size() + partition.learners_size();
  if (partition.primary() == 0) {
    return copies == 0 ? absl::OkStatus() : Broken(partition, " has replicas without a primary");
  }
  const auto primary = servers.find(partition.primary());
  if (primary == servers.end() || partition.shard() >= primary->second->shards()) {
    return Broken(partition, " is on a server that is unknown");
  }
  if (copies > static_cast<int>(kMaxReplicas)) return Broken(partition, " has too many replicas");
  if (partition.learners_size() > 1) return Broken(partition, " has more than one learner");
  for (const Replicas* replicas : {&partition.followers(), &partition.learners()}) {
    for (const v1::Replica& replica : *replicas) {
      const auto server = servers.find(replica.server());
      if (server == servers.end() || replica.shard() >= server->second->shards()) {
        return Broken(partition, " has a replica on a server that is unknown");
      }
      if (replica.server() == partition.primary())
        return Broken(partition, " is twice on a server");
      if (replicas == &partition.learners() && server->second->state() != v1::Server::ALIVE) {
        return Broken(partition, " has a learner on a silent server");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void PlaceAllPartitions(ViewEditor* view) {
  Loads loads(view->view(), /*partitions=*/false);
  const std::vector<v1::Replica> shards = loads.Shards();
  if (shards.empty()) return;
  std::vector<v1::Partition> placed(view->view().partitions_size());
  for (size_t i = 0; i < placed.size(); ++i) {
    placed[i].set_primary(shards[i % shards.size()].server());
    placed[i].set_shard(shards[i % shards.size()].shard());
    loads.Add(placed[i]);
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    v1::Partition& wanted = placed[i];
    while (1 + wanted.followers_size() < static_cast<int>(view->view().replicas())) {
      const auto follower = loads.ForCopy(wanted, [](uint64_t) { return true; });
      if (!follower) break;
      *wanted.add_followers() = *follower;
      loads.AddCopy(wanted.primary(), *follower);
    }
    Become(wanted, view->EditPartition(static_cast<int>(i)));
  }
}

void ReplaceServer(uint64_t before, const v1::Server& now, ViewEditor* view) {
  for (const v1::Partition& partition : view->view().partitions()) {
    if (partition.primary() != before) continue;
    v1::Partition* changed = view->EditPartition(static_cast<int>(partition.id()));
    if (const auto heir = Heir(partition, view->view())) {
      Promote(*heir, view->view(), changed);
      continue;
    }
    MakePrimary(now.incarnation(), partition.shard() % now.shards(), changed);
    Renew(changed);
    Lose(partition.id(), view, nullptr);
  }
}

absl::StatusOr<std::vector<std::string>> ForgetServer(uint64_t server, ViewEditor* view) {
  std::vector<v1::Partition*> sole;
  for (const v1::Partition& partition : view->view().partitions()) {
    if (partition.primary() != server) continue;
    v1::Partition* changed = view->EditPartition(static_cast<int>(partition.id()));
    if (const auto heir = Heir(partition, view->view())) {
      Promote(*heir, view->view(), changed);
    } else {
      sole.push_back(changed);
    }
  }
  Loads loads(view->view(), /*partitions=*/true);
  if (!sole.empty() && view->view().tables_size() > 0 && !loads.ForPrimary()) {
    return absl::FailedPreconditionError(absl::StrCat("no server is alive that could take its ",
                                                      sole.size(),
                                                      " partitions: start another one first"));
  }
  std::set<std::string> lost;
  for (v1::Partition* partition : sole) {
    const v1::Replica place = loads.ForPrimary().value_or(v1::Replica());
    MakePrimary(place.server(), place.shard(), partition);
    SkipEpoch(partition);
    Renew(partition);
    loads.Add(*partition);
    Lose(partition->id(), view, &lost);
  }
  auto* servers = view->EditServers();
  servers->erase(std::remove_if(servers->begin(), servers->end(),
                                [&](const v1::Server& s) { return s.incarnation() == server; }),
                 servers->end());
  return std::vector<std::string>(lost.begin(), lost.end());
}

bool FollowServers(ViewEditor* view) {
  std::map<uint64_t, bool> alive;
  for (const v1::Server& server : view->view().servers()) {
    alive[server.incarnation()] = server.state() == v1::Server::ALIVE;
  }
  const auto gone = [&](const v1::Replica& r) { return !alive.contains(r.server()); };
  const auto not_alive = [&](const v1::Replica& r) { return gone(r) || !alive[r.server()]; };
  bool changed = false;
  for (const v1::Partition& partition : view->view().partitions()) {
    const auto& followers = partition.followers();
    const auto& learners = partition.learners();
    // A follower that is silent here may be alive, and reachable for the other replica. So those
    // two decide.
    if (std::none_of(followers.begin(), followers.end(), gone) &&
        std::none_of(learners.begin(), learners.end(), not_alive)) {
      continue;
    }
    v1::Partition* edited = view->EditPartition(static_cast<int>(partition.id()));
    DropIf(gone, edited->mutable_followers());
    DropIf(not_alive, edited->mutable_learners());
    Grow(edited);
    changed = true;
  }
  return changed;
}

void HandOver(uint64_t server, ViewEditor* view) {
  for (const v1::Partition& partition : view->view().partitions()) {
    if (partition.primary() != server) continue;
    const auto follower =
        std::find_if(partition.followers().begin(), partition.followers().end(),
                     [&](const v1::Replica& r) { return IsAlive(r.server(), view->view()); });
    if (follower == partition.followers().end()) continue;
    Promote(*follower, view->view(), view->EditPartition(static_cast<int>(partition.id())));
  }
}

bool AddLearners(const LearnerBars& bars, int64_t now_ns, ViewEditor* view) {
  const v1::ClusterView& now = view->view();
  if (AliveServers(now) < 2) return false;
  const std::vector<uint32_t> wanting = WantingLearners(bars, now);
  if (wanting.empty()) return false;
  Loads loads(now, /*partitions=*/true);
  std::set<uint64_t> learning;  // servers
  int moving = 0;
  for (const v1::Partition& partition : now.partitions()) {
    for (const v1::Replica& learner : partition.learners()) learning.insert(learner.server());
    moving += !partition.learners().empty() && IsMoved(partition, now) ? 1 : 0;
  }
  bool added = false;
  for (const uint32_t id : wanting) {
    const v1::Partition& partition = now.partitions(static_cast<int>(id));
    const bool moved = IsMoved(partition, now);
    if (moved && moving >= kMovesAtOnce) continue;
    const uint64_t target = MissingTarget(partition);
    const auto learner = loads.ForCopy(partition, [&](uint64_t server) {
      return (target == 0 || server == target) && !bars.Has(id, server, now_ns) &&
             !(bars.OneAtATime(server) && learning.contains(server));
    });
    if (!learner) continue;
    v1::Partition* edited = view->EditPartition(static_cast<int>(id));
    *edited->add_learners() = *learner;
    Grow(edited);
    Date(edited->mutable_learners(), edited->configuration());
    loads.AddCopy(partition.primary(), *learner);
    learning.insert(learner->server());
    moving += moved ? 1 : 0;
    added = true;
  }
  return added;
}

absl::StatusOr<bool> Reconfigure(const v1::ConfigurationChange& change, uint64_t server,
                                 int64_t now_ns, int64_t lease_ns, LearnerBars* bars,
                                 ViewEditor* view) {
  const bool known = change.kind() == v1::ConfigurationChange::DROP_REPLICA ||
                     change.kind() == v1::ConfigurationChange::ADMIT ||
                     change.kind() == v1::ConfigurationChange::PROMOTE ||
                     change.kind() == v1::ConfigurationChange::HAND_OVER;
  if (!known) {
    return WrongField("kind", absl::StrCat(static_cast<int>(change.kind())),
                      "DROP_REPLICA (1), ADMIT (2), PROMOTE (3), HAND_OVER (4)");
  }
  const v1::ClusterView& now = view->view();
  if (change.partition() >= static_cast<uint32_t>(now.partitions_size())) {
    return WrongField("partition", absl::StrCat(change.partition()),
                      absl::StrCat("0 to ", now.partitions_size() - 1));
  }
  const auto index = static_cast<int>(change.partition());
  if (now.partitions(index).configuration() != change.configuration()) return false;
  v1::Partition* partition = view->EditPartition(index);
  if (change.kind() == v1::ConfigurationChange::PROMOTE) {
    const v1::Replica* follower = FindReplica(partition->followers(), server);
    if (follower == nullptr) {
      return NotItsToAsk(change, server,
                         partition->followers().empty()
                             ? "nobody, it has no followers"
                             : "its followers: " + ServersOf(partition->followers()));
    }
    bars->Add(partition->id(), partition->primary(), now_ns + lease_ns);
    Promote(*follower, now, partition);
    return true;
  }
  if (partition->primary() != server) {
    return NotItsToAsk(change, server, absl::StrCat("its primary: ", partition->primary()));
  }
  if (change.kind() == v1::ConfigurationChange::HAND_OVER) {
    const v1::Replica* const heir = PlannedHeir(*partition, now);
    if (heir == nullptr || heir->server() != change.server()) {
      Grow(partition);
      return true;
    }
    Promote(*heir, now, partition);
    partition->set_released_epoch(partition->epoch());
    return true;
  }
  const bool drop = change.kind() == v1::ConfigurationChange::DROP_REPLICA;
  absl::Status status = drop ? DropReplica(change, partition) : Admit(change, partition);
  if (!status.ok()) return status;
  if (!drop) {
    bars->Admitted(partition->id(), change.server());
  } else if (change.no_memory()) {
    bars->AddFull(partition->id(), change.server(), now_ns, lease_ns);
    if (partition->move_to() == change.server()) {
      EndMove(v1::MOVE_END_NO_MEMORY, partition->id(), view);
      EndWaitingMoves(change.server(), view);
    }
  } else {
    bars->Add(partition->id(), change.server(), now_ns + lease_ns);
  }
  return true;
}

absl::Status CheckConfigurations(const v1::ClusterView& view) {
  std::map<uint64_t, const v1::Server*> servers;
  for (const v1::Server& server : view.servers()) servers[server.incarnation()] = &server;
  for (const v1::Partition& partition : view.partitions()) {
    if (absl::Status status = CheckConfiguration(partition, servers); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
