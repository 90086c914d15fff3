#include "server/cli/verbena/text_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/json.h"

namespace verbena::cli {
namespace {

// The code point of a well-formed sequence.
uint32_t CodePoint(std::string_view sequence) {
  if (sequence.size() == 1) return static_cast<uint8_t>(sequence[0]);
  uint32_t code = static_cast<uint8_t>(sequence[0]) & (0x7f >> sequence.size());
  for (const char c : sequence.substr(1)) code = code << 6 | (static_cast<uint8_t>(c) & 0x3f);
  return code;
}

bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||
         // Marks, embeddings, overrides and isolates of direction; line and paragraph separators.
         code == 0x061c || (code >= 0x200e && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

void AppendEscaped(uint32_t code, std::string* out) {
  if (code == '\n') {
    *out += "\\n";
  } else if (code == '\t') {
    *out += "\\t";
  } else if (code < 0x80) {
    absl::StrAppendFormat(out, "\\x%02x", code);
  } else {
    absl::StrAppendFormat(out, "\\u%04x", code);
  }
}

// Characters, not bytes.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Scaled(double value, std::initializer_list<const char*> units) {
  const char* unit = "";
  for (const char* next : units) {
    unit = next;
    value /= 1000;
    // A value that would be written as 1000.0 uses the next unit.
    if (value < 999.95) break;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 0) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[i])));
      ++i;
      continue;
    }
    const std::string_view sequence = text.substr(i, length);
    if (const uint32_t code = CodePoint(sequence); IsControl(code)) {
      AppendEscaped(code, &out);
    } else if (code == '\\') {
      out += "\\\\";
    } else {
      out += sequence;
    }
    i += length;
  }
  return out;
}

std::string Bytes(uint64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  return Scaled(static_cast<double>(bytes), {"kB", "MB", "GB", "TB", "PB", "EB"});
}

std::string Count(uint64_t count) {
  if (count < 10'000'000) return absl::StrCat(count);
  return Scaled(static_cast<double>(count) / 1000, {"M", "G", "T", "P"});
}

std::string Seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 10) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 3600) return absl::StrFormat("%.1f s", seconds);
  const double minutes = std::floor(seconds / 60);
  return absl::StrFormat("%.0f h %02.0f min", std::floor(minutes / 60), std::fmod(minutes, 60));
}

std::string Fixed(double value, int digits) {
  return std::isfinite(value) ? absl::StrFormat("%.*f", digits, value) : "-";
}

std::string Ranges(std::vector<int64_t> numbers, size_t most) {
  if (numbers.empty()) return "-";
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string out;
  size_t runs = 0;
  for (size_t first = 0; first < numbers.size();) {
    if (runs++ == most) return out + ", ...";
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&out, out.empty() ? "" : ", ", numbers[first]);
    if (last > first) absl::StrAppend(&out, last == first + 1 ? ", " : "-", numbers[last]);
    first = last + 1;
  }
  return out;
}

void TextTable::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void TextTable::AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                           std::string* out) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    const std::string padding(widths[i] - Width(cells[i]), ' ');
    line += columns_[i].align == Align::kRight ? padding + cells[i] : cells[i] + padding;
  }
  const size_t end = line.find_last_not_of(' ');
  absl::StrAppend(out, line.substr(0, end == std::string::npos ? 0 : end + 1), "\n");
}

std::string TextTable::ToString() const {
  std::vector<std::string> titles;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(Width(column.title));
  }
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  AppendLine(titles, widths, &out);
  for (const std::vector<std::string>& row : rows_) AppendLine(row, widths, &out);
  return out;
}

}  // namespace verbena::cli
