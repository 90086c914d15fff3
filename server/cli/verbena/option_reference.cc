#include "server/cli/verbena/option_reference.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/base/json.h"
#include "proto/spec/option_text.h"
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

std::string MarkdownRow(const TableOption& option) {
  const std::string unit = option.unit;
  const std::string applies = OptionApplies(option);
  return absl::StrCat("| `", option.name, "` | ", OptionType(option),
                      unit.empty() ? "" : absl::StrCat(", ", unit), " | ", OptionAllowed(option),
                      " | ", OptionDefault(option), " | ", applies.empty() ? "all tables" : applies,
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
    const std::string applies = OptionApplies(option);
    absl::StrAppend(&text, option.name, ": ", OptionType(option),
                    unit.empty() ? "" : absl::StrCat(", ", unit), "\n  ", option.doc,
                    "\n  allowed: ", OptionAllowed(option), "; default: ", OptionDefault(option),
                    applies.empty() ? "" : absl::StrCat("; applies to: ", applies), "\n");
  }
  return text;
}

std::string OptionReferenceJson() {
  JsonArray options;
  for (const TableOption& option : TableOptions()) {
    JsonWriter json;
    json.Add("name", option.name);
    json.Add("type", OptionType(option));
    json.Add("unit", option.unit);
    json.Add("allowed", OptionAllowed(option));
    json.Add("default", OptionDefault(option));
    json.Add("applies_to", OptionApplies(option));
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
