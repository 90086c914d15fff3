#include "tests/faults/random_faults_options.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace verbena::test {
namespace {

struct Number {
  const char* name;
  int FaultOptions::*value;
  int least, most;
  const char* help;
};
constexpr Number kNumbers[] = {
    {"--faults", &FaultOptions::faults, 0, 100000, "faults of the run"},
    {"--lease-ms", &FaultOptions::lease_ms, 500, 60000, "lease of the cluster, in milliseconds"},
    {"--servers", &FaultOptions::servers, 3, 16, "server processes; each partition has 2 copies"},
    {"--shards", &FaultOptions::shards, 0, 8, "shards of a server; 0: drawn, 1 or 2"},
    {"--clients", &FaultOptions::clients, 0, 30, "clients that stay; 0: drawn, 3 to 16"},
    {"--call-s", &FaultOptions::call_s, 1, 3600, "deadline of calls that must succeed, in seconds"},
    {"--redundancy-s", &FaultOptions::redundancy_s, 1, 3600,
     "longest time to full redundancy after a fault has ended, in seconds"},
    {"--quiet-s", &FaultOptions::quiet_s, 0, 3600,
     "time under load before the first fault, in seconds: memory then is the quiet value"},
    {"--slack-mib", &FaultOptions::slack_mib, 0, 1 << 20,
     "memory of a process beyond 1.5 times its quiet value, in MiB"},
    {"--limit-s", &FaultOptions::limit_s, 0, 1 << 20,
     "longest time of the run, in seconds; 0: 120 and 20 for each fault"},
};

struct Text {
  const char* name;
  std::string FaultOptions::*value;
  const char* parts;  // allowed, with commas between; "": anything
  bool several;       // more than one, with commas between
  const char* help;
};
constexpr Text kTexts[] = {
    {"--transport", &FaultOptions::transport, "mixed,shm,ofi", false,
     "of clients: shm, ofi, or mixed: drawn for each"},
    {"--tables", &FaultOptions::tables, "dense,rows,cold", true, "kinds of tables to draw from"},
    {"--modes", &FaultOptions::modes, "async,ssp,sync", true, "consistencies to draw from"},
    {"--kinds", &FaultOptions::kinds, "kill,stop,coordinator-kill,coordinator-stop", true,
     "faults to draw from"},
    {"--server-options", &FaultOptions::server_options, "", false,
     "further options of each server, with spaces between: smaller bounds, say"},
    {"--keep", &FaultOptions::keep, "", false,
     "directory for the logs of all servers when the run fails"},
};

struct Switch {
  const char* name;
  bool FaultOptions::*value;
  const char* help;
};
constexpr Switch kSwitches[] = {
    {"--no-changes", &FaultOptions::changes,
     "without tables that are made and dropped, workers and readers that join and leave"},
    {"--no-probe", &FaultOptions::probe, "without quick calls beside a waiting one"},
    {"--no-overlap", &FaultOptions::overlap, "without a second fault before redundancy is back"},
};

std::string CheckText(const Text& option, const std::string& value) {
  const std::string parts = option.parts;
  if (parts.empty()) return "";
  const std::vector<std::string> allowed = absl::StrSplit(parts, ',');
  std::vector<std::string> given = {value};
  if (option.several) given = absl::StrSplit(value, ',');
  for (const std::string& word : given) {
    if (std::find(allowed.begin(), allowed.end(), word) != allowed.end()) continue;
    return absl::StrCat(option.name, " '", value, "': allowed ",
                        option.several ? "are " : "is one of ", parts);
  }
  return "";
}

// Empty, or the problem. `known`: whether there is such an option.
std::string Apply(const std::string& name, const std::string& value, RandomFaultsCommand* command,
                  bool* known) {
  *known = true;
  for (const Number& option : kNumbers) {
    if (name != option.name) continue;
    int& number = command->options.*option.value;
    if (absl::SimpleAtoi(value, &number) && number >= option.least && number <= option.most) {
      return "";
    }
    return absl::StrCat(name, " '", value, "': allowed are ", option.least, " to ", option.most);
  }
  for (const Text& option : kTexts) {
    if (name != option.name) continue;
    command->options.*option.value = value;
    return CheckText(option, value);
  }
  if (name == "--seed") {
    return absl::SimpleAtoi(value, &command->options.seed)
               ? ""
               : absl::StrCat("--seed '", value, "': allowed is a number");
  }
  if (name == "--worker") {
    return absl::SimpleAtoi(value, &command->process) ? "" : "--worker wants a number";
  }
  if (name == "--cluster") {
    command->cluster = value;
    return "";
  }
  if (name == "--ledger") {
    command->ledger = value;
    return "";
  }
  *known = false;
  return absl::StrCat("unknown option '", name, "'");
}

}  // namespace

RandomFaultsCommand ParseRandomFaults(const std::vector<std::string>& arguments) {
  RandomFaultsCommand command;
  for (size_t i = 0; i < arguments.size() && command.error.empty(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") command.help = true;
    const auto* flag = std::find_if(std::begin(kSwitches), std::end(kSwitches),
                                    [&](const Switch& option) { return name == option.name; });
    if (flag != std::end(kSwitches)) {
      command.options.*flag->value = false;
      continue;
    }
    if (command.help) return command;
    bool known = false;
    const bool last = i + 1 == arguments.size();
    command.error = Apply(name, last ? "" : arguments[i + 1], &command, &known);
    if (known && last) command.error = absl::StrCat(name, " wants a value");
    ++i;
  }
  return command;
}

std::string RandomFaultsHelp() {
  std::string help =
      "usage: random_faults [OPTION VALUE]...\n"
      "\n"
      "Starts a cluster of verbenad processes with two copies of each partition, lets clients "
      "push\n"
      "and pull at full rate, in several processes with several threads each, and kills, stops "
      "and\n"
      "restarts servers and the coordinator at random. It fails when\n"
      "  - a table does not hold exactly the sum of all pushes, or a value that is read meanwhile\n"
      "    is below the acknowledged or above the attempted pushes;\n"
      "  - a call fails before its deadline, or does not end;\n"
      "  - full redundancy does not come back after a fault;\n"
      "  - a process takes more memory than 1.5 times its quiet value and a constant;\n"
      "  - answers that have arrived wake their waiters late, again and again;\n"
      "  - a process ends by itself, or is left over.\n"
      "It prints the plan, a line for each fault, and at the end the memory of each process. "
      "Which\n"
      "clients, tables and faults there are comes from the seed alone, when things happen does "
      "not:\n"
      "a seed that fails once may pass again. Exit status: 0, 1 when something failed, 2 when the\n"
      "command line is wrong or nothing could be started. Programs are found by VERBENA_VERBENAD\n"
      "(as ctest sets it), else beside this one in the build.\n"
      "\n";
  const FaultOptions defaults;
  absl::StrAppendFormat(&help, "  %-17s %s (default %d)\n", "--seed", "of everything that is drawn",
                        defaults.seed);
  for (const Number& option : kNumbers) {
    absl::StrAppendFormat(&help, "  %-17s %s (default %d)\n", option.name, option.help,
                          defaults.*option.value);
  }
  for (const Text& option : kTexts) {
    const std::string& value = defaults.*option.value;
    absl::StrAppendFormat(&help, "  %-17s %s (default %s)\n", option.name, option.help,
                          value.empty() ? "none" : value);
  }
  for (const Switch& option : kSwitches) {
    absl::StrAppendFormat(&help, "  %-17s %s\n", option.name, option.help);
  }
  return help;
}

std::vector<std::string> ArgumentsOf(const FaultOptions& options) {
  const FaultOptions defaults;
  std::vector<std::string> arguments = {"--seed", absl::StrCat(options.seed)};
  for (const Number& option : kNumbers) {
    const int value = options.*option.value;
    if (value == defaults.*option.value) continue;
    arguments.insert(arguments.end(), {option.name, absl::StrCat(value)});
  }
  for (const Text& option : kTexts) {
    const std::string& value = options.*option.value;
    if (value == defaults.*option.value) continue;
    arguments.insert(arguments.end(), {option.name, value});
  }
  for (const Switch& option : kSwitches) {
    if (options.*option.value != defaults.*option.value) arguments.emplace_back(option.name);
  }
  return arguments;
}

}  // namespace verbena::test
