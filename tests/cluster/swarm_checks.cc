#include "tests/cluster/swarm_checks.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/view_difference.h"
#include "tests/cluster/replica_compare.h"

namespace verbena::test {
namespace {

constexpr int64_t kComparePeriod = 50 * kMilli;

bool AliveIn(const v1::ClusterView& view, uint64_t server) {
  return std::any_of(view.servers().begin(), view.servers().end(), [server](const v1::Server& s) {
    return s.incarnation() == server && s.state() == v1::Server::ALIVE;
  });
}

}  // namespace

void SwarmChecks::ViewChanged() {
  FollowServers();
  FollowView();
}

void SwarmChecks::Run() {
  ViewChanged();
  if (world_->now() < next_compare_) return;
  next_compare_ = world_->now() + kComparePeriod;
  BoundLogs();
  CompareReplicas();
  CountMismatches();
  CheckMemory();
  CheckViews();
}

void SwarmChecks::Observe(const shard::Commit& commit) {
  CheckMembers(commit);
  if (commit.abandoned) {
    world_->Violation(absl::StrCat("chunk ", commit.chunk, " of table ", commit.table,
                                   " committed step ", commit.step,
                                   " of a run whose workers have all left"));
  }
  const auto [it, first] =
      primaries_.try_emplace({commit.table, commit.chunk, commit.epoch}, commit.server);
  if (commit.epoch != 0 && it->second == commit.server) return;
  world_->Violation(absl::StrCat("chunk ", commit.chunk, " of table ", commit.table,
                                 " was changed by server ", commit.server, " in epoch ",
                                 commit.epoch, " of server ", commit.epoch == 0 ? 0 : it->second));
}

void SwarmChecks::CheckMembers(const shard::Commit& commit) {
  if (!world_->has(SwarmFeature::kElastic) || world_->has(SwarmFeature::kOldStates)) return;
  const auto found = world_->tables.find(commit.table);
  if (found == world_->tables.end() || found->second.steps() == nullptr) return;
  SwarmTable& table = found->second;
  const v1::Job* job = FindJobNamed(table.spec().job(), world_->cluster->view());
  if (job == nullptr || table.dropped()) return;
  const std::string wrong = world_->members.Check(commit, table.embedding(), *job);
  if (!wrong.empty()) world_->Violation(wrong);
  if (!world_->members.IsOf(commit, job->generation())) return;
  for (uint32_t unit = 0; unit < table.units().size(); ++unit) {
    const bool committed =
        table.embedding() ? table.units()[unit].partition == commit.chunk : unit == commit.chunk;
    if (!committed) continue;
    const std::string changed =
        table.steps()->Divide(job->generation(), commit.step, unit, commit.divisor);
    if (changed.empty()) continue;
    world_->Violation(absl::StrCat("step ", commit.step, " of table ", commit.table, ", unit ",
                                   unit, ", was read before it was committed: ", changed));
  }
}

void SwarmChecks::FollowServers() {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    if (server == nullptr) continue;
    const uint64_t incarnation = server->incarnation();
    const std::pair<int, int> process = {i, world_->lives[static_cast<size_t>(i)]};
    const auto followed = living_.find(incarnation);
    if (incarnation == 0 || (followed != living_.end() && followed->second == process)) continue;
    processes_[incarnation] = living_[incarnation] = process;
  }
  std::erase_if(living_, [this](const auto& entry) {
    if (world_->lives[static_cast<size_t>(entry.second.first)] == entry.second.second) return false;
    died_at_.try_emplace(entry.first, world_->now());
    return true;
  });
}

bool SwarmChecks::Lives(uint64_t server) const {
  const auto [index, life] = processes_.at(server);
  return world_->lives[static_cast<size_t>(index)] == life;
}

void SwarmChecks::FollowView() {
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->old_state) return;
  if (!view.terms().empty()) world_->terms.insert(view.terms().rbegin()->id());
  if (view.revision() == revision_) return;
  revision_ = view.revision();
  std::set<uint32_t> present;
  for (const v1::Table& table : view.tables()) {
    present.insert(table.id());
    const auto [it, created] = world_->tables.try_emplace(table.id(), table, revision_);
    if (created) {
      ++world_->table_changes;
      ++world_->result->created;
      if (SwarmNorm* norm = NormOf(it->second)) {
        it->second.steps()->Clip(norm, table.spec().optimizer().clip_global_norm());
        if (!table.restoring()) norm->Add(it->second.steps());
      }
      continue;
    }
    if (it->second.restoring() && !table.restoring()) {
      if (SwarmNorm* norm = NormOf(it->second)) norm->Add(it->second.steps());
    }
    for (const uint32_t partition : it->second.Follow(table, revision_)) {
      CheckLoss(it->second, partition);
      if (SwarmNorm* norm = NormOf(it->second)) norm->Disturb(it->second.steps(), false);
    }
  }
  for (auto& [id, table] : world_->tables) {
    if (table.dropped() || present.contains(id)) continue;
    table.Drop(world_->now());
    ++world_->table_changes;
    if (SwarmNorm* norm = NormOf(table)) norm->Disturb(table.steps(), true);
    world_->Trace(absl::StrCat("table ", id, ": dropped"));
    ++world_->result->dropped;
  }
  FollowJobs(view);
  CheckHandovers(view);
  CheckChanges(view);
  if (world_->trace) TraceView(view);
  before_ = view;
}

SwarmNorm* SwarmChecks::NormOf(const SwarmTable& table) {
  if (!table.clipped()) return nullptr;
  const auto job = std::find_if(world_->jobs.begin(), world_->jobs.end(), [&](const SwarmJob& j) {
    return j.plan.name == table.spec().job();
  });
  return job == world_->jobs.end() ? nullptr : &job->norm;
}

void SwarmChecks::FollowJobs(const v1::ClusterView& view) {
  for (const v1::Job& job : view.jobs()) {
    for (const int32_t rank : job.departed_ranks()) {
      if (rank < static_cast<int32_t>(job.expected_workers())) continue;
      world_->Violation(absl::StrCat("job ", job.name(), ": departed rank ", rank,
                                     " is beyond its ", job.expected_workers(),
                                     " expected workers: nobody waits for it"));
    }
  }
  if (!world_->plan.has_steps()) return;
  for (const v1::Job& job : view.jobs()) {
    uint32_t departed = 0;
    for (const int32_t rank : job.departed_ranks()) {
      departed += rank < static_cast<int32_t>(job.expected_workers()) ? 1 : 0;
    }
    std::vector<SwarmTable*> tables;
    for (auto& [id, table] : world_->tables) {
      if (table.steps() == nullptr || table.dropped() || table.spec().job() != job.name()) continue;
      tables.push_back(&table);
    }
    for (SwarmTable* table : tables) table->steps()->Leave(job.generation());
    for (SwarmTable* table : tables) {
      SwarmSteps* const steps = table->steps();
      if (steps->generation() != job.generation()) table->rates().BeginGeneration();
      // Any number of an elastic job's workers makes a step.
      const uint32_t most = job.max_workers();
      steps->FollowJob(job.generation(), most > 0 ? most : job.expected_workers(),
                       most > 0 ? most - 1 : departed);
    }
  }
}

void SwarmChecks::TraceView(const v1::ClusterView& view) const {
  for (const v1::Table& table : view.tables()) {
    const auto same = std::find_if(before_.tables().begin(), before_.tables().end(),
                                   [&](const v1::Table& t) { return t.id() == table.id(); });
    if (same != before_.tables().end() &&
        same->lost_partitions_size() == table.lost_partitions_size()) {
      continue;
    }
    world_->Trace(absl::StrCat("table ", table.id(), " ", table.spec().name(), " of ",
                               table.spec().job(), ": ",
                               same == before_.tables().end() ? "created" : "changed", ", ",
                               table.lost_partitions_size(), " partitions lost"));
  }
  for (const v1::Partition& p : view.partitions()) {
    if (p.id() < static_cast<uint32_t>(before_.partitions_size()) &&
        before_.partitions(static_cast<int>(p.id())).configuration() == p.configuration()) {
      continue;
    }
    std::string text =
        absl::StrCat("revision ", view.revision(), ", partition ", p.id(), ": epoch ", p.epoch(),
                     ", primary ", p.primary(), "/", p.shard());
    for (const v1::Replica& r : p.followers()) {
      absl::StrAppend(&text, ", follower ", r.server(), "/", r.shard(), " since ", r.since());
    }
    for (const v1::Replica& r : p.learners()) {
      absl::StrAppend(&text, ", learner ", r.server(), "/", r.shard(), " since ", r.since());
    }
    world_->Trace(text);
  }
}

// By the configuration before the one in which it is lost.
void SwarmChecks::CheckLoss(const SwarmTable& table, uint32_t partition) {
  if (partition >= static_cast<uint32_t>(before_.partitions_size())) return;
  const v1::Partition& p = before_.partitions(static_cast<int>(partition));
  std::vector<uint64_t> holders = {p.primary()};
  for (const v1::Replica& follower : p.followers()) holders.push_back(follower.server());
  for (const uint64_t holder : holders) {
    const auto process = processes_.find(holder);
    if (process == processes_.end()) continue;
    const auto [index, life] = process->second;
    if (world_->lives[static_cast<size_t>(index)] != life) continue;
    // The operator has declared the server gone.
    if (world_->removed.contains(absl::StrCat("server-", index)) && !Known(holder)) continue;
    world_->Violation(absl::StrCat("partition ", partition, " of table ", table.id(),
                                   " was declared lost, though server-", index, " (incarnation ",
                                   holder, "), which has it, lives"));
  }
}

// The coordinator hears a server at least every quarter of a lease, and hands over to none that it
// has not heard for half of one.
void SwarmChecks::CheckHandovers(const v1::ClusterView& view) {
  // A change that is being written for long was decided before.
  if (world_->has(SwarmFeature::kSlowStore)) return;
  const int64_t longest = world_->plan.lease_ns() * 3 / 4 + 20 * kMilli;
  for (const v1::Partition& was : before_.partitions()) {
    const v1::Partition& p = view.partitions(static_cast<int>(was.id()));
    if (p.primary() == was.primary() || p.epoch() != was.epoch() + 1) continue;
    if (!processes_.contains(was.primary()) || !processes_.contains(p.primary())) continue;
    if (!Lives(was.primary())) continue;
    if (Lives(p.primary()) || !AliveIn(before_, was.primary())) continue;
    if (AliveIn(view, was.primary())) continue;
    const int64_t time = world_->now() - died_at_.at(p.primary());
    if (time < longest) continue;
    world_->Violation(absl::StrCat("server incarnation ", was.primary(),
                                   " has left, and partition ", was.id(),
                                   " was handed over to incarnation ", p.primary(),
                                   ", which had been dead for ", time / kMilli, " ms"));
    return;
  }
}

// A server that drops a follower, or takes the place of a primary, while the other one lives and is
// heard, has had an answer of the coordinator an eighth of a lease ago at most.
void SwarmChecks::CheckChanges(const v1::ClusterView& view) {
  // A change that is being written for long was decided before.
  if (world_->has(SwarmFeature::kSlowStore)) return;
  // Partitions that have nothing are placed anew.
  if (before_.tables().empty() || view.tables().empty()) return;
  const int64_t longest = world_->plan.lease_ns() / 8 + 20 * kMilli;
  for (const v1::Partition& was : before_.partitions()) {
    const v1::Partition& p = view.partitions(static_cast<int>(was.id()));
    if (was.followers().empty() || p.configuration() == was.configuration()) continue;
    const uint64_t follower = was.followers(0).server();
    const bool drops =
        p.epoch() == was.epoch() && p.primary() == was.primary() && p.followers().empty();
    const bool promoted = p.epoch() == was.epoch() + 1 && p.primary() == follower;
    if (!drops && !promoted) continue;
    // The old primary of a planned move has asked: both were heard lately.
    const bool planned = p.released_epoch() == p.epoch();
    const uint64_t asks = drops ? was.primary() : follower;
    const uint64_t other = drops ? follower : was.primary();
    if (!processes_.contains(asks) || !processes_.contains(other)) continue;
    if (Lives(asks) || !Lives(other) || !AliveIn(before_, other) || !AliveIn(view, other)) continue;
    const auto died = died_at_.find(asks);
    if (died == died_at_.end() || world_->now() - died->second < (planned ? 4 : 1) * longest) {
      continue;
    }
    world_->Violation(absl::StrCat("partition ", was.id(), " was left to server incarnation ", asks,
                                   ", which had been dead for ",
                                   (world_->now() - died->second) / kMilli,
                                   " ms, though incarnation ", other, ", which has it, lives"));
    return;
  }
}

bool SwarmChecks::Known(uint64_t server) const {
  const auto& servers = world_->cluster->view().servers();
  return std::any_of(servers.begin(), servers.end(),
                     [server](const v1::Server& s) { return s.incarnation() == server; });
}

const shard::Engine* SwarmChecks::EngineOf(uint64_t server, uint32_t shard) const {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    if (process == nullptr || process->incarnation() != server || shard >= process->shards()) {
      continue;
    }
    return process->shard(shard).engine();
  }
  return nullptr;
}

void SwarmChecks::BoundLogs() {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    for (uint32_t s = 0; server != nullptr && s < server->shards(); ++s) {
      const shard::Engine* engine = server->shard(s).engine();
      const std::string excess = engine == nullptr ? "" : ReplicaLogExcess(*engine);
      if (excess.empty()) continue;
      world_->Violation(absl::StrCat("the log for replicas of ", server->host(), ", shard ", s,
                                     " is beyond its limits: ", excess));
    }
  }
}

void SwarmChecks::CompareReplicas() {
  for (const v1::Partition& p : world_->cluster->view().partitions()) {
    const shard::Engine* primary = EngineOf(p.primary(), p.shard());
    if (primary == nullptr) continue;
    CheckEvictions(*primary, p);
    for (const v1::Replica& follower : p.followers()) {
      const shard::Engine* copy = EngineOf(follower.server(), follower.shard());
      if (copy == nullptr) continue;
      const ReplicaComparison comparison = test::CompareReplicas(*primary, *copy, p.id());
      world_->result->compared += comparison.comparable ? 1 : 0;
      if (comparison.difference.empty()) continue;
      world_->Violation(absl::StrCat("the follower on server ", follower.server(),
                                     " is not what its primary on server ", p.primary(),
                                     " is: ", comparison.difference));
      return;
    }
  }
}

void SwarmChecks::CheckEvictions(const shard::Engine& primary, const v1::Partition& p) {
  const uint32_t partition = p.id();
  for (const auto& [id, table] : world_->tables) {
    if (table.dropped() || table.rows_left() == 0 || table.lost(partition)) continue;
    const std::optional<uint32_t> rows = RowsPushed(primary, revision_, id, partition);
    if (!rows.has_value()) continue;
    const auto life = std::make_tuple(id, partition, table.life(partition), p.epoch());
    if (*rows >= table.rows_left()) {
      full_.insert(life);
    } else if (full_.contains(life)) {
      world_->Violation(absl::StrCat("partition ", partition, " of table ", id, " has ", *rows,
                                     " rows; evictions leave ", table.rows_left()));
    }
  }
}

// A mismatch that the proof of admission or the audit repairs shows only in the counter.
void SwarmChecks::CountMismatches() {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    for (uint32_t s = 0; process != nullptr && s < process->shards(); ++s) {
      const uint64_t count = process->shard(s).replication_counters().mismatches;
      if (count == 0) continue;
      world_->Violation(absl::StrCat("shard ", s, " of ", process->host(), " has counted ", count,
                                     " mismatches of its replicas"));
      return;
    }
  }
}

// Until all servers have joined, their losses are not known.
bool SwarmChecks::AllJoined(std::string* missing) const {
  const v1::ClusterView& view = world_->cluster->view();
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    const bool joined =
        process != nullptr && std::any_of(view.servers().begin(), view.servers().end(),
                                          [process](const v1::Server& server) {
                                            return server.incarnation() == process->incarnation() &&
                                                   server.state() == v1::Server::ALIVE;
                                          });
    if (joined) continue;
    *missing = absl::StrCat("server-", i, " has not joined");
    return false;
  }
  return true;
}

// A poll may be lost, and waits on for longer than this; heartbeats announce a newer view.
void SwarmChecks::CheckViews() {
  if (world_->stage == SwarmStage::kFaults || world_->old_state) return;
  const int64_t latest = world_->now() - 3 * world_->plan.lease_ns() - 2 * kSecond;
  const v1::ClusterView& view = world_->cluster->view();
  if (revisions_.empty() || revisions_.back().second != view.revision()) {
    revisions_.emplace_back(world_->now(), view.revision());
  }
  while (revisions_.size() > 1 && revisions_[1].first <= latest) revisions_.pop_front();
  if (revisions_.front().first > latest) return;
  const uint64_t revision = revisions_.front().second;
  for (const v1::Server& s : view.servers()) {
    const int64_t joined_at = joined_at_.try_emplace(s.incarnation(), world_->now()).first->second;
    if (joined_at > latest) continue;
    for (uint32_t shard = 0; shard < static_cast<uint32_t>(world_->plan.cluster.shards); ++shard) {
      const shard::Engine* engine = EngineOf(s.incarnation(), shard);
      if (engine == nullptr || RevisionOf(*engine) >= revision) continue;
      world_->Violation(absl::StrCat("server ", s.name(), " (incarnation ", s.incarnation(),
                                     ") has not seen revision ", revision, ": it has ",
                                     RevisionOf(*engine)));
      return;
    }
  }
}

bool SwarmChecks::LacksMemory(const v1::Partition& partition) const {
  if (!world_->has(SwarmFeature::kShortMemory) || partition.followers_size() > 0) return false;
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    const bool primary = process->incarnation() == partition.primary();
    bool full = false;
    for (uint32_t s = 0; s < process->shards(); ++s) {
      full |= process->shard(s).Snapshot().memory_full;
    }
    // Messages to a learner take memory of the primary's server, too.
    if (full == primary) return primary;
  }
  return true;
}

// A follower's server has memory for the records of its primary: none is dropped for lack of it.
void SwarmChecks::CheckMemory() {
  if (!world_->has(SwarmFeature::kShortMemory)) return;
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    for (uint32_t s = 0; process != nullptr && s < process->shards(); ++s) {
      if (process->shard(s).replication_counters().no_memory == 0) continue;
      world_->Violation(absl::StrCat("shard ", s, " of ", process->host(),
                                     " has a follower that has no memory for its rows"));
      return;
    }
  }
}

bool SwarmChecks::Redundant(std::string* missing) const {
  if (!AllJoined(missing)) return false;
  const v1::ClusterView& view = world_->cluster->view();
  const int wanted = static_cast<int>(world_->plan.cluster.replicas) - 1;
  int few = 0, learning = 0;
  for (const v1::Partition& p : view.partitions()) {
    if (LacksMemory(p)) continue;
    few += p.followers_size() < wanted ? 1 : 0;
    learning += p.learners_size();
  }
  if (few > 0 || learning > 0) {
    *missing = absl::StrCat(few, " of ", view.partitions_size(),
                            " partitions have too few followers, ", learning, " have learners");
    for (const v1::Partition& p : view.partitions()) {
      if (p.learners_size() == 0) continue;
      const shard::Engine* primary = EngineOf(p.primary(), p.shard());
      const shard::Engine* copy = EngineOf(p.learners(0).server(), p.learners(0).shard());
      if (primary == nullptr || copy == nullptr) continue;
      absl::StrAppend(missing, "; partition ", p.id(), ": ",
                      DescribeReplicas(*primary, *copy, p.id()));
      break;
    }
    return false;
  }
  return true;
}

bool SwarmChecks::Equal(const v1::Partition& p, const v1::Replica& follower,
                        std::string* missing) const {
  const shard::Engine* primary = EngineOf(p.primary(), p.shard());
  const shard::Engine* copy = EngineOf(follower.server(), follower.shard());
  std::string where = "a server is not there";
  if (primary != nullptr && copy != nullptr) {
    const ReplicaComparison comparison = test::CompareReplicas(*primary, *copy, p.id());
    if (comparison.comparable && comparison.difference.empty()) return true;
    *missing = comparison.difference;
    where = DescribeReplicas(*primary, *copy, p.id());
  }
  if (missing->empty()) {
    *missing = absl::StrCat("the copy of partition ", p.id(), " is not at its primary's sequence (",
                            where, ")");
  }
  return false;
}

// Not all at one time: the audit goes on, and a slow follower has always some of its records
// before it.
bool SwarmChecks::AllEqual(std::string* missing) {
  for (const v1::Partition& p : world_->cluster->view().partitions()) {
    if (const auto it = equal_.find(p.id()); it != equal_.end() && it->second == p.configuration())
      continue;
    const bool equal =
        std::all_of(p.followers().begin(), p.followers().end(),
                    [&](const v1::Replica& follower) { return Equal(p, follower, missing); });
    if (equal && !p.followers().empty()) equal_[p.id()] = p.configuration();
  }
  return missing->empty();
}

}  // namespace verbena::test
