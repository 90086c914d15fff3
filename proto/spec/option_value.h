// The value of a table option in a specification, by reflection on verbena.v1.TableSpec.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTION_VALUE_H_
#define VERBENA_PROTO_SPEC_OPTION_VALUE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/spec/table_options.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

const google::protobuf::FieldDescriptor& FieldOf(const TableOption& option);
// The message that has the field: the specification itself, or one in it. A message that is not
// set reads as its defaults; MutableMessageOf() creates it.
const google::protobuf::Message& MessageOf(const TableOption& option, const v1::TableSpec& spec);
google::protobuf::Message* MutableMessageOf(const TableOption& option, v1::TableSpec* spec);
// Clears the message of the option's group.
void ClearGroupOf(const TableOption& option, v1::TableSpec* spec);

// Whether the field has a value other than zero, an empty text or an empty list.
bool IsSet(const TableOption& option, const v1::TableSpec& spec);
// Whether it is not set, or has its default value.
bool HasDefault(const TableOption& option, const v1::TableSpec& spec);
// Whether it has a meaning in this kind of table with the value of the option `when`.
bool Applies(const TableOption& option, const v1::TableSpec& spec);

// The number of an enum option; of one that is not set, its default.
int EnumOf(const TableOption& option, const v1::TableSpec& spec);
// "bf16" for DTYPE_BF16, "ttl_steps" for Eviction::TTL_STEPS; a number that this build does not
// know as it is.
std::string EnumWord(const google::protobuf::EnumDescriptor& type, int number);
// The enum's values in a kind of table, without the unspecified one.
std::vector<int> EnumValues(const TableOption& option, TableKind kind);
std::vector<std::string> EnumWords(const TableOption& option, TableKind kind = TableKind::kAny);

// The elements of a list as texts that parse to the same numbers.
std::vector<std::string> ListTexts(const TableOption& option, const v1::TableSpec& spec);
// The only map among the options, in the order of names: a protobuf map has none.
std::map<std::string, double> ParametersOf(const v1::TableSpec& spec);
// The text of a string option, or its default.
std::string StringOf(const TableOption& option, const v1::TableSpec& spec);
// Whether values are doubles: the field, the elements of its list, or the parameters.
bool IsReal(const TableOption& option);
// A bound or default of a number option.
std::string BoundText(const TableOption& option, double bound);

// Its value, or its default where it is not set: `f32`, `0.5`, `"adam"`, `[128, 64]`.
std::string OptionText(const TableOption& option, const v1::TableSpec& spec);

// Sets an option from a command line: a word, a number, true or false, a text; lists "1,2"; maps
// "beta1=0.9,beta2=0.99". INVALID_ARGUMENT: the text is none of these. Ranges are not checked.
absl::Status SetOption(const TableOption& option, const std::string& text, v1::TableSpec* spec);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTION_VALUE_H_
