// Errors of wrong command lines.
#include "proto/base/usage_error.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace verbena {
namespace {

struct Program {
  Program() {
    app.add_option("--count", count, "A count")->type_name("UINT");
    app.add_option("--rate", rate, "A rate");
    app.add_option("--kind", kind, "A kind")->check(CLI::IsMember({"small", "large"}));
    app.add_option("--share", share, "A share")->check(CLI::Range(1, 99));
    CLI::Option* const plan = app.add_flag("--plan", one, "One");
    app.add_flag("--apply", other, "The other")->excludes(plan);
    app.add_option("--file", file, "A file")->type_name("FILE");
  }
  // "" if it is right.
  std::string Error(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    try {
      app.parse(static_cast<int>(arguments.size()), arguments.data());
    } catch (const CLI::ParseError& error) {
      return UsageError(app, error);
    }
    return "";
  }

  CLI::App app{"A program", "program"};
  uint64_t count = 0;
  double rate = 0;
  int share = 1;
  std::string kind, file;
  bool one = false, other = false;
};

TEST_CASE("errors of command lines have option, value and allowed values") {
  Program p;
  CHECK(p.Error({"--count", "3", "--kind", "small"}) == "");
  CHECK(p.Error({"--bogus"}) == "unknown option '--bogus'");
  CHECK(p.Error({"stray"}) == "unexpected argument 'stray'");
  CHECK(p.Error({"--file"}) == "--file needs a value: FILE");
  CHECK(p.Error({"--count"}) == "--count needs a value");
  CHECK(p.Error({"--share"}) == "--share needs a value: [1 - 99]");
  CHECK(p.Error({"--kind"}) == "--kind needs a value: {small,large}");
  CHECK(p.Error({"--count", "x"}) == "--count: 'x' is not allowed: an integer from 0");
  CHECK(p.Error({"--rate", "fast"}) == "--rate: 'fast' is not allowed: a number");
  CHECK(p.Error({"--kind", "huge"}) == "--kind: 'huge' is not allowed: small, large");
  CHECK(p.Error({"--share", "100"}) == "--share: '100' is not allowed: 1 to 99");
  CHECK(p.Error({"--plan", "--apply"}) ==
        "--plan and --apply exclude each other; give one of them");
  CHECK(p.Error({"--file", "a", "--file", "b"}) == "--file is given 2 times; allowed: once");
  CHECK(p.Error({"--plan=maybe"}) == "--plan takes no value");
}

TEST_CASE("a wrong command line is exit status 2, and help is 0") {
  Program p;
  const char* wrong[] = {"program", "--bogus"};
  std::ostringstream errors;
  CHECK(ParseOrExit(&p.app, 2, wrong, errors) == 2);
  CHECK(errors.str() ==
        "program: unknown option '--bogus'\n'program --help' has what is allowed.\n");
  const char* right[] = {"program", "--plan"};
  CHECK(ParseOrExit(&p.app, 2, right, errors) == std::nullopt);
}

}  // namespace
}  // namespace verbena
