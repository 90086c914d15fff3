// The errors of wrong command lines, alike in all programs.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BASE_USAGE_ERROR_H_
#define VERBENA_PROTO_BASE_USAGE_ERROR_H_

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/base/number_values.h"

namespace verbena {

// The command, or the action of a command, that was understood; else the program.
inline const CLI::App* CommandOf(const CLI::App& app) {
  const CLI::App* last = &app;
  while (!last->get_subcommands().empty()) last = last->get_subcommands().front();
  return last;
}

// "verbena table set".
inline std::string WordsOf(const CLI::App* command) {
  std::string words = command->get_name();
  for (const CLI::App* parent = command->get_parent(); parent != nullptr;
       parent = parent->get_parent()) {
    words = absl::StrCat(parent->get_name(), " ", words);
  }
  return words;
}

// "--x" of an error that begins with it; else empty.
inline std::string OptionOf(const std::string& text) {
  return text.substr(0, std::min(text.find_first_of(": "), text.size()));
}

// The values that an option without a check takes.
inline std::string ValuesOf(const CLI::App& command, const std::string& name) {
  const CLI::Option* const option = command.get_option_no_throw(name);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  // More than 32 bits; others have been refused before (CheckNumbers()).
  if (type == "UINT") return "an integer from 0 to 4294967295";
  if (type == "INT") return "an integer from -2147483648 to 2147483647";
  return "a number";
}

// What an option's type says of its values, without CLI11's own names: "SECONDS", "[0 - 64]"; may
// be empty.
inline std::string NamedValues(const std::string& type) {
  for (const std::string own : {"UINT", "INT", "FLOAT", "TEXT"}) {
    if (type == own) return "";
    for (const std::string between : {":", " in "}) {
      const std::string own_words = own + between;
      // "INT:INT in [1 - 99]" has both.
      if (type.rfind(own_words, 0) == 0) return NamedValues(type.substr(own_words.size()));
    }
  }
  return type;
}

// CLI11's texts, with option, value and allowed values. Others are as they are.
inline std::string InOurWords(const CLI::App& command, const std::string& text) {
  const auto wrong = [](const std::string& name, const std::string& value,
                        const std::string& allowed) {
    return absl::StrCat(name, ": '", value, "' is not allowed: ", allowed);
  };
  const auto after = [&text](const std::string& words, size_t at) {
    return text.substr(at + words.size());
  };
  // "Could not convert: --x = a".
  const std::string convert = "Could not convert: ", equals = " = ";
  if (const size_t at = text.find(equals); text.rfind(convert, 0) == 0 && at != std::string::npos) {
    const std::string name = text.substr(convert.size(), at - convert.size());
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option != nullptr && option->get_items_expected_max() == 0) return name + " takes no value";
    return wrong(name, after(equals, at), ValuesOf(command, name));
  }
  const std::string name = OptionOf(text);
  const size_t value = name.size() + 2;  // behind ": "
  // "--x: a not in {b,c}".
  const std::string not_in = " not in {";
  if (const size_t at = text.find(not_in); at != std::string::npos && at >= value) {
    std::string allowed = after(not_in, at);
    const size_t end = allowed.find('}');
    const std::string rest = end == std::string::npos ? "" : allowed.substr(end + 1);
    allowed = absl::StrReplaceAll(allowed.substr(0, end), {{",", ", "}});
    return wrong(name, text.substr(value, at - value), allowed + rest);
  }
  // "--x: Value a not in range 1 to 2".
  const std::string is = "Value ", range = " not in range ";
  if (const size_t at = text.find(range);
      at != std::string::npos && text.compare(value, is.size(), is) == 0) {
    const size_t begin = value + is.size();
    return wrong(name, text.substr(begin, at - begin), after(range, at));
  }
  const std::string excludes = " excludes ";
  if (const size_t at = text.find(excludes); at != std::string::npos && at == name.size()) {
    return absl::StrCat(name, " and ", after(excludes, at),
                        " exclude each other; give one of them");
  }
  // "--x: At Most 1 required but received 2", "Expected exactly 1 arguments to --x, got 2".
  const std::string most = ": At Most 1 required but received ";
  if (const size_t at = text.find(most); at != std::string::npos && at == name.size()) {
    return absl::StrCat(name, " is given ", after(most, at), " times; allowed: once");
  }
  const std::string exactly = "Expected exactly 1 arguments to ", got = ", got ";
  if (const size_t at = text.find(got); text.rfind(exactly, 0) == 0 && at != std::string::npos) {
    return absl::StrCat(text.substr(exactly.size(), at - exactly.size()), " is given ",
                        after(got, at), " times; allowed: once");
  }
  if (text == absl::StrCat(name, " was given a disallowed flag override") ||
      text == absl::StrCat(name, ": Should be true/false or a number")) {
    return absl::StrCat(name, " takes no value");
  }
  return text;
}

// What is wrong, with the argument, its value and what is allowed, for which CLI11 has no words.
// The value is as it was given: the caller escapes its control characters.
inline std::string UsageError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = CommandOf(app);
  const bool program = command == &app;
  std::vector<std::string> choices;
  for (const CLI::App* choice : command->get_subcommands([](const CLI::App*) { return true; })) {
    choices.push_back(choice->get_name());
  }
  const std::string allowed = absl::StrJoin(choices, ", ");
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) {
    const std::string& first = unknown.front();
    const std::string of = program ? "" : absl::StrCat(" of '", WordsOf(command), "'");
    if (first.rfind('-', 0) == 0) return absl::StrCat("unknown option '", first, "'", of);
    if (choices.empty()) return absl::StrCat("unexpected argument '", first, "'", of);
    if (program) return absl::StrCat("unknown command '", first, "'; allowed: ", allowed);
    return absl::StrCat("unknown action '", first, "' of ", command->get_name(),
                        "; allowed: ", allowed);
  }
  const std::string text = error.what();
  if (error.get_name() == "RequiredError" && !choices.empty()) {
    if (program) return absl::StrCat("a command is needed: ", allowed);
    return absl::StrCat(command->get_name(), " needs an action: ", allowed);
  }
  // "--wait: 1 required SECONDS missing".
  const std::string missing = ": 1 required ";
  if (const size_t at = text.find(missing);
      error.get_name() == "ArgumentMismatch" && at != std::string::npos) {
    const size_t type = at + missing.size();
    const std::string values = NamedValues(text.substr(type, text.rfind(" missing") - type));
    return absl::StrCat(text.substr(0, at), " needs a value", values.empty() ? "" : ": ", values);
  }
  return InOurWords(*command, text);
}

// The line behind the error.
inline std::string UsageHint(const CLI::App& app) {
  return absl::StrCat("'", WordsOf(CommandOf(app)), " --help' has what is allowed.\n");
}

// Parses a command line. "--x=" gives the empty value, for which CLI11 takes the next argument.
inline void ParseArguments(CLI::App* app, int argc, const char* const* argv) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(argc));
  std::vector<const char*> arguments;
  bool options = true;  // until "--"
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    options &= argument != "--";
    if (i > 0 && options && argument.size() > 3 && argument.rfind("--", 0) == 0 &&
        argument.find('=') == argument.size() - 1) {
      names.push_back(argument.substr(0, argument.size() - 1));
      arguments.push_back(names.back().c_str());
      arguments.push_back("");
    } else {
      arguments.push_back(argv[i]);
    }
  }
  app->parse(static_cast<int>(arguments.size()), arguments.data());
}

// Parses the command line of a program whose errors have no place in a file. Returns the exit
// status with which it ends: 0 after help, which is printed; 2 for a wrong one, with the error.
inline std::optional<int> ParseOrExit(CLI::App* app, int argc, const char* const* argv,
                                      std::ostream& errors) {
  if (app->get_name().empty()) {
    const std::string path = argv[0];
    app->name(path.substr(path.rfind('/') + 1));
  }
  CheckNumbers(app);
  try {
    ParseArguments(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app->exit(help);
  } catch (const CLI::ParseError& error) {
    errors << WordsOf(app) << ": " << UsageError(*app, error) << "\n" << UsageHint(*app);
    return 2;
  }
  return std::nullopt;
}

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_USAGE_ERROR_H_
