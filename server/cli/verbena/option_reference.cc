#include "server/cli/verbena/option_reference.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/base/json.h"
#include "proto/spec/option_check.h"
#include "proto/spec/option_value.h"
#include "proto/spec/table_options.h"

namespace verbena::cli {
namespace {

constexpr char kIntroduction[] =
    "# Table options\n\n"
    "Options of a new table, from their descriptors (`proto/spec/table_options.cc`); `verbena "
    "table "
    "options` prints\nthis page. They are the fields of `verbena.v1.TableSpec` and cannot be "
    "changed "
    "after the table's\ncreation, except for [values of the optimizer]"
    "(../optimizers.md#changing-values). In C they are members of "
    "`verbena_table_spec`;\n`verbena-train "
    "--table-option NAME=VALUE` sets them for its tables.\n\n"
    "An option that is not set has its default. One that does not apply to a table must not be "
    "set. "
    "Explanations:\n[optimizers](../optimizers.md), [embedding tables](../embedding-tables.md), "
    "[codecs](../codecs.md),\n[16-bit numbers](../client-guide.md#16-bit-numbers).\n";

std::string TypeText(const TableOption& option) {
  const auto& field = FieldOf(option);
  if (field.is_map()) return "map of numbers";
  if (field.enum_type() != nullptr) return "word";
  const std::string type = field.cpp_type_name();
  return field.is_repeated() ? absl::StrCat("list of ", type) : type;
}

std::string ReferenceAllowed(const TableOption& option) {
  if (FieldOf(option).enum_type() == nullptr) return AllowedText(option, TableKind::kAny);
  const std::string dense = absl::StrJoin(EnumWords(option, TableKind::kDense), ", ");
  const std::string rows = absl::StrJoin(EnumWords(option, TableKind::kEmbedding), ", ");
  return dense == rows ? dense : absl::StrCat(dense, "; embedding tables: ", rows);
}

std::string DefaultText(const TableOption& option) {
  if (option.text == TextRule::kName || option.text == TextRule::kLabel) return "required";
  const bool positive = option.min > 0 || option.above_min;
  if (positive && option.zero == nullptr && option.default_value == 0) return "required";
  return OptionText(option, {});
}

// The tables to which it applies; empty: all.
std::string AppliesText(const TableOption& option) {
  std::vector<std::string> parts;
  if (option.kind == TableKind::kDense) parts.push_back("dense tables");
  if (option.kind == TableKind::kEmbedding) parts.push_back("embedding tables");
  if (option.when != nullptr) {
    const TableOption& when = *FindTableOption(option.when);
    std::vector<std::string> words;
    for (const int number : EnumValues(when, TableKind::kAny)) {
      if ((option.when_values >> number & 1) == 0) continue;
      words.push_back(EnumWord(*FieldOf(when).enum_type(), number));
    }
    parts.push_back(absl::StrCat(option.when, " ", absl::StrJoin(words, " or ")));
  }
  return absl::StrJoin(parts, ", ");
}

std::string MarkdownRow(const TableOption& option) {
  const std::string unit = option.unit;
  const std::string applies = AppliesText(option);
  return absl::StrCat("| `", option.name, "` | ", TypeText(option),
                      unit.empty() ? "" : absl::StrCat(", ", unit), " | ", ReferenceAllowed(option),
                      " | ", DefaultText(option), " | ", applies.empty() ? "all tables" : applies,
                      " | ", absl::StrReplaceAll(option.doc, {{"|", "\\|"}}), " |\n");
}

std::string GroupMarkdown(const TableOptionGroup& group) {
  const std::string name = group.name;
  std::string text =
      name.empty() ? "\n## General\n\n" : absl::StrCat("\n## ", name, "\n\n", group.doc, "\n\n");
  absl::StrAppend(&text,
                  "| option | type, unit | allowed | default | applies to | meaning |\n"
                  "|---|---|---|---|---|---|\n");
  for (const TableOption& option : TableOptions()) {
    if (GroupOf(option) == name) text += MarkdownRow(option);
  }
  return text;
}

}  // namespace

std::string OptionReferenceText() {
  std::string text;
  for (const TableOption& option : TableOptions()) {
    const std::string unit = option.unit;
    const std::string applies = AppliesText(option);
    absl::StrAppend(&text, option.name, ": ", TypeText(option),
                    unit.empty() ? "" : absl::StrCat(", ", unit), "\n  ", option.doc,
                    "\n  allowed: ", ReferenceAllowed(option), "; default: ", DefaultText(option),
                    applies.empty() ? "" : absl::StrCat("; applies to: ", applies), "\n");
  }
  return text;
}

std::string OptionReferenceJson() {
  JsonArray options;
  for (const TableOption& option : TableOptions()) {
    JsonWriter json;
    json.Add("name", option.name);
    json.Add("type", TypeText(option));
    json.Add("unit", option.unit);
    json.Add("allowed", ReferenceAllowed(option));
    json.Add("default", DefaultText(option));
    json.Add("applies_to", AppliesText(option));
    json.Add("meaning", option.doc);
    options.Add(json);
  }
  JsonWriter json;
  json.Add("options", options);
  return json.ToString() + "\n";
}

std::string OptionReferenceMarkdown() {
  std::string text = kIntroduction;
  for (const TableOptionGroup& group : TableOptionGroups()) text += GroupMarkdown(group);
  return text;
}

}  // namespace verbena::cli
