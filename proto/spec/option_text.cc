#include "proto/spec/option_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/option_check.h"
#include "proto/spec/option_value.h"

namespace verbena {

std::string OptionType(const TableOption& option) {
  const auto& field = FieldOf(option);
  if (field.is_map()) return "map of numbers";
  if (field.enum_type() != nullptr) return "word";
  const std::string type = field.cpp_type_name();
  return field.is_repeated() ? absl::StrCat("list of ", type) : type;
}

std::string OptionAllowed(const TableOption& option) {
  if (FieldOf(option).enum_type() == nullptr) return AllowedText(option, TableKind::kAny);
  const std::string dense = absl::StrJoin(EnumWords(option, TableKind::kDense), ", ");
  const std::string rows = absl::StrJoin(EnumWords(option, TableKind::kEmbedding), ", ");
  return dense == rows ? dense : absl::StrCat(dense, "; embedding tables: ", rows);
}

std::string OptionDefault(const TableOption& option) {
  if (option.text == TextRule::kName || option.text == TextRule::kLabel) return "required";
  const bool positive = option.min > 0 || option.above_min;
  if (positive && option.zero == nullptr && option.default_value == 0) return "required";
  return OptionText(option, {});
}

std::string OptionApplies(const TableOption& option) {
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

}  // namespace verbena
