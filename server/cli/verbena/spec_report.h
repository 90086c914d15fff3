// A table's options in reports, by their descriptors (proto/spec/table_options.h).
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_SPEC_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_SPEC_REPORT_H_

#include <initializer_list>
#include <string>

#include "proto/base/json.h"
#include "verbena/v1/table.pb.h"

namespace verbena::cli {

// Adds each option under its name, and a group of options as an object. Null: an option or a group
// that has no meaning in this table.
void AddOptions(const v1::TableSpec& spec, JsonWriter* json);

// The value of an option as in AddOptions(), for a column: "bf16", "ssp".
std::string OptionWord(const char* option, const v1::TableSpec& spec);

// "eviction.kind lru, eviction.max_rows 500": options without a column of their own that differ
// from their defaults; empty: none. Names and initial values are left out.
std::string OtherOptionsText(const v1::TableSpec& spec);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_SPEC_REPORT_H_
