// The numbers of command lines and configuration files.
//
// CLI11 takes "-1" for the greatest unsigned number, a number that has too many digits for the
// greatest or least one, and "010" for 8. "nan" is in each of its ranges.
//
// **Thread safety**: pure functions, and one thread for a CLI::App.
#ifndef VERBENA_PROTO_BASE_NUMBER_VALUES_H_
#define VERBENA_PROTO_BASE_NUMBER_VALUES_H_

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace verbena {

// A decimal number, or a hexadecimal one after 0x. None: it is something else, or T has none such.
template <typename T>
std::optional<T> IntegerOf(const std::string& text) {
  T value = 0;
  if (absl::StartsWithIgnoreCase(text, "0x")) {
    uint64_t bits = 0;
    const bool fits = absl::SimpleHexAtoi(text, &bits) &&
                      bits <= static_cast<uint64_t>(std::numeric_limits<T>::max());
    return fits ? std::optional<T>(static_cast<T>(bits)) : std::nullopt;
  }
  return absl::SimpleAtoi(text, &value) ? std::optional<T>(value) : std::nullopt;
}

// The name of checks of integers.
inline constexpr char kOfIntegers[] = "integer";

// As CLI11's range, which the help has, for all texts. T: an integer of 32 or 64 bits.
template <typename T>
CLI::Validator InRange(T least, T most) {
  CLI::Validator range;
  range.name(kOfIntegers).description(absl::StrCat("[", least, " - ", most, "]"));
  range.operation([least, most](std::string& text) -> std::string {
    const std::optional<T> value = IntegerOf<T>(text);
    if (value && *value >= least && *value <= most) return "";
    return absl::StrCat("'", text, "' is not allowed: an integer from ", least, " to ", most);
  });
  return range;
}

// The range of options without one of their own.
template <typename T>
CLI::Validator AnyInteger() {
  return InRange<T>(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()).description("");
}

// Writes numbers as CLI11 reads them. Other texts are left to the option's check.
inline CLI::Validator PlainInteger() {
  CLI::Validator plain;
  plain.description("");
  plain.operation([](std::string& text) -> std::string {
    if (const std::optional<uint64_t> value = IntegerOf<uint64_t>(text)) {
      text = absl::StrCat(*value);
    } else if (const std::optional<int64_t> negative = IntegerOf<int64_t>(text)) {
      text = absl::StrCat(*negative);
    }
    return "";
  });
  return plain;
}

// A finite number; `noun`: "a number", "seconds". The help of the option has the range.
inline CLI::Validator NumberIn(double least, double most, const std::string& noun = "a number") {
  CLI::Validator range;
  range.description("");
  range.operation([least, most, noun](std::string& text) -> std::string {
    double value = 0;
    if (absl::SimpleAtod(text, &value) && value >= least && value <= most) return "";
    return absl::StrCat("'", text, "' is not allowed: ", noun, " from ", least, " to ", most);
  });
  return range;
}

inline CLI::Validator FiniteNumber() {
  CLI::Validator finite;
  finite.description("");
  finite.operation([](std::string& text) -> std::string {
    double value = 0;
    // Other texts are left to the option's own errors.
    if (!absl::SimpleAtod(text, &value) || std::isfinite(value)) return "";
    return absl::StrCat("'", text, "' is not allowed: a finite number");
  });
  return finite;
}

inline bool HasRange(CLI::Option* option) {
  try {
    return option->get_validator(kOfIntegers) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

// Checks all options of `app` and its subcommands that take numbers, after they have been added
// with their own checks, which come first.
inline void CheckNumbers(CLI::App* app) {
  const auto is = [](const std::string& type, const std::string& name) {
    return type == name || absl::StartsWith(type, name + ":") || absl::StartsWith(type, name + " ");
  };
  for (CLI::Option* option : app->get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::string type = option->get_type_name();
    // "N": these have checks of their own.
    const bool checked = is(type, "N") || HasRange(option);
    if (is(type, "UINT")) option->check(AnyInteger<uint64_t>());
    if (is(type, "INT")) option->check(AnyInteger<int64_t>());
    if (is(type, "FLOAT")) option->check(FiniteNumber());
    if (checked || is(type, "UINT") || is(type, "INT")) option->transform(PlainInteger());
  }
  const auto all = [](CLI::App* /*command*/) { return true; };
  for (CLI::App* command : app->get_subcommands(all)) CheckNumbers(command);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_NUMBER_VALUES_H_
