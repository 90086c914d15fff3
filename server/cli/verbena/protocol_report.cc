#include "server/cli/verbena/protocol_report.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/protocol_version.h"
#include "server/cli/verbena/format.h"

namespace verbena::cli {
namespace {

struct Upgrade {
  uint32_t newest = 0;             // version that some program of the cluster speaks
  std::vector<std::string> older;  // programs that do not
};

Upgrade UpgradeOf(const ClusterState& state) {
  Upgrade upgrade;
  const uint32_t coordinator = ProtocolsOf(state.coordinator_protocol).newest;
  upgrade.newest = std::max(coordinator, ProtocolInForce(state.view));
  for (const v1::Server& server : state.view.servers()) {
    upgrade.newest = std::max(upgrade.newest, ProtocolsOf(server.protocol()).newest);
  }
  if (coordinator < upgrade.newest) upgrade.older.emplace_back("coordinator");
  for (const v1::Server& server : state.view.servers()) {
    if (ProtocolsOf(server.protocol()).newest < upgrade.newest) {
      upgrade.older.push_back(Printable(server.name()));
    }
  }
  return upgrade;
}

}  // namespace

std::string ProtocolText(const ClusterState& state) {
  const Upgrade upgrade = UpgradeOf(state);
  const uint32_t in_force = ProtocolInForce(state.view);
  std::string text = absl::StrCat("protocol version ", in_force, " in force");
  if (upgrade.newest == in_force) return text;
  absl::StrAppend(&text, "; ", upgrade.newest, " follows when ");
  return upgrade.older.empty()
             ? absl::StrCat(text, "all expected servers have joined")
             : absl::StrCat(text, "these are upgraded: ", absl::StrJoin(upgrade.older, ", "));
}

JsonWriter ProtocolJson(const ClusterState& state) {
  const Upgrade upgrade = UpgradeOf(state);
  JsonArray older;
  for (const std::string& name : upgrade.older) older.Add(name);
  JsonWriter json;
  json.Add("in_force", ProtocolInForce(state.view));
  json.Add("newest", upgrade.newest);
  json.Add("older", older);
  json.Add("coordinator_version", state.coordinator_version);
  return json;
}

std::vector<JsonObject> ProtocolParts() {
  return {{"protocol",
           "",
           {{"in_force", "number",
             "Protocol version in force: the coordinator and all servers speak it."},
            {"newest", "number", "Newest version that any of them speaks."},
            {"older", "list of text", "Programs that do not speak `newest`, to be upgraded."},
            {"coordinator_version", "text", "Version of the coordinator's program."}}}};
}

}  // namespace verbena::cli
