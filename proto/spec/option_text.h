// Descriptions of a table option for people, from its descriptor: the reference page and the C
// interface have them.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTION_TEXT_H_
#define VERBENA_PROTO_SPEC_OPTION_TEXT_H_

#include <string>

#include "proto/spec/table_options.h"

namespace verbena {

// "word", "list of uint64", "double", ...; without the unit.
std::string OptionType(const TableOption& option);
// Allowed values: "f32, bf16, f16", "1 and more".
std::string OptionAllowed(const TableOption& option);
// The default value, or "required".
std::string OptionDefault(const TableOption& option);
// The tables to which it applies: "embedding tables"; empty: all.
std::string OptionApplies(const TableOption& option);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTION_TEXT_H_
