// Text output: aligned columns, amounts with units, names that are safe for a terminal.
//
// **Thread safety**: pure functions; one thread per table.
#ifndef VERBENA_SERVER_CLI_VERBENA_TEXT_TABLE_H_
#define VERBENA_SERVER_CLI_VERBENA_TEXT_TABLE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::cli {

// A text that a peer chose, on one line and unambiguous: control characters (also those of Unicode
// that change the direction of text), backslashes and bytes that are not UTF-8 are escaped as in C.
std::string Printable(std::string_view text);

std::string Bytes(uint64_t bytes);    // "0 B", "999 B", "1.0 kB", "12.3 MB": decimal units
std::string Count(uint64_t count);    // "9999999", "12.3 M"
std::string Seconds(double seconds);  // "0.02 s", "12.3 s", "2 h 05 min"
std::string Fixed(double value, int digits);
// Sorted numbers with runs: "0-3, 7"; "-" for none. After `most` runs: ", ...".
std::string Ranges(std::vector<int64_t> numbers, size_t most = 8);

// Numbers go to the right of their column, other text to the left; two spaces between columns, none
// at the end of a line.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit TextTable(std::initializer_list<Column> columns) : columns_(columns) {}
  // As many cells as there are columns; missing ones are empty.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string ToString() const;

 private:
  void AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                  std::string* out) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TEXT_TABLE_H_
