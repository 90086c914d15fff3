#include "proto/base/byte_size.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},         {"b", 1},        {"k", 0x1p10},   {"m", 0x1p20},
                           {"g", 0x1p30},   {"t", 0x1p40},   {"kb", 1e3},     {"mb", 1e6},
                           {"gb", 1e9},     {"tb", 1e12},    {"kib", 0x1p10}, {"mib", 0x1p20},
                           {"gib", 0x1p30}, {"tib", 0x1p40}, {"pib", 0x1p50}};

}  // namespace

std::optional<uint64_t> ParseByteSize(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string number = text.substr(0, digits);
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(digits)));
  const auto* known = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const Unit& u) { return unit == u.name; });
  uint64_t whole = 0;
  if (unit.empty() && absl::SimpleAtoi(number, &whole)) return whole;
  double value = 0;
  if (known == std::end(kUnits) || !absl::SimpleAtod(number, &value)) return std::nullopt;
  const double bytes = std::round(value * known->bytes);
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

CLI::Validator ByteSize(uint64_t least, uint64_t most) {
  CLI::Validator size;
  size.description("");
  size.operation([least, most](std::string& text) -> std::string {
    const std::optional<uint64_t> bytes = ParseByteSize(text);
    if (!bytes || *bytes < least || *bytes > most) {
      return absl::StrCat("'", absl::Utf8SafeCEscape(text), "' is not allowed: bytes from ", least,
                          " to ", most, ", also with a unit, such as 512MiB or 64G");
    }
    text = absl::StrCat(*bytes);
    return "";
  });
  return size;
}

}  // namespace verbena
