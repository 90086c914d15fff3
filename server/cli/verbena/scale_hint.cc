#include "server/cli/verbena/scale_hint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "proto/base/number_values.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

struct Memory {
  uint64_t used = 0, limit = 0;
};

// All shards of a server report the same.
Memory MemoryOf(const ServerState& server) {
  Memory memory;
  if (!server.statistics.ok()) return memory;
  for (const v1::ShardStatistics& shard : server.statistics->shards()) {
    memory.used = std::max(memory.used, shard.memory_reserved_bytes());
    memory.limit = std::max(memory.limit, shard.memory_limit_bytes());
  }
  return memory;
}

uint32_t Ceiling(double value) { return static_cast<uint32_t>(std::ceil(value - 1e-9)); }

std::string Percent(double share) { return absl::StrCat(Fixed(share * 100, 0), "%"); }

// A need for servers, and the sentence that gives it as a reason.
struct Need {
  uint32_t servers = 0;
  std::string reason;
};

struct Total {
  uint32_t servers = 0;
  double cpu = 0;  // of whole servers
  double used = 0, later = 0;
  double limit = 0;  // of the servers that have one, on average; 0: none has
};

Total Sum(const std::vector<ServerUse>& uses, double seconds) {
  Total total;
  double limits = 0;
  uint32_t limited = 0;
  for (const ServerUse& use : uses) {
    if (use.server->server.state() == v1::Server::SILENT) continue;
    ++total.servers;
    if (use.rates) total.cpu += use.rates->cpu;
    if (use.memory_limit == 0) continue;
    ++limited;
    limits += static_cast<double>(use.memory_limit);
    total.used += static_cast<double>(use.memory_bytes);
    total.later +=
        static_cast<double>(use.memory_bytes) + std::max(0.0, use.growth.value_or(0)) * seconds;
  }
  if (limited > 0) total.limit = limits / limited;
  return total;
}

Need NeedAbove(const Total& total, const ScaleOptions& options) {
  Need need;
  const auto take = [&need](double servers, std::string reason) {
    if (Ceiling(servers) > need.servers) need = {Ceiling(servers), std::move(reason)};
  };
  take(total.cpu / options.cpu_high,
       absl::StrCat("the servers use ", Percent(total.cpu / std::max(total.servers, 1U)),
                    " of their processors, more than ", Percent(options.cpu_high)));
  if (total.limit > 0) {
    const double have = total.limit * std::max(total.servers, 1U);
    take(total.used / total.limit / options.memory_high,
         absl::StrCat(Percent(total.used / have), " of the memory is in use, more than ",
                      Percent(options.memory_high)));
    take(total.later / total.limit,
         absl::StrCat("at its growth the memory is full within ", Seconds(options.full_within_s)));
  }
  return need;
}

uint32_t NeedBelow(const Total& total, const ScaleOptions& options) {
  double need = total.cpu / options.cpu_low;
  if (total.limit > 0) need = std::max(need, total.later / total.limit / options.memory_low);
  return Ceiling(need);
}

// Why servers may not be removed now; empty: they may.
std::string Keeps(const ClusterState& now, const std::vector<ServerUse>& uses) {
  for (const ServerUse& use : uses) {
    const std::string name = Printable(use.server->server.name());
    if (use.server->server.state() == v1::Server::SILENT) {
      return absl::StrCat("server ", name, " is silent");
    }
    if (!use.rates) return absl::StrCat("server ", name, " has not answered twice");
  }
  if (now.view.replicas() < 2) return "partitions have one replica, which a removal would lose";
  const Placement placement = PlacementOf(now);
  if (placement.incomplete > 0 || placement.unassigned > 0) {
    return absl::StrCat(placement.incomplete + placement.unassigned,
                        " partitions have too few replicas");
  }
  return "";
}

const char* Name(ScaleAction action) {
  switch (action) {
    case ScaleAction::kAdd:
      return "add";
    case ScaleAction::kRemove:
      return "remove";
    case ScaleAction::kNone:
      break;
  }
  return "none";
}

const char* StateOf(const v1::Worker& worker) {
  if (worker.joining()) return "joining";
  return worker.rank() < 0 ? "observer" : "working";
}

void AddNumber(JsonWriter* json, const char* name, std::optional<double> value) {
  if (!value) return json->AddNull(name);
  json->Add(name, *value);
}

JsonArray ServersJson(const std::vector<ServerUse>& uses) {
  JsonArray servers;
  for (const ServerUse& use : uses) {
    const auto rate = [&use](double Rates::*member) {
      return use.rates ? std::optional(*use.rates.*member) : std::nullopt;
    };
    JsonWriter json;
    json.Add("name", use.server->server.name());
    json.Add("state", use.server->server.state() == v1::Server::SILENT ? "silent" : "alive");
    json.Add("answers", use.server->statistics.ok());
    AddNumber(&json, "cpu", rate(&Rates::cpu));
    AddNumber(&json, "push_bytes_per_s", rate(&Rates::push_bytes));
    AddNumber(&json, "pull_bytes_per_s", rate(&Rates::pull_bytes));
    AddNumber(&json, "pushes_per_s", rate(&Rates::pushes));
    AddNumber(&json, "pulls_per_s", rate(&Rates::pulls));
    json.Add("memory_bytes", use.memory_bytes);
    if (use.memory_limit > 0) {
      json.Add("memory_limit_bytes", use.memory_limit);
    } else {
      json.AddNull("memory_limit_bytes");
    }
    AddNumber(&json, "memory_growth_bytes_per_s", use.growth);
    AddNumber(&json, "memory_full_in_s", use.full_in_s);
    servers.Add(json);
  }
  return servers;
}

JsonArray JobsJson(const v1::ClusterView& view) {
  JsonArray jobs;
  for (const v1::Job& job : view.jobs()) {
    JsonArray workers;
    for (const v1::Worker& worker : job.members()) {
      JsonWriter json;
      json.Add("name", worker.name());
      json.Add("rank", worker.rank());
      json.Add("state", StateOf(worker));
      workers.Add(json);
    }
    JsonWriter json;
    json.Add("name", job.name());
    json.Add("expected_workers", job.expected_workers());
    json.Add("max_workers", job.max_workers());
    json.Add("departed_workers", job.departed_ranks_size());
    json.Add("workers", workers);
    jobs.Add(json);
  }
  return jobs;
}

// Shares as CLI11 shows them in --help.
CLI::Option* Share(CLI::App* command, const char* name, double* value, const char* about) {
  return command->add_option(name, *value, about)
      ->type_name("X")
      ->check(NumberIn(0.01, 1))
      ->capture_default_str();
}

}  // namespace

void AddScaleOptions(CLI::App* command, ScaleOptions* options) {
  const auto seconds = [command](const char* name, double least, double most, const char* about,
                                 std::function<void(double)> set) {
    return command->add_option_function<double>(name, std::move(set), about)
        ->type_name("SECONDS")
        ->check(NumberIn(least, most, "seconds"));
  };
  seconds("--interval", 0.1, 3600,
          "Time between the two readings from which rates and growth are computed, in seconds, 0.1 "
          "to 3600 (default: 5)",
          [options](double value) { options->interval = absl::Seconds(value); });
  Share(command, "--cpu-high", &options->cpu_high,
        "Share of the shards' processors, 0.01 to 1, above which servers are added");
  Share(command, "--cpu-low", &options->cpu_low,
        "Share that the remaining servers may use after a removal, 0.01 to 1");
  Share(command, "--memory-high", &options->memory_high,
        "Share of the memory limits, 0.01 to 1, above which servers are added");
  Share(command, "--memory-low", &options->memory_low,
        "Share that the remaining servers may use after a removal, 0.01 to 1");
  seconds("--full-within", 0, 31536000,
          "Servers are added when memory is full within this time at its growth, in seconds, 0 to "
          "31536000 (default: 3600)",
          [options](double value) { options->full_within_s = value; });
  for (const auto& [name, value, about] :
       {std::tuple("--min-servers", &options->min_servers, "Least number of servers, 1 to 10000"),
        std::tuple("--max-servers", &options->max_servers,
                   "Largest number of servers, up to 10000; 0: no limit")}) {
    command->add_option(name, *value, about)
        ->type_name("N")
        ->check(InRange<uint32_t>(value == &options->min_servers ? 1 : 0, 10000).description(""))
        ->capture_default_str();
  }
}

std::string WrongScaleOptions(const ScaleOptions& options) {
  if (options.cpu_low >= options.cpu_high) return "--cpu-low must be less than --cpu-high";
  if (options.memory_low >= options.memory_high) {
    return "--memory-low must be less than --memory-high";
  }
  if (options.max_servers != 0 && options.max_servers < options.min_servers) {
    return "--max-servers must not be less than --min-servers";
  }
  return "";
}

std::vector<ServerUse> ServerUses(const ClusterState& now, const ClusterState& before) {
  const std::vector<ShardLoad> loads = ShardLoads(now, &before);
  std::map<uint64_t, const ServerState*> earlier;
  for (const ServerState& server : before.servers) {
    earlier[server.server.incarnation()] = &server;
  }
  std::vector<ServerUse> uses;
  for (const ServerState& server : now.servers) {
    const Memory memory = MemoryOf(server);
    ServerUse use = {.server = &server, .memory_bytes = memory.used, .memory_limit = memory.limit};
    Rates sum;
    int shards = 0;
    bool complete = server.statistics.ok();
    for (const ShardLoad& load : loads) {
      if (load.server != &server) continue;
      complete = complete && load.rates.has_value();
      if (!complete) break;
      ++shards;
      sum.push_bytes += load.rates->push_bytes;
      sum.pull_bytes += load.rates->pull_bytes;
      sum.pushes += load.rates->pushes;
      sum.pulls += load.rates->pulls;
      sum.cpu += load.rates->cpu;
    }
    if (complete && shards > 0) {
      const ServerState& then = *earlier.at(server.server.incarnation());
      sum.cpu /= shards;
      use.rates = sum;
      use.growth = (static_cast<double>(memory.used) - static_cast<double>(MemoryOf(then).used)) /
                   (server.read_at - then.read_at);
      if (*use.growth > 0 && memory.limit > 0) {
        const double left = static_cast<double>(memory.limit) - static_cast<double>(memory.used);
        use.full_in_s = std::max(0.0, left / *use.growth);
      }
    }
    uses.push_back(use);
  }
  return uses;
}

ScaleHint Suggest(const ClusterState& now, const std::vector<ServerUse>& uses,
                  const ScaleOptions& options) {
  const Total total = Sum(uses, options.full_within_s);
  ScaleHint hint = {.servers = total.servers, .wanted_servers = total.servers};
  Need need = NeedAbove(total, options);
  for (const auto& [least, of] : {std::pair(options.min_servers, "--min-servers"),
                                  std::pair(now.view.replicas(), "replicas of a partition")}) {
    if (least <= need.servers) continue;
    need = {least, absl::StrCat("fewer servers than ", of, " are alive")};
  }
  const uint32_t most = options.max_servers == 0 ? UINT32_MAX : options.max_servers;
  if (need.servers > total.servers) {
    hint.wanted_servers = std::max(total.servers, std::min(need.servers, most));
    const bool grows = hint.wanted_servers > total.servers;
    hint.action = grows ? ScaleAction::kAdd : ScaleAction::kNone;
    hint.reason = grows ? need.reason : absl::StrCat(need.reason, ", but --max-servers are alive");
    return hint;
  }
  const uint32_t enough = std::max(NeedBelow(total, options), need.servers);
  if (enough >= total.servers) {
    hint.reason = "load and memory are between the thresholds";
    return hint;
  }
  const std::string keeps = Keeps(now, uses);
  if (!keeps.empty()) {
    hint.reason = absl::StrCat("fewer servers would do, but ", keeps);
    return hint;
  }
  // With fewer servers than are expected no table can be created.
  const uint32_t expected = now.view.expected_servers();
  if (expected >= total.servers) {
    hint.reason = absl::StrCat("fewer servers would do, but ", expected,
                               " are expected (--expected-servers of the coordinator)");
    return hint;
  }
  hint.action = ScaleAction::kRemove;
  hint.wanted_servers = std::max(enough, expected);
  hint.reason =
      absl::StrCat("the remaining servers use at most ", Percent(options.cpu_low),
                   " of their processors and ", Percent(options.memory_low), " of their memory");
  return hint;
}

std::string ScaleHintJson(const ClusterState& now, const ClusterState& before,
                          const ScaleOptions& options) {
  const std::vector<ServerUse> uses = ServerUses(now, before);
  const ScaleHint hint = Suggest(now, uses, options);
  JsonWriter json;
  json.Add("cluster", ClusterJson(now));
  json.Add("interval_s", now.read_at - before.read_at);
  json.Add("action", Name(hint.action));
  json.Add("servers_alive", hint.servers);
  json.Add("wanted_servers", hint.wanted_servers);
  json.Add("reason", hint.reason);
  json.Add("servers", ServersJson(uses));
  json.Add("jobs", JobsJson(now.view));
  return json.ToString();
}

std::string ScaleHintText(const ClusterState& now, const ClusterState& before,
                          const ScaleOptions& options) {
  const std::vector<ServerUse> uses = ServerUses(now, before);
  const ScaleHint hint = Suggest(now, uses, options);
  std::string text;
  if (hint.action == ScaleAction::kNone) {
    absl::StrAppend(&text, "none: ", hint.servers, " servers; ", hint.reason, "\n\n");
  } else {
    const uint32_t more = std::max(hint.wanted_servers, hint.servers);
    const uint32_t fewer = std::min(hint.wanted_servers, hint.servers);
    absl::StrAppend(&text, Name(hint.action), " ", more - fewer, ": ", hint.servers, " -> ",
                    hint.wanted_servers, " servers; ", hint.reason, "\n\n");
  }
  using Align = TextTable::Align;
  TextTable servers({{"SERVER"},
                     {"CPU", Align::kRight},
                     {"PUSH/S", Align::kRight},
                     {"PULL/S", Align::kRight},
                     {"MEMORY", Align::kRight},
                     {"LIMIT", Align::kRight},
                     {"FULL IN", Align::kRight}});
  for (const ServerUse& use : uses) {
    const auto rate = [&use](double Rates::*member) {
      return use.rates ? Bytes(static_cast<uint64_t>(*use.rates.*member)) : std::string("-");
    };
    servers.AddRow({Printable(use.server->server.name()), use.rates ? Percent(use.rates->cpu) : "-",
                    rate(&Rates::push_bytes), rate(&Rates::pull_bytes), Bytes(use.memory_bytes),
                    use.memory_limit > 0 ? Bytes(use.memory_limit) : "-",
                    use.full_in_s ? Seconds(*use.full_in_s) : "-"});
  }
  absl::StrAppend(&text, servers.ToString());
  TextTable jobs({{"JOB"},
                  {"WORKING", Align::kRight},
                  {"JOINING", Align::kRight},
                  {"OBSERVERS", Align::kRight},
                  {"EXPECTED", Align::kRight},
                  {"DEPARTED", Align::kRight}});
  for (const v1::Job& job : now.view.jobs()) {
    std::map<std::string, int> states;
    for (const v1::Worker& worker : job.members()) ++states[StateOf(worker)];
    jobs.AddRow({Printable(job.name()), absl::StrCat(states["working"]),
                 absl::StrCat(states["joining"]), absl::StrCat(states["observer"]),
                 absl::StrCat(job.expected_workers()), absl::StrCat(job.departed_ranks_size())});
  }
  if (!jobs.empty()) absl::StrAppend(&text, "\n", jobs.ToString());
  return text;
}

}  // namespace verbena::cli
