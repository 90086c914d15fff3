#include "server/cli/verbena/health.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

std::string Partitions(uint32_t count) {
  return absl::StrCat(count, count == 1 ? " partition" : " partitions");
}

std::string ServerProblem(const ServerState& state, const Placement& placement) {
  const v1::Server& server = state.server;
  const std::string who =
      absl::StrCat("server '", Printable(server.name()), "' at ", Printable(server.address()));
  if (server.state() == v1::Server::SILENT) {
    const PartitionCount has = placement.OfServer(server.incarnation());
    std::string text = absl::StrCat(who, " is silent: it has left or its lease has ended");
    if (has.alone > 0) {
      absl::StrAppend(
          &text, "; what it holds (", Partitions(has.alone),
          ") is UNAVAILABLE until this process is heard again; if it has ended, that is "
          "gone: start a server under its name, then reset the tables or restore a "
          "checkpoint");
    }
    if (has.partitions > has.alone) {
      absl::StrAppend(&text, "; followers have ", Partitions(has.partitions - has.alone),
                      " of it, and take them over if they do not hear it either");
    }
    return text;
  }
  if (state.statistics.ok()) return "";
  return absl::StrCat(who,
                      absl::IsFailedPrecondition(state.statistics.status()) ? " has been replaced: "
                                                                            : " does not answer: ",
                      WhyUnanswered(state));
}

std::string TableProblem(const v1::Table& table) {
  // Whoever restores it makes it anew.
  if (table.lost_partitions().empty() || table.restoring()) return "";
  const auto lost = static_cast<uint32_t>(table.lost_partitions_size());
  return absl::StrCat("table '", Printable(table.spec().name()), "' has lost ", Partitions(lost),
                      " (",
                      Ranges({table.lost_partitions().begin(), table.lost_partitions().end()}),
                      "): calls on them return DATA_LOSS until the table is dropped or reset");
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
    sum.followers += count.followers;
    sum.learners += count.learners;
    sum.lost += count.lost;
  }
  return sum;
}

Placement PlacementOf(const v1::ClusterView& view) {
  std::set<uint32_t> lost;
  for (const v1::Table& table : view.tables()) {
    if (table.restoring()) continue;
    lost.insert(table.lost_partitions().begin(), table.lost_partitions().end());
  }
  Placement placement;
  for (const v1::Partition& partition : view.partitions()) {
    const uint32_t is_lost = lost.contains(partition.id()) ? 1 : 0;
    ++placement.all.partitions;
    placement.all.lost += is_lost;
    if (partition.primary() == 0) {
      ++placement.unassigned;
      continue;
    }
    if (1 + static_cast<uint32_t>(partition.followers_size()) < ReplicasOf(view)) {
      ++placement.incomplete;
    }
    for (const v1::Replica& copy : partition.followers()) {
      ++placement.shards[{copy.server(), copy.shard()}].followers;
      ++placement.all.followers;
    }
    for (const v1::Replica& copy : partition.learners()) {
      ++placement.shards[{copy.server(), copy.shard()}].learners;
      ++placement.all.learners;
    }
    PartitionCount& count = placement.shards[{partition.primary(), partition.shard()}];
    ++count.partitions;
    count.alone += partition.followers().empty() ? 1 : 0;
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

std::string CopiesText(const v1::ClusterView& view) {
  const Placement placement = PlacementOf(view);
  return absl::StrCat(ReplicasOf(view), ReplicasOf(view) == 1 ? " copy" : " copies",
                      " of each partition wanted, ", std::max(view.min_replicas(), 1u),
                      " to take pushes; ", Partitions(placement.incomplete),
                      placement.incomplete == 1 ? " has" : " have", " fewer, ",
                      placement.all.learners, " being copied\n");
}

std::string StateWord(const ServerState& server) {
  if (server.server.state() == v1::Server::SILENT) return "silent";
  if (server.statistics.ok()) return "alive";
  return absl::IsFailedPrecondition(server.statistics.status()) ? "replaced" : "no answer";
}

std::string WhyUnanswered(const ServerState& server) {
  if (server.statistics.ok()) return "";
  return std::string(server.statistics.status().message());
}

std::vector<std::string> Problems(const ClusterState& state) {
  std::vector<std::string> problems;
  const auto add = [&](std::string problem) {
    if (!problem.empty()) problems.push_back(std::move(problem));
  };
  add(std::string(state.coordinator_status.message()));
  const v1::ClusterView& view = state.view;
  const Placement placement = PlacementOf(view);
  const auto servers = static_cast<uint32_t>(view.servers_size());
  if (servers < view.expected_servers()) {
    add(absl::StrCat(servers, " of ", view.expected_servers(),
                     " expected servers have joined: no table can be created yet"));
  } else if (placement.unassigned > 0 && !view.tables().empty()) {
    // They are placed when the first table is made.
    add(absl::StrCat(placement.unassigned, " of ", placement.all.partitions,
                     " partitions are on no server"));
  }
  if (placement.incomplete > 0 && !view.tables().empty()) {
    add(absl::StrCat(Partitions(placement.incomplete), placement.incomplete == 1 ? " has" : " have",
                     " fewer copies than the ", ReplicasOf(view), " wanted; ",
                     placement.all.learners, " being copied"));
  }
  for (const ServerState& server : state.servers) add(ServerProblem(server, placement));
  for (const v1::Table& table : view.tables()) add(TableProblem(table));
  return problems;
}

}  // namespace verbena::cli
