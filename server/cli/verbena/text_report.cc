#include "server/cli/verbena/text_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "proto/control/view_tables.h"
#include "proto/protocol_version.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/protocol_report.h"
#include "server/cli/verbena/spec_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr auto kRight = TextTable::Align::kRight;

std::string OrSaying(const TextTable& table, const char* nothing) {
  return table.empty() ? absl::StrCat(nothing, "\n") : table.ToString();
}

// The share of the learners' data that is copied.
std::string CopiedWord(const CopyLoad& copies) {
  if (copies.total_bytes == 0) return "-";
  return absl::StrCat(copies.copied_bytes * 100 / copies.total_bytes, "%");
}

std::string ServersText(const ClusterState& state) {
  const Placement placement = PlacementOf(state);
  TextTable table({{"SERVER"},
                   {"STATE"},
                   {"SHARD", kRight},
                   {"PARTITIONS", kRight},
                   {"FOLLOWERS", kRight},
                   {"LEARNERS", kRight},
                   {"LOST", kRight},
                   {"LAG", kRight},
                   {"COPIED", kRight},
                   {"INCARNATION", kRight},
                   {"VERSION"},
                   {"PROTOCOL"},
                   {"ZONE"},
                   {"ADDRESS"}});
  for (const ServerState& server : state.servers) {
    const uint64_t incarnation = server.server.incarnation();
    for (uint32_t shard = 0; shard < std::min(server.server.shards(), kMostShards); ++shard) {
      const PartitionCount count = placement.Of(incarnation, shard);
      const CopyLoad copies = CopiesOf(server, shard);
      table.AddRow({Printable(server.server.name()), StateWord(server), absl::StrCat(shard),
                    absl::StrCat(count.partitions), absl::StrCat(count.followers),
                    absl::StrCat(count.learners), absl::StrCat(count.lost),
                    absl::StrCat(copies.lag), CopiedWord(copies), absl::StrCat(incarnation),
                    server.server.version().empty() ? "-" : Printable(server.server.version()),
                    DescribeProtocols(ProtocolsOf(server.server.protocol())),
                    server.server.zone().empty() ? "-" : Printable(server.server.zone()),
                    Printable(server.server.address())});
    }
  }
  return OrSaying(table, "no servers");
}

// "server-1 at HOST:PORT did not answer: ..." for each one, under a table that it is missing from.
std::string UnansweredText(const ClusterState& state, const char* consequence) {
  std::string text;
  for (const ServerState& server : state.servers) {
    if (server.statistics.ok()) continue;
    absl::StrAppend(&text, Printable(server.server.name()), " at ",
                    Printable(server.server.address()), consequence, ": ", WhyUnanswered(server),
                    "\n");
  }
  return text;
}

std::string LanesCell(const LaneCounts& lanes) {
  if (lanes.empty()) return "none";
  return absl::StrJoin(lanes, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", Printable(entry.first));
  });
}

LaneCounts LanesOfShard(const v1::ShardStatistics& shard) {
  LaneCounts lanes;
  for (const v1::LaneStatistics& lane : shard.lanes()) ++lanes[lane.transport()];
  return lanes;
}

std::string Mark(const ShardLoad& load) { return load.hottest ? "<- hottest" : ""; }

// Lanes of a shard that are alike share a line.
std::string LaneTableText(const std::vector<ShardLoad>& loads) {
  TextTable table({{"SERVER"},
                   {"SHARD", kRight},
                   {"LANES", kRight},
                   {"TRANSPORT"},
                   {"RAIL", kRight},
                   {"DEVICE"},
                   {"REASON"}});
  for (const ShardLoad& load : loads) {
    if (load.statistics == nullptr) continue;
    std::map<std::tuple<std::string, uint32_t, std::string, std::string>, uint64_t> alike;
    for (const v1::LaneStatistics& lane : load.statistics->lanes()) {
      std::string reason = lane.reason();
      if (!lane.settings().empty()) absl::StrAppend(&reason, " [", lane.settings(), "]");
      const std::string device = lane.device().empty() ? "host" : lane.device();
      ++alike[{lane.transport(), lane.rail(), device, reason}];
    }
    for (const auto& [lane, count] : alike) {
      const auto& [transport, rail, device, reason] = lane;
      table.AddRow({Printable(load.server->server.name()), absl::StrCat(load.statistics->shard()),
                    absl::StrCat(count), Printable(transport), absl::StrCat(rail),
                    Printable(device), Printable(reason)});
    }
  }
  return table.empty() ? "" : absl::StrCat("\n", table.ToString());
}

std::string MissingTransportsText(const ClusterState& state) {
  std::string text;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    std::map<std::pair<std::string, std::string>, std::vector<int64_t>> shards;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      for (const v1::MissingTransport& missing : shard.missing_transports()) {
        shards[{missing.transport(), missing.reason()}].push_back(shard.shard());
      }
    }
    for (const auto& [missing, which] : shards) {
      absl::StrAppend(&text, Printable(server.server.name()), " shard ", Ranges(which), " has no ",
                      Printable(missing.first), ": ", Printable(missing.second), "\n");
    }
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string StatusText(const ClusterState& state) {
  const std::vector<std::string> problems = Problems(state);
  std::string text = "healthy\n";
  if (!problems.empty()) {
    text = problems.size() == 1 ? "1 thing is wrong:\n"
                                : absl::StrCat(problems.size(), " things are wrong:\n");
    for (const std::string& problem : problems) absl::StrAppend(&text, "  - ", problem, "\n");
  }
  const v1::ClusterView& view = state.view;
  const Placement placement = PlacementOf(state);
  absl::StrAppend(&text, "\ncluster ", Printable(view.cluster_id()), ", coordinator ",
                  Printable(state.coordinator), "\nterm ", view.term(), ", revision ",
                  view.revision(), ", lease ",
                  absl::FormatDuration(absl::Milliseconds(view.lease_ms())), ", ",
                  LivingServers(state).size(), " of ", view.expected_servers(),
                  " expected servers alive and answering\n", placement.all.partitions,
                  " partitions, ", placement.unassigned, " on no server, ", placement.all.lost,
                  " lost by a table\n", CopiesText(state), ProtocolText(state), "\n\n");
  absl::StrAppend(&text, ServersText(state), "\n", JobsText(state), "\n", TablesText(state));
  return text;
}

// Empty when no key stands out.
std::string HotKeysText(const ClusterState& state) {
  TextTable table(
      {{"TABLE"}, {"HOT KEY", kRight}, {"SERVER"}, {"SHARD", kRight}, {"OF ITS SHARD", kRight}});
  bool any = false;
  for (const v1::Table& row : state.view.tables()) {
    for (const HotKeyShare& key : HotKeysOf(row, state, 0.01)) {
      table.AddRow({Printable(row.spec().name()), absl::StrCat(key.key), Printable(key.server),
                    absl::StrCat(key.shard), absl::StrFormat("%.1f %%", 100 * key.share)});
      any = true;
    }
  }
  return any ? absl::StrCat("\n", table.ToString()) : "";
}

// "adam 0.001"; "adam 0.0005 (changed)".
std::string OptimizerWord(const v1::Optimizer& optimizer) {
  return absl::StrCat(Printable(optimizer.name()), " ", optimizer.rate(),
                      optimizer.changed() ? " (changed)" : "");
}

std::string TablesText(const ClusterState& state) {
  const v1::ClusterView& view = state.view;
  TextTable table({{"TABLE"},
                   {"ID", kRight},
                   {"JOB"},
                   {"SHAPE"},
                   {"TYPE"},
                   {"CONSISTENCY"},
                   {"OPTIMIZER"},
                   {"ROWS", kRight},
                   {"BYTES", kRight},
                   {"LOST", kRight},
                   {"OTHER OPTIONS"}});
  std::string restored;
  for (const v1::Table& row : view.tables()) {
    v1::TableSpec spec = row.spec();
    *spec.mutable_optimizer() = OptimizerOf(row, state);
    if (row.restoring()) {
      absl::StrAppend(&restored, "\n", Printable(BeingRestored(row)), " (id ", row.id(),
                      row.replaces() == 0 ? ")" : absl::StrCat(", replaces ", row.replaces(), ")"));
      continue;
    }
    const TableSize size = SizeOf(row, state);
    table.AddRow({Printable(spec.name()), absl::StrCat(row.id()), Printable(spec.job()),
                  ShapeWord(spec), TypesWord(spec), OptionWord("consistency", spec),
                  OptimizerWord(spec.optimizer()), spec.dim() > 0 ? absl::StrCat(size.rows) : "-",
                  Bytes(size.bytes), absl::StrCat(row.lost_partitions_size()),
                  OtherOptionsText(spec)});
  }
  const std::string missing =
      HasRows(state) ? UnansweredText(state, " did not answer, so its rows are not counted") : "";
  if (!restored.empty()) restored += "\n";
  return OrSaying(table, "no tables") + missing + restored + HotKeysText(state);
}

std::string JobsText(const ClusterState& state) {
  TextTable table({{"JOB"},
                   {"GENERATION", kRight},
                   {"WORKERS", kRight},
                   {"EXPECTED", kRight},
                   {"OBSERVERS", kRight},
                   {"DEPARTED RANKS"},
                   {"LIMITS"}});
  for (const v1::Job& job : state.view.jobs()) {
    const int observers = Observers(job);
    table.AddRow({Printable(job.name()), absl::StrCat(job.generation()),
                  absl::StrCat(job.members_size() - observers),
                  absl::StrCat(job.expected_workers()), absl::StrCat(observers),
                  Ranges({job.departed_ranks().begin(), job.departed_ranks().end()}),
                  LimitsWord(job.limits())});
  }
  return OrSaying(table, "no jobs");
}

std::string LimitsText(const ClusterState& state, const std::string& job) {
  const v1::JobLimits limits = LimitsOf(state, job);
  const JobUse all = UseOf(state, job);
  const auto number = [](uint64_t limit) { return limit == 0 ? "none" : absl::StrCat(limit); };
  const auto bytes = [&](uint64_t limit) {
    return limits.memory_bytes() == 0 ? "none" : Bytes(limit);
  };
  TextTable table({{"LIMIT"}, {"ALLOWED", kRight}, {"IN USE", kRight}});
  table.AddRow({"memory", bytes(limits.memory_bytes()), Bytes(all.memory_bytes)});
  table.AddRow({"tables", number(limits.tables()), absl::StrCat(all.tables)});
  table.AddRow({"lanes of a shard", number(limits.lanes()), absl::StrCat(all.lanes)});
  TextTable servers({{"SERVER"},
                     {"MEMORY SHARE", kRight},
                     {"MEMORY IN USE", kRight},
                     {"LANES OF A SHARD", kRight}});
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    const JobUse use = UseOf(server, job);
    servers.AddRow({Printable(server.server.name()), bytes(ShareOf(server, limits, state.view)),
                    Bytes(use.memory_bytes), absl::StrCat(use.lanes)});
  }
  return absl::StrCat("job ", Printable(job), "\n", table.ToString(), "\n",
                      OrSaying(servers, "no servers"),
                      UnansweredText(state, " did not answer, so its share is not counted"));
}

std::string WorkersText(const ClusterState& state) {
  const std::map<uint64_t, LaneCounts> lanes = LanesOfWorkers(state);
  TextTable table({{"JOB"}, {"RANK", kRight}, {"INCARNATION", kRight}, {"WORKER"}, {"LANES"}});
  for (const v1::Job& job : state.view.jobs()) {
    for (const v1::Worker& worker : job.members()) {
      const auto it = lanes.find(worker.incarnation());
      table.AddRow({Printable(job.name()),
                    worker.rank() < 0 ? "observer" : absl::StrCat(worker.rank()),
                    absl::StrCat(worker.incarnation()), Printable(worker.name()),
                    LanesCell(it == lanes.end() ? LaneCounts() : it->second)});
    }
  }
  const std::string unanswered =
      UnansweredText(state, " did not answer, so lanes to it are not counted");
  return absl::StrCat(OrSaying(table, "no workers"), unanswered.empty() ? "" : "\n", unanswered);
}

std::string ShardsText(const ClusterState& state, const std::vector<ShardLoad>& loads) {
  TextTable table({{"SERVER"},
                   {"SHARD", kRight},
                   {"PUSHES", kRight},
                   {"PULLS", kRight},
                   {"PUSHED", kRight},
                   {"PULLED", kRight},
                   {"WAITING", kRight},
                   {"HELD", kRight},
                   {"RESIDENT", kRight},
                   {"CPU", kRight},
                   {"LANES"},
                   {""}});
  for (const ShardLoad& load : loads) {
    const std::string name = Printable(load.server->server.name());
    if (load.statistics == nullptr) {
      table.AddRow({name, "-", "-", "-", "-", "-", "-", "-", "-", "-", StateWord(*load.server)});
      continue;
    }
    const v1::ShardStatistics& shard = *load.statistics;
    table.AddRow({name, absl::StrCat(shard.shard()), Count(shard.pushes()), Count(shard.pulls()),
                  Bytes(shard.push_bytes()), Bytes(shard.pull_bytes()), Count(shard.deferred()),
                  Count(shard.held()), Bytes(shard.resident_bytes()), Seconds(shard.cpu_seconds()),
                  LanesCell(LanesOfShard(shard)), Mark(load)});
  }
  const std::string unanswered = UnansweredText(state, " did not answer");
  return absl::StrCat(OrSaying(table, "no servers"), unanswered.empty() ? "" : "\n", unanswered,
                      LaneTableText(loads), MissingTransportsText(state));
}

std::string RatesText(const ClusterState& state, const std::vector<ShardLoad>& loads,
                      const std::string& when) {
  TextTable table({{"SERVER"},
                   {"SHARD", kRight},
                   {"PUSH MB/s", kRight},
                   {"PULL MB/s", kRight},
                   {"PUSHES/s", kRight},
                   {"PULLS/s", kRight},
                   {"WAITING", kRight},
                   {"HELD", kRight},
                   {"RESIDENT", kRight},
                   {"CPU %", kRight},
                   {""}});
  for (const ShardLoad& load : loads) {
    const std::string name = Printable(load.server->server.name());
    if (load.statistics == nullptr) {
      table.AddRow({name, "-", "-", "-", "-", "-", "-", "-", "-", "-", StateWord(*load.server)});
      continue;
    }
    const v1::ShardStatistics& shard = *load.statistics;
    const auto rate = [&](double Rates::*member, double scale, int digits) {
      return load.rates ? Fixed(*load.rates.*member * scale, digits) : "-";
    };
    table.AddRow({name, absl::StrCat(shard.shard()), rate(&Rates::push_bytes, 1e-6, 1),
                  rate(&Rates::pull_bytes, 1e-6, 1), rate(&Rates::pushes, 1, 0),
                  rate(&Rates::pulls, 1, 0), Count(shard.deferred()), Count(shard.held()),
                  Bytes(shard.resident_bytes()), rate(&Rates::cpu, 100, 1), Mark(load)});
  }
  std::string text = absl::StrCat(when, "\n", OrSaying(table, "no servers"),
                                  UnansweredText(state, " did not answer"));
  if (!state.coordinator_status.ok()) {
    absl::StrAppend(&text, std::string(state.coordinator_status.message()),
                    " (servers as of revision ", state.view.revision(), ")\n");
  }
  return text;
}

}  // namespace verbena::cli
