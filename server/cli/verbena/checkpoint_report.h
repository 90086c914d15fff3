// Reports of `verbena checkpoint`: text for people, JSON for programs.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_REPORT_H_

#include <string>
#include <vector>

#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"

namespace verbena::cli {

std::string CheckpointsText(const std::vector<checkpoint::Listed>& all);
std::string CheckpointsJson(const std::string& directory,
                            const std::vector<checkpoint::Listed>& all);
std::string CheckpointText(const checkpoint::CheckpointReader& reader);
std::string CheckpointJson(const checkpoint::CheckpointReader& reader,
                           const std::vector<std::string>& passed_over);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_REPORT_H_
