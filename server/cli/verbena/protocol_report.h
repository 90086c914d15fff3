// Protocol versions in the output of `verbena status`: the one in force, and what holds back a
// newer.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_PROTOCOL_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_PROTOCOL_REPORT_H_

#include <string>
#include <vector>

#include "proto/base/json.h"
#include "proto/base/json_fields.h"
#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

// "protocol version 10 in force; 11 follows when these are upgraded: server-2".
std::string ProtocolText(const ClusterState& state);
JsonWriter ProtocolJson(const ClusterState& state);
// Its members.
std::vector<JsonObject> ProtocolParts();

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_PROTOCOL_REPORT_H_
