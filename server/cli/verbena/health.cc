#include "server/cli/verbena/health.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

// Whether the memory of any of its shards is full.
bool IsFull(const ServerState& state) {
  if (!state.statistics.ok()) return false;
  const auto& shards = state.statistics->shards();
  return std::any_of(shards.begin(), shards.end(),
                     [](const v1::ShardStatistics& s) { return s.memory_full(); });
}

// "one is tried again in 40 s, or when a table is dropped".
std::string TriedAgain(const v1::FullServer& full) {
  if (full.retry_ms() == 0) return "one is tried again now";
  return absl::StrCat("one is tried again in ",
                      Seconds(static_cast<double>(full.retry_ms()) / 1000),
                      ", or when a table is dropped");
}

const v1::FullServer* FindFull(uint64_t incarnation, const ClusterState& state) {
  const auto it =
      std::find_if(state.full_servers.begin(), state.full_servers.end(),
                   [&](const v1::FullServer& full) { return full.incarnation() == incarnation; });
  return it == state.full_servers.end() ? nullptr : &*it;
}

// Where replicas find no room; empty: nowhere.
std::string FullServers(const ClusterState& state) {
  std::string full;
  for (const ServerState& server : state.servers) {
    const v1::FullServer* refused = FindFull(server.server.incarnation(), state);
    if (refused == nullptr && !IsFull(server)) continue;
    absl::StrAppend(&full, full.empty() ? "; no memory for replicas on " : ", ",
                    Printable(server.server.name()),
                    refused != nullptr ? absl::StrCat(" (", TriedAgain(*refused), ")") : "");
  }
  return full;
}

std::string Partitions(uint32_t count) {
  return absl::StrCat(count, count == 1 ? " partition" : " partitions");
}

// A worker's request over shm is settled only when the process at the other end is gone.
std::string StoppedText(const ServerState& state) {
  if (!absl::IsDeadlineExceeded(state.statistics.status())) return "";
  return "; if its process is stopped, workers that use shm wait until it is killed or continues";
}

std::string MemoryProblem(const ServerState& state, const std::string& who) {
  if (!IsFull(state)) return "";
  const v1::ShardStatistics& shard = state.statistics->shards(0);
  return absl::StrCat(
      who, " is at its memory limit of ", shard.memory_limit_bytes() >> 20, " MiB (",
      shard.memory_reserved_bytes() >> 20,
      " MiB are taken), or was in the last 30 s: new rows and tables are refused, and replicas of "
      "partitions "
      "find no room there; raise its --memory-limit, add servers, evict rows or "
      "drop tables");
}

// Also with rows in memory requests go on that need no others.
std::string ColdDiskProblem(const ServerState& state) {
  if (!state.statistics.ok()) return "";
  std::string shards;
  for (const v1::ShardStatistics& shard : state.statistics->shards()) {
    if (shard.cold_unwritten().empty()) continue;
    absl::StrAppend(&shards, shards.empty() ? "" : "; ", "shard ", shard.shard(), ": ",
                    Printable(shard.cold_unwritten()));
  }
  if (shards.empty()) return "";
  return absl::StrCat("server '", Printable(state.server.name()), "' at ",
                      Printable(state.server.address()),
                      " cannot write rows to its disk (--cold-dir): ", shards,
                      "; requests that need rows which are not in memory are refused or wait: free "
                      "space there ('df -h DIR' on that machine), or drop tables ('verbena table "
                      "drop NAME')");
}

std::string ServerProblem(const ServerState& state, const Placement& placement) {
  const v1::Server& server = state.server;
  const std::string who =
      absl::StrCat("server '", Printable(server.name()), "' at ", Printable(server.address()));
  if (server.state() == v1::Server::SILENT) {
    const PartitionCount has = placement.OfServer(server.incarnation());
    std::string text =
        absl::StrCat(who, " is silent: it has left or its lease has ended", StoppedText(state));
    if (has.alone > 0) {
      absl::StrAppend(
          &text, "; its data (", Partitions(has.alone),
          ") are UNAVAILABLE until this process responds again; if it has ended, they are "
          "lost: start a server under its name, then reset the tables or restore a "
          "checkpoint");
    }
    if (has.heirless > 0) {
      absl::StrAppend(&text, "; the followers of ", Partitions(has.heirless),
                      " of it do not respond either: no server takes them over");
    }
    if (const uint32_t followed = has.partitions - has.alone - has.heirless; followed > 0) {
      absl::StrAppend(&text, "; followers have ", Partitions(followed),
                      " of it, and take them over if they do not hear it either");
    }
    if (has.alone == 0) {
      absl::StrAppend(&text,
                      "; start it again, or remove it if it will not come back ('verbena "
                      "server remove')");
    }
    return text;
  }
  if (state.statistics.ok()) return MemoryProblem(state, who);
  return absl::StrCat(who,
                      absl::IsFailedPrecondition(state.statistics.status()) ? " has been replaced: "
                                                                            : " does not answer: ",
                      WhyUnanswered(state), StoppedText(state));
}

std::string TableProblem(const v1::Table& table) {
  // A restore makes the table anew.
  if (table.lost_partitions().empty() || table.restoring()) return "";
  const auto lost = static_cast<uint32_t>(table.lost_partitions_size());
  return absl::StrCat("table '", Printable(table.spec().name()), "' has lost ", Partitions(lost),
                      " (",
                      Ranges({table.lost_partitions().begin(), table.lost_partitions().end()}),
                      "): calls on them return DATA_LOSS until the table is dropped "
                      "('verbena table drop'), restored ('verbena checkpoint restore --replace') "
                      "or reset ('verbena partition reset')");
}

// A server that joined after the table was made.
std::string ColdTierProblem(const v1::Table& table, const v1::ClusterView& view) {
  if (table.spec().cold_tier().hot_bytes() == 0) return "";
  std::string without;
  for (const v1::Server& server : view.servers()) {
    if (server.cold_tier() || server.state() != v1::Server::ALIVE) continue;
    absl::StrAppend(&without, without.empty() ? "" : ", ", Printable(server.name()));
  }
  if (without.empty()) return "";
  return absl::StrCat("table '", Printable(table.spec().name()),
                      "' keeps rows on disk, and these servers have no --cold-dir: ", without,
                      "; its partitions there are UNAVAILABLE until they are started with one");
}

// The reasons why tables are not served, by id, each from the first shard that does not serve the
// table.
std::map<uint32_t, std::string> Unserved(const ClusterState& state) {
  std::map<uint32_t, std::string> why;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      for (const v1::TableStatistics& table : shard.tables()) {
        if (table.unserved().empty()) continue;
        why.try_emplace(table.table(), absl::StrCat("server '", Printable(server.server.name()),
                                                    "': ", Printable(table.unserved())));
      }
    }
  }
  return why;
}

std::string UnservedProblem(const v1::Table& table, const std::map<uint32_t, std::string>& why) {
  const auto it = why.find(table.id());
  if (it == why.end()) return "";
  return absl::StrCat("table '", Printable(table.spec().name()), "' is not served in part by ",
                      it->second, "; drop a table, add a server, or raise the limit");
}

// Workers that have their lanes go on.
std::string LaneProblem(const ServerState& state) {
  if (!state.statistics.ok()) return "";
  std::string shards;
  for (const v1::ShardStatistics& shard : state.statistics->shards()) {
    if (shard.lanes_refused().empty()) continue;
    absl::StrAppend(&shards, shards.empty() ? "" : "; ", Printable(shard.lanes_refused()));
  }
  if (shards.empty()) return "";
  return absl::StrCat("server '", Printable(state.server.name()), "' at ",
                      Printable(state.server.address()), " refuses further lanes: ", shards);
}

std::string CheckpointProblem(const v1::FailingCheckpoint& failing) {
  const auto seconds = static_cast<int64_t>(failing.failing_ms() / 1000);
  return absl::StrCat(
      "checkpoints of job '", Printable(failing.job()), "' in ", Printable(failing.directory()),
      " have failed for ", absl::FormatDuration(absl::Seconds(seconds)), " (", failing.failures(),
      failing.failures() == 1 ? " time" : " times", "): ", Printable(failing.error()),
      "; the newest that is complete is older than that: remove the cause, or save elsewhere "
      "('verbena checkpoint save DIR --job ",
      Printable(failing.job()), "')");
}

}  // namespace

PartitionCount Placement::Of(uint64_t incarnation, uint32_t shard) const {
  const auto it = shards.find({incarnation, shard});
  return it == shards.end() ? PartitionCount() : it->second;
}

PartitionCount Placement::OfServer(uint64_t incarnation) const {
  PartitionCount sum;
  for (const auto& [shard, count] : shards) {
    if (shard.first != incarnation) continue;
    sum.partitions += count.partitions;
    sum.alone += count.alone;
    sum.heirless += count.heirless;
    sum.followers += count.followers;
    sum.learners += count.learners;
    sum.lost += count.lost;
  }
  return sum;
}

std::set<uint64_t> LivingServers(const ClusterState& state) {
  std::set<uint64_t> living;
  if (state.servers.empty()) {
    for (const v1::Server& server : state.view.servers()) {
      if (server.state() == v1::Server::ALIVE) living.insert(server.incarnation());
    }
  }
  for (const ServerState& server : state.servers) {
    if (server.server.state() == v1::Server::ALIVE && server.statistics.ok()) {
      living.insert(server.server.incarnation());
    }
  }
  return living;
}

Placement PlacementOf(const ClusterState& state) {
  const v1::ClusterView& view = state.view;
  std::set<uint32_t> lost;
  for (const v1::Table& table : view.tables()) {
    if (table.restoring()) continue;
    lost.insert(table.lost_partitions().begin(), table.lost_partitions().end());
  }
  const std::set<uint64_t> living = LivingServers(state);
  Placement placement;
  for (const v1::Partition& partition : view.partitions()) {
    const uint32_t is_lost = lost.contains(partition.id()) ? 1 : 0;
    ++placement.all.partitions;
    placement.all.lost += is_lost;
    if (partition.primary() == 0) {
      ++placement.unassigned;
      continue;
    }
    uint32_t heirs = 0;
    for (const v1::Replica& copy : partition.followers()) {
      heirs += living.contains(copy.server()) ? 1 : 0;
      ++placement.shards[{copy.server(), copy.shard()}].followers;
      ++placement.all.followers;
    }
    for (const v1::Replica& copy : partition.learners()) {
      ++placement.shards[{copy.server(), copy.shard()}].learners;
      ++placement.all.learners;
    }
    const uint32_t copies = heirs + (living.contains(partition.primary()) ? 1 : 0);
    placement.incomplete += copies < ReplicasOf(view) ? 1 : 0;
    placement.dead += copies == 0 ? 1 : 0;
    PartitionCount& count = placement.shards[{partition.primary(), partition.shard()}];
    ++count.partitions;
    count.alone += partition.followers().empty() ? 1 : 0;
    count.heirless += !partition.followers().empty() && heirs == 0 ? 1 : 0;
    count.lost += is_lost;
  }
  return placement;
}

CopyLoad CopiesOf(const ServerState& server, uint32_t shard) {
  CopyLoad load;
  if (!server.statistics.ok()) return load;
  for (const v1::ShardStatistics& statistics : server.statistics->shards()) {
    if (statistics.shard() != shard) continue;
    for (const v1::ReplicaStatistics& replica : statistics.replicas()) {
      for (const v1::CopyStatistics& copy : replica.copies()) {
        if (copy.learner()) {
          load.copied_bytes += std::min(copy.copied_bytes(), copy.total_bytes());
          load.total_bytes += copy.total_bytes();
        } else if (replica.sequence() > copy.acknowledged()) {
          load.lag = std::max(load.lag, replica.sequence() - copy.acknowledged());
        }
      }
    }
  }
  return load;
}

uint32_t ReplicasOf(const v1::ClusterView& view) { return std::max(view.replicas(), 1u); }

std::string CopiesText(const ClusterState& state) {
  const v1::ClusterView& view = state.view;
  const Placement placement = PlacementOf(state);
  return absl::StrCat(ReplicasOf(view), ReplicasOf(view) == 1 ? " replica" : " replicas",
                      " of each partition wanted, ", std::max(view.min_replicas(), 1u),
                      " to take pushes; ", Partitions(placement.incomplete),
                      placement.incomplete == 1 ? " has" : " have", " fewer, ",
                      placement.all.learners, " being copied\n");
}

std::string FullServersText(const ClusterState& state) {
  std::string text;
  for (const v1::Server& server : state.view.servers()) {
    const v1::FullServer* full = FindFull(server.incarnation(), state);
    if (full == nullptr) continue;
    const auto count = static_cast<uint32_t>(full->partitions_size());
    absl::StrAppend(
        &text, "server '", Printable(server.name()), "' has no memory for replicas of ",
        Partitions(count), " (", Ranges({full->partitions().begin(), full->partitions().end()}),
        "); ", TriedAgain(*full), "; raise its --memory-limit, add a server, or drop tables\n");
  }
  return text;
}

std::string StateWord(const ServerState& server) {
  if (server.server.state() == v1::Server::SILENT) return "silent";
  if (server.statistics.ok()) return server.server.draining() ? "draining" : "alive";
  return absl::IsFailedPrecondition(server.statistics.status()) ? "replaced" : "no answer";
}

std::string WhyUnanswered(const ServerState& server) {
  if (server.statistics.ok()) return "";
  return std::string(server.statistics.status().message());
}

namespace {

// Without those of checkpoints and of lanes, for which nothing that serves has to wait.
std::vector<std::string> ServingProblems(const ClusterState& state) {
  std::vector<std::string> problems;
  const auto add = [&](std::string problem) {
    if (!problem.empty()) problems.push_back(std::move(problem));
  };
  add(std::string(state.coordinator_status.message()));
  const v1::ClusterView& view = state.view;
  const Placement placement = PlacementOf(state);
  // As the coordinator counts them when a table is made.
  const auto alive = static_cast<uint32_t>(
      std::count_if(view.servers().begin(), view.servers().end(),
                    [](const v1::Server& s) { return s.state() == v1::Server::ALIVE; }));
  if (alive < view.expected_servers()) {
    const uint32_t missing = view.expected_servers() - alive;
    add(absl::StrCat(alive, " of ", view.expected_servers(),
                     " expected servers are alive: no table can be created or restored until ",
                     missing, missing == 1 ? " more joins or returns" : " more join or return"));
  } else if (placement.unassigned > 0 && !view.tables().empty()) {
    // They are placed when the first table is made.
    add(absl::StrCat(placement.unassigned, " of ", placement.all.partitions,
                     " partitions are on no server"));
  }
  if (placement.dead > 0 && !view.tables().empty()) {
    add(absl::StrCat(
        Partitions(placement.dead), placement.dead == 1 ? " has" : " have",
        " no living replica: calls on them wait until a server that has one responds"));
  }
  if (const uint32_t fewer = placement.incomplete - placement.dead;
      fewer > 0 && !view.tables().empty()) {
    add(absl::StrCat(Partitions(fewer), fewer == 1 ? " has" : " have", " fewer replicas than the ",
                     ReplicasOf(view), " wanted; ", placement.all.learners, " being copied",
                     FullServers(state)));
  }
  for (const ServerState& server : state.servers) {
    add(ServerProblem(server, placement));
    add(ColdDiskProblem(server));
  }
  const std::map<uint32_t, std::string> unserved = Unserved(state);
  for (const v1::Table& table : view.tables()) {
    add(TableProblem(table));
    add(ColdTierProblem(table, view));
    add(UnservedProblem(table, unserved));
  }
  return problems;
}

}  // namespace

std::vector<std::string> Problems(const ClusterState& state) {
  std::vector<std::string> problems = ServingProblems(state);
  for (const v1::FailingCheckpoint& failing : state.failing_checkpoints) {
    problems.push_back(CheckpointProblem(failing));
  }
  for (const ServerState& server : state.servers) {
    if (std::string problem = LaneProblem(server); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

std::string Obstacle(const ClusterState& state) {
  std::vector<std::string> problems = ServingProblems(state);
  if (!problems.empty()) return problems.front();
  const Placement placement = PlacementOf(state);
  if (placement.incomplete == 0 && placement.all.learners == 0) return "";
  return absl::StrCat(Partitions(placement.incomplete), " with fewer replicas than the ",
                      ReplicasOf(state.view), " wanted; ", placement.all.learners, " being copied");
}

bool Settled(const ClusterState& state) { return Obstacle(state).empty(); }

}  // namespace verbena::cli
