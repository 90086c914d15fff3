// Writes JSON (RFC 8259), the output of this project's programs for other programs.
//
//     JsonWriter table;
//     table.Add("name", name);
//     JsonArray tables;
//     tables.Add(table);
//     JsonWriter answer;
//     answer.Add("tables", tables);
//     answer.ToString();  // {"tables": [{"name": "weights"}]}
//
// **Thread safety**: one thread per object; JsonString() is pure.
//
// Invariants:
//  1. For any bytes in a string, the text is valid JSON in UTF-8, on one line, and harmless to a
//     terminal that shows it.
#ifndef VERBENA_PROTO_BASE_JSON_H_
#define VERBENA_PROTO_BASE_JSON_H_

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace verbena {

// Quotes the text. Bytes that are not UTF-8 become U+FFFD; control characters are escaped.
std::string JsonString(std::string_view text);
// The shortest text that parses to the same number; "null" for a number that is not finite.
std::string JsonNumber(double value);
template <std::integral T>
std::string JsonNumber(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else {
    return std::to_string(value);
  }
}

// Length in bytes of the well-formed UTF-8 sequence at text[i] (RFC 3629); 0: there is none.
size_t Utf8Length(std::string_view text, size_t i);

class JsonArray;

// An object; its members keep the order in which they were added.
class JsonWriter {
 public:
  void Add(std::string_view key, std::string_view value) { AddRaw(key, JsonString(value)); }
  void Add(std::string_view key, const char* value) { Add(key, std::string_view(value)); }
  void Add(std::string_view key, const std::string& value) { Add(key, std::string_view(value)); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Add(std::string_view key, T value) { AddRaw(key, JsonNumber(value)); }
  // Omits the member if there is no value.
  void Add(std::string_view key, std::optional<double> value) {
    if (value) Add(key, *value);
  }
  void Add(std::string_view key, const JsonWriter& object) { AddRaw(key, object.ToString()); }
  void Add(std::string_view key, const JsonArray& array);
  void AddNull(std::string_view key) { AddRaw(key, "null"); }

  std::string ToString() const { return "{" + members_ + "}"; }

 private:
  void AddRaw(std::string_view key, std::string_view json);
  std::string members_;
};

class JsonArray {
 public:
  void Add(const JsonWriter& object) { AddRaw(object.ToString()); }
  void Add(std::string_view value) { AddRaw(JsonString(value)); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Add(T value) { AddRaw(JsonNumber(value)); }

  std::string ToString() const { return "[" + elements_ + "]"; }

 private:
  void AddRaw(std::string_view json);
  std::string elements_;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_JSON_H_
