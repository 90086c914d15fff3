// Text forms and bounds of values of a specification, shared by the files that check one.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_SPEC_TEXT_H_
#define VERBENA_PROTO_SPEC_SPEC_TEXT_H_

#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace verbena {

inline constexpr size_t kMaxNameBytes = 128;

// The shortest text that parses to the same number.
inline std::string Number(double value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

// Makes a name from a peer safe to print and limits its length.
inline std::string Quoted(const std::string& text) {
  const bool cut = text.size() > kMaxNameBytes;
  return absl::StrCat("\"", absl::CHexEscape(cut ? text.substr(0, kMaxNameBytes) : text),
                      cut ? "..." : "", "\"");
}

// Parameters are f32: a larger number would become an infinity later.
inline bool FiniteAsF32(double value) {
  return std::isfinite(value) && std::fabs(value) <= FLT_MAX;
}

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_SPEC_TEXT_H_
