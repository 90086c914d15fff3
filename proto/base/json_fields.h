// Descriptions of the JSON that a program prints: each member of each object, with type and unit.
// docs/reference/json.md is made of them (docs/generate.sh), and tests compare real output with
// them.
//
// A type is `text`, `number`, `boolean`, `numbers by name` (an object whose member names vary), or
// the name of another object; before it may stand `list of `, behind it ` or null` or `, optional`.
//
// **Thread safety**: pure data.
#ifndef VERBENA_PROTO_BASE_JSON_FIELDS_H_
#define VERBENA_PROTO_BASE_JSON_FIELDS_H_

#include <vector>

namespace verbena {

struct JsonField {
  const char* name;
  const char* type;
  const char* meaning;  // with the unit
};

struct JsonObject {
  const char* name;  // of the command that prints it, or of a part that several objects have
  const char* about;
  std::vector<JsonField> fields;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_JSON_FIELDS_H_
