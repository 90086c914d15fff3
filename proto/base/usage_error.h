// The errors of wrong command lines, alike in all programs.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BASE_USAGE_ERROR_H_
#define VERBENA_PROTO_BASE_USAGE_ERROR_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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
    return absl::StrCat(text.substr(0, at),
                        " needs a value: ", text.substr(type, text.find(' ', type) - type));
  }
  return text;
}

// The line behind the error.
inline std::string UsageHint(const CLI::App& app) {
  return absl::StrCat("'", WordsOf(CommandOf(app)), " --help' has what is allowed.\n");
}

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_USAGE_ERROR_H_
