// Every member of the JSON output of `verbena COMMAND --json`. A writer of JSON in this folder and
// its description here change together; the tests of the commands fail if they differ.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_JSON_FIELDS_H_
#define VERBENA_SERVER_CLI_VERBENA_JSON_FIELDS_H_

#include <vector>

#include "proto/base/json_fields.h"

namespace verbena::cli {

// Objects of commands, named as the command is typed, and the parts that they have.
const std::vector<JsonObject>& JsonObjects();

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_JSON_FIELDS_H_
