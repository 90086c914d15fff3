#include "server/cli/verbena/partition_report.h"

#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/json.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using Replicas = google::protobuf::RepeatedPtrField<v1::Replica>;

// Names of the tables that have lost a partition, by partition.
std::map<uint32_t, std::vector<std::string>> LostBy(const v1::ClusterView& view) {
  std::map<uint32_t, std::vector<std::string>> lost;
  for (const v1::Table& table : view.tables()) {
    for (const uint32_t id :
         std::set<uint32_t>(table.lost_partitions().begin(), table.lost_partitions().end())) {
      lost[id].push_back(table.spec().name());
    }
  }
  return lost;
}

v1::Replica PrimaryOf(const v1::Partition& partition) {
  v1::Replica primary;
  primary.set_server(partition.primary());
  primary.set_shard(partition.shard());
  return primary;
}

struct ServerNote {
  const v1::Server* server;
  std::string state;  // StateWord(), if the server was called
};
using Servers = std::map<uint64_t, ServerNote>;

Servers ServersOf(const ClusterState& state) {
  Servers servers;
  for (const v1::Server& server : state.view.servers()) {
    const bool silent = server.state() == v1::Server::SILENT;
    servers[server.incarnation()] = {&server, silent              ? "silent"
                                              : server.draining() ? "draining"
                                                                  : "alive"};
  }
  for (const ServerState& server : state.servers) {
    const auto it = servers.find(server.server.incarnation());
    if (it != servers.end() && it->second.state != "silent") it->second.state = StateWord(server);
  }
  return servers;
}

// "server-0 shard 1 (zone a, silent)"
std::string CopyWord(const v1::Replica& copy, const Servers& servers) {
  const auto it = servers.find(copy.server());
  if (it == servers.end()) {
    return absl::StrCat("incarnation ", copy.server(), " shard ", copy.shard());
  }
  const v1::Server& server = *it->second.server;
  std::vector<std::string> more;
  if (!server.zone().empty()) more.push_back("zone " + Printable(server.zone()));
  if (it->second.state != "alive") more.push_back(it->second.state);
  return absl::StrCat(Printable(server.name()), " shard ", copy.shard(), more.empty() ? "" : " (",
                      absl::StrJoin(more, ", "), more.empty() ? "" : ")");
}

// "server-0 shard 1, moves to server-2"
std::string PrimaryWord(const v1::Partition& partition, const Servers& servers) {
  if (partition.primary() == 0) return "-";
  std::string word = CopyWord(PrimaryOf(partition), servers);
  const auto to = servers.find(partition.move_to());
  if (to != servers.end() && partition.move_from() == 0) {
    absl::StrAppend(&word, ", moves to ", Printable(to->second.server->name()));
  }
  return word;
}

std::string CopiesWord(const Replicas& copies, const Servers& servers) {
  if (copies.empty()) return "-";
  return absl::StrJoin(copies, ", ", [&](std::string* out, const v1::Replica& copy) {
    out->append(CopyWord(copy, servers));
  });
}

// A follower that is moved is named with its target.
std::string FollowersWord(const v1::Partition& partition, const Servers& servers) {
  std::string word = CopiesWord(partition.followers(), servers);
  const auto from = servers.find(partition.move_from()), to = servers.find(partition.move_to());
  if (from == servers.end() || to == servers.end()) return word;
  return absl::StrCat(word, "; ", Printable(from->second.server->name()), " moves to ",
                      Printable(to->second.server->name()));
}

JsonWriter CopyJson(const v1::Replica& copy, const Servers& servers) {
  const auto it = servers.find(copy.server());
  const v1::Server server = it == servers.end() ? v1::Server() : *it->second.server;
  JsonWriter json;
  json.Add("server", server.name());
  json.Add("incarnation", copy.server());
  json.Add("shard", copy.shard());
  json.Add("zone", server.zone());
  json.Add("state", server.state() == v1::Server::ALIVE ? "alive" : "silent");
  return json;
}

JsonArray FullServersJson(const ClusterState& state, const Servers& servers) {
  JsonArray array;
  for (const v1::FullServer& full : state.full_servers) {
    const auto it = servers.find(full.incarnation());
    JsonArray partitions;
    for (const uint32_t partition : full.partitions()) partitions.Add(partition);
    JsonWriter json;
    json.Add("server", it == servers.end() ? "" : it->second.server->name());
    json.Add("incarnation", full.incarnation());
    json.Add("partitions", partitions);
    json.Add("retry_ms", full.retry_ms());
    array.Add(json);
  }
  return array;
}

JsonArray CopiesJson(const Replicas& copies, const Servers& servers) {
  JsonArray array;
  for (const v1::Replica& copy : copies) array.Add(CopyJson(copy, servers));
  return array;
}

}  // namespace

std::string PartitionsText(const ClusterState& state) {
  constexpr auto kRight = TextTable::Align::kRight;
  const Servers servers = ServersOf(state);
  const auto lost = LostBy(state.view);
  TextTable table({{"PARTITION", kRight},
                   {"EPOCH", kRight},
                   {"CONFIGURATION", kRight},
                   {"PRIMARY"},
                   {"FOLLOWERS"},
                   {"LEARNERS"},
                   {"LOST BY"}});
  for (const v1::Partition& partition : state.view.partitions()) {
    const auto by = lost.find(partition.id());
    table.AddRow({absl::StrCat(partition.id()), absl::StrCat(partition.epoch()),
                  absl::StrCat(partition.configuration()), PrimaryWord(partition, servers),
                  FollowersWord(partition, servers), CopiesWord(partition.learners(), servers),
                  by == lost.end() ? "-" : Printable(absl::StrJoin(by->second, ", "))});
  }
  return absl::StrCat(CopiesText(state), FullServersText(state), "\n", table.ToString());
}

std::string PartitionsJson(const ClusterState& state) {
  const Servers servers = ServersOf(state);
  const auto lost = LostBy(state.view);
  JsonArray partitions;
  for (const v1::Partition& partition : state.view.partitions()) {
    JsonWriter json;
    json.Add("partition", partition.id());
    json.Add("epoch", partition.epoch());
    json.Add("configuration", partition.configuration());
    if (partition.primary() == 0) {
      json.AddNull("primary");
    } else {
      json.Add("primary", CopyJson(PrimaryOf(partition), servers));
    }
    if (const auto to = servers.find(partition.move_to()); to == servers.end()) {
      json.AddNull("moves_to");
    } else {
      json.Add("moves_to", to->second.server->name());
    }
    if (const auto from = servers.find(partition.move_from()); from == servers.end()) {
      json.AddNull("moves_from");
    } else {
      json.Add("moves_from", from->second.server->name());
    }
    json.Add("followers", CopiesJson(partition.followers(), servers));
    json.Add("learners", CopiesJson(partition.learners(), servers));
    JsonArray by;
    if (const auto it = lost.find(partition.id()); it != lost.end()) {
      for (const std::string& name : it->second) by.Add(name);
    }
    json.Add("lost_by", by);
    partitions.Add(json);
  }
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("partitions", partitions);
  json.Add("full_servers", FullServersJson(state, servers));
  return json.ToString();
}

}  // namespace verbena::cli
