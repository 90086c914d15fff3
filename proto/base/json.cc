#include "proto/base/json.h"

#include <charconv>
#include <cmath>
#include <cstddef>

namespace verbena {
namespace {

void AppendEscape(unsigned code, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  *out += "\\u00";
  out->push_back(kHex[code >> 4]);
  out->push_back(kHex[code & 15]);
}

void AppendAscii(char c, std::string* out) {
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      if (static_cast<uint8_t>(c) >= 0x20 && c != 0x7f) {
        out->push_back(c);
      } else {
        AppendEscape(static_cast<uint8_t>(c), out);
      }
  }
}

}  // namespace

size_t Utf8Length(std::string_view text, size_t i) {
  const auto at = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
  const uint8_t lead = at(i);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((at(i + k) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = at(i + 1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool surrogate = lead == 0xed && second > 0x9f;
  const bool too_great = lead == 0xf4 && second > 0x8f;
  return overlong || surrogate || too_great ? 0 : length;
}

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 1) {
      AppendAscii(text[i], &out);
    } else if (length == 0) {
      out += "\\ufffd";
    } else if (length == 2 && text[i] == '\xc2' && static_cast<uint8_t>(text[i + 1]) < 0xa0) {
      AppendEscape(static_cast<uint8_t>(text[i + 1]), &out);  // C1: some terminals interpret these
    } else {
      out += text.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  out.push_back('"');
  return out;
}

std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

void JsonWriter::AddRaw(std::string_view key, std::string_view json) {
  if (!members_.empty()) members_ += ", ";
  members_ += JsonString(key);
  members_ += ": ";
  members_ += json;
}

void JsonWriter::Add(std::string_view key, const JsonArray& array) {
  AddRaw(key, array.ToString());
}

void JsonArray::AddRaw(std::string_view json) {
  if (!elements_.empty()) elements_ += ", ";
  elements_ += json;
}

}  // namespace verbena
