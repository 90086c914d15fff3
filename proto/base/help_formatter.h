// The `--help` of this project's programs: each option with its argument, then a sentence that is
// wrapped at 100 columns and ends with default and range.
//
//     --shards N                Executor threads, each with a part of the parameters (default: 1;
//                               allowed: 0 to 1024)
//
// docs/generate.py reads this text for the reference pages: at least two blanks, or the end of the
// line, separate the argument from the sentence.
//
// **Thread safety**: one thread.
#ifndef VERBENA_PROTO_BASE_HELP_FORMATTER_H_
#define VERBENA_PROTO_BASE_HELP_FORMATTER_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace verbena {

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    const Argument argument = ArgumentOf(*option);
    std::string head = make_option_name(option, positional);
    const bool flag = option->get_items_expected_max() == 0;
    if (!flag && !positional && !argument.name.empty()) absl::StrAppend(&head, " ", argument.name);
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) head += "...";
    std::string notes;
    const auto note = [&notes](const std::string& text) {
      absl::StrAppend(&notes, notes.empty() ? " (" : "; ", text);
    };
    if (option->get_required() && !positional) note("required");
    if (std::string value = option->get_default_str(); !flag && !value.empty()) {
      if (argument.boolean) value = value == "1" ? "true" : "false";
      note("default: " + ShortNumber(value));
    }
    if (!argument.range.empty()) note("allowed: " + argument.range);
    if (!notes.empty()) notes += ")";
    return Entry(head, option->get_description() + notes);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return Entry(command->get_display_name(true), command->get_description());
  }

 private:
  static constexpr size_t kColumn = 28, kWidth = 100;

  struct Argument {
    std::string name;   // N, FILE, sync|async
    std::string range;  // "0 to 1024", or empty
    bool boolean = false;
  };

  // CLI11's text is the type, then a colon and the description of each check: "UINT:[0 - 1024]",
  // "TEXT:{sync,async}".
  static Argument ArgumentOf(const CLI::Option& option) {
    const std::string full = option.get_type_name();
    const size_t colon = full.find(':');
    Argument argument{full.substr(0, colon), "", false};
    const std::string check = colon == std::string::npos ? "" : full.substr(colon + 1);
    argument.boolean = argument.name == "BOOLEAN";
    const bool unnamed = argument.boolean || argument.name == "TEXT" || argument.name == "UINT" ||
                         argument.name == "INT" || argument.name == "FLOAT";
    if (!unnamed && check.find('[') != 0 && colon != std::string::npos) argument.name = full;
    if (unnamed && argument.name != "TEXT") argument.name = argument.name == "FLOAT" ? "X" : "N";
    if (const size_t to = check.find(" - "); check.find('[') == 0 && to != std::string::npos) {
      argument.range = absl::StrCat(ShortNumber(check.substr(1, to - 1)), " to ",
                                    ShortNumber(check.substr(to + 3, check.size() - to - 4)));
    } else if (check.find('{') == 0) {
      argument.name = absl::StrReplaceAll(check.substr(1, check.size() - 2), {{",", "|"}});
    } else if (unnamed && !check.empty()) {
      argument.name = check;
    }
    return argument;
  }

  // Large powers of two as such.
  static std::string ShortNumber(const std::string& text) {
    uint64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < (1 << 20) || (value & (value - 1)) != 0) {
      return text;
    }
    return absl::StrCat("2^", __builtin_ctzll(value));
  }

  static std::string Entry(const std::string& head, const std::string& text) {
    std::string out = "  " + head;
    size_t column = out.size();
    if (column + 2 > kColumn) {
      out += "\n";
      column = 0;
    }
    std::istringstream words(text);
    bool first = true;
    for (std::string word; words >> word; first = false) {
      if (!first && column + 1 + word.size() > kWidth) {
        out += "\n";
        column = 0;
      }
      const size_t blanks = column < kColumn ? kColumn - column : 1;
      out.append(blanks, ' ') += word;
      column += blanks + word.size();
    }
    return out + "\n";
  }
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_HELP_FORMATTER_H_
