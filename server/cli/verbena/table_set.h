// `verbena table set NAME --rate R --param NAME=V`: changes values of a table's optimizer.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_TABLE_SET_H_
#define VERBENA_SERVER_CLI_VERBENA_TABLE_SET_H_

#include <CLI/CLI.hpp>

#include "server/cli/verbena/table_command.h"

namespace verbena::cli {

// Adds the action to `command`. Parsing it sets *chosen.
CLI::App* AddTableSet(CLI::App* command, TableAction* chosen);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TABLE_SET_H_
