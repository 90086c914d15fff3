// What both the text and the JSON of a report say of the same things.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_WORDS_H_
#define VERBENA_SERVER_CLI_VERBENA_WORDS_H_

#include <cstdint>
#include <map>
#include <string>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

// "CONSISTENCY_SYNC" as "sync"; a value that this build does not know as its number.
std::string TypeWord(v1::DType dtype);
std::string ConsistencyWord(v1::Consistency consistency);

// Of the parameters, without optimizer state.
uint64_t TableBytes(const v1::TableSpec& spec);

// Open lanes of each worker by transport.
using LaneCounts = std::map<std::string, uint64_t>;
std::map<uint64_t, LaneCounts> LanesOfWorkers(const ClusterState& state);

int Observers(const v1::Job& job);  // members that only pull

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_WORDS_H_
