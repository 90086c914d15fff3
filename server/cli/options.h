// verbenad's command line and configuration file.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_OPTIONS_H_
#define VERBENA_SERVER_CLI_OPTIONS_H_

#include <optional>
#include <string>

#include "server/node_options.h"
#include "verbena/version.h"

namespace verbena::server {

inline constexpr char kVersion[] = VERBENA_VERSION_STRING;
inline constexpr int kUsageError = 2;

struct DaemonOptions {
  NodeOptions node;
  std::string log_level = "info";
  std::string ready_file;
  bool stop_at_stdin_end = false;
};

struct ParsedOptions {
  DaemonOptions options;
  // Set when there is nothing to run: --help, --version, or an error.
  std::optional<int> exit_code;
  std::string message;  // for stdout when exit_code is 0, else for stderr
};

ParsedOptions ParseCommandLine(int argc, const char* const* argv);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CLI_OPTIONS_H_
