#include "proto/base/toml_config.h"

#include <cctype>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace verbena {
namespace {

[[noreturn]] void Fail(const std::string& where, const std::string& what) {
  throw CLI::ConfigError(absl::StrCat(where, ": ", what));
}

// Editors of Windows put one in front of UTF-8, which is no part of the text.
void SkipByteOrderMark(const std::string& file, std::string* line) {
  constexpr absl::string_view kUtf8 = "\xef\xbb\xbf", kUtf16[] = {"\xff\xfe", "\xfe\xff"};
  if (absl::StartsWith(*line, kUtf8)) line->erase(0, kUtf8.size());
  if (absl::StartsWith(*line, kUtf16[0]) || absl::StartsWith(*line, kUtf16[1])) {
    Fail(absl::StrCat(file, ":1"), "the file is UTF-16; save it as UTF-8");
  }
}

// Removes a quoted string from the front of *text and returns its value: a basic string with the
// common escapes, or a literal string without escapes (TOML 1.0, "String").
std::string TakeString(std::string* text, const std::string& where) {
  const char quote = text->front();
  std::string value;
  size_t i = 1;
  for (; i < text->size() && (*text)[i] != quote; ++i) {
    char c = (*text)[i];
    if (c == '\\' && quote == '"') {
      if (++i == text->size()) break;
      switch ((*text)[i]) {
        case 'n':
          c = '\n';
          break;
        case 't':
          c = '\t';
          break;
        case '"':
        case '\\':
          c = (*text)[i];
          break;
        default:
          Fail(where, absl::StrCat("unknown escape \\", std::string(1, (*text)[i])));
      }
    }
    value.push_back(c);
  }
  if (i >= text->size()) Fail(where, absl::StrCat("string has no closing ", std::string(1, quote)));
  text->erase(0, i + 1);
  return value;
}

std::string TakeBareValue(std::string* text, const std::string& where) {
  const size_t end = text->find_first_of(" \t#");
  std::string value = text->substr(0, end);
  text->erase(0, value.size());
  std::string digits;
  for (const char c : value) {
    if (c != '_') digits.push_back(c);  // 1_000_000
  }
  double number = 0;
  if (value != "true" && value != "false" && !absl::SimpleAtod(digits, &number)) {
    Fail(where,
         absl::StrCat("'", value, "' is neither a number nor true or false; strings are quoted"));
  }
  return value == "true" || value == "false" ? value : digits;
}

}  // namespace

std::string TomlConfig::File() const {
  const CLI::Option* option = app_->get_config_ptr();
  return option != nullptr && !option->results().empty() ? option->results().front()
                                                         : "configuration";
}

std::string TomlConfig::WithPlace(const std::string& error) const {
  if (error.rfind("--", 0) != 0) return error;
  const auto it = where_.find(error.substr(2, error.find_first_of(": ") - 2));
  return it == where_.end() ? error : absl::StrCat(it->second, ": ", error);
}

CLI::ConfigItem TomlConfig::ParseLine(const std::string& line, const std::string& where) const {
  if (line.front() == '[') Fail(where, "sections are not used here; write key = value");
  const size_t equals = line.find('=');
  if (equals == std::string::npos) Fail(where, "expected key = value");
  const std::string key(absl::StripAsciiWhitespace(line.substr(0, equals)));
  std::string rest(absl::StripAsciiWhitespace(line.substr(equals + 1)));
  if (key.empty()) Fail(where, "expected a key before '='");
  for (const char c : key) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') {
      Fail(where, absl::StrCat("'", key, "' is not a key"));
    }
  }
  if (rest.empty()) Fail(where, absl::StrCat("'", key, "' has no value"));
  CLI::ConfigItem item;
  item.name = key;
  item.inputs = {rest.front() == '"' || rest.front() == '\'' ? TakeString(&rest, where)
                                                             : TakeBareValue(&rest, where)};
  rest = std::string(absl::StripAsciiWhitespace(rest));
  if (!rest.empty() && rest.front() != '#') {
    Fail(where, absl::StrCat("'", rest, "' after the value of '", key, "'"));
  }
  return item;
}

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  const std::string file = File();
  std::vector<CLI::ConfigItem> parsed;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    if (number == 1) SkipByteOrderMark(file, &line);
    line = std::string(absl::StripAsciiWhitespace(line));
    if (line.empty() || line.front() == '#') continue;
    const std::string where = absl::StrCat(file, ":", number);
    CLI::ConfigItem item = ParseLine(line, where);
    const CLI::Option* option = app_->get_option_no_throw("--" + item.name);
    if (option == nullptr || !option->get_configurable()) {
      std::vector<std::string> known;
      for (const CLI::Option* o : app_->get_options()) {
        const bool shown = !o->get_group().empty() && !o->get_lnames().empty();
        if (o->get_configurable() && shown) known.push_back(o->get_lnames()[0]);
      }
      Fail(where,
           absl::StrCat("unknown key '", item.name, "'; known are ", absl::StrJoin(known, ", ")));
    }
    if (const auto [it, fresh] = where_.emplace(item.name, where); !fresh) {
      Fail(where, absl::StrCat("'", item.name, "' is set already at ", it->second));
    }
    parsed.push_back(std::move(item));
  }
  return parsed;
}

}  // namespace verbena
