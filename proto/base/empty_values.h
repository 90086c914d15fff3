// Refuses an empty value of a command line's or configuration file's option.
//
// An option that takes a text, a path for example, is usually unset when it is empty. So a script's
// unset variable, `--operator-token-file "$FILE"`, would silently turn off a requested feature,
// here tokens. Earlier checks of the option come first.
//
// **Thread safety**: one thread.
#ifndef VERBENA_PROTO_BASE_EMPTY_VALUES_H_
#define VERBENA_PROTO_BASE_EMPTY_VALUES_H_

#include <CLI/CLI.hpp>
#include <set>
#include <string>

namespace verbena {

// For `app` and its subcommands, after their options have been added. `allowed`: names of options
// for which an empty text is a value of its own.
inline void RefuseEmptyValues(CLI::App* app, const std::set<std::string>& allowed = {}) {
  for (CLI::Option* option : app->get_options()) {
    const bool flag = option->get_items_expected_max() == 0;
    const char* wrong = option->get_required()
                            ? "'' is not allowed: give a value"
                            : "'' is not allowed: give a value, or leave the option out";
    CLI::Validator check;
    check.description("");
    check.operation(
        [wrong](std::string& text) -> std::string { return text.empty() ? wrong : ""; });
    if (!flag && allowed.count(option->get_name()) == 0) option->check(check);
  }
  const auto all = [](CLI::App* /*command*/) { return true; };
  for (CLI::App* command : app->get_subcommands(all)) RefuseEmptyValues(command, allowed);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_EMPTY_VALUES_H_
