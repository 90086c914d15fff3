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
    app.add_option("--part", part, "A share")->type_name("X")->check(NumberIn(0.1, 1));
    app.add_option("--kind", kind, "A kind")->check(CLI::IsMember({"small", "large"}));
    app.add_option("--share", share, "A share")->check(CLI::Range(1, 99));
    CLI::Option* const plan = app.add_flag("--plan", one, "One");
    app.add_flag("--apply", other, "The other")->excludes(plan);
    app.add_option("--file", file, "A file")->type_name("FILE");
    app.add_option("--seed", seed, "A number of 64 bits");
    app.add_option("--rank", rank, "A number with a sign");
    app.add_option("--small", small, "A number of 32 bits");
    app.add_option("--every", every, "A time")
        ->type_name("SECONDS")
        ->check(InRange<uint32_t>(1, 60));
    CheckNumbers(&app);
  }
  // "" if it is right.
  std::string Error(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    try {
      ParseArguments(&app, static_cast<int>(arguments.size()), arguments.data());
    } catch (const CLI::ParseError& error) {
      return UsageError(app, error);
    }
    return "";
  }

  CLI::App app{"A program", "program"};
  uint64_t count = 0, seed = 0;
  int rank = 0;
  uint32_t small = 0, every = 0;
  double rate = 0, part = 0;
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
  CHECK(p.Error({"--count", "x"}) ==
        "--count: 'x' is not allowed: an integer from 0 to 18446744073709551615");
  CHECK(p.Error({"--rate", "fast"}) == "--rate: 'fast' is not allowed: a number");
  CHECK(p.Error({"--kind", "huge"}) == "--kind: 'huge' is not allowed: small, large");
  CHECK(p.Error({"--share", "100"}) == "--share: '100' is not allowed: 1 to 99");
  CHECK(p.Error({"--plan", "--apply"}) ==
        "--plan and --apply exclude each other; give one of them");
  CHECK(p.Error({"--file", "a", "--file", "b"}) == "--file is given 2 times; allowed: once");
  CHECK(p.Error({"--plan=maybe"}) == "--plan takes no value");
}

TEST_CASE("an integer that its option cannot have is refused, and none wraps or is octal") {
  const std::string most = "18446744073709551615";
  for (const std::string text : {"-1", "-18446744073709551615", "18446744073709551616", "1e3",
                                 "3 4", "0x10000000000000000", "99999999999999999999999"}) {
    Program p;
    CHECK(p.Error({"--seed", text.c_str()}) ==
          "--seed: '" + text + "' is not allowed: an integer from 0 to " + most);
  }
  Program p;
  CHECK(p.Error({"--seed", most.c_str(), "--rank", "-1"}) == "");
  CHECK(p.seed == UINT64_MAX);
  CHECK(p.rank == -1);
  CHECK(p.Error({"--rank", "-9223372036854775809"}) ==
        "--rank: '-9223372036854775809' is not allowed: an integer from -9223372036854775808 to "
        "9223372036854775807");
  CHECK(p.Error({"--rank", "2147483648"}) ==
        "--rank: '2147483648' is not allowed: an integer from -2147483648 to 2147483647");
  CHECK(p.Error({"--small", "4294967296"}) ==
        "--small: '4294967296' is not allowed: an integer from 0 to 4294967295");
  CHECK(p.Error({"--every", "61"}) == "--every: '61' is not allowed: an integer from 1 to 60");
  CHECK(p.Error({"--every", "-1"}) == "--every: '-1' is not allowed: an integer from 1 to 60");
  CHECK(p.Error({"--every", "010", "--small", "0010", "--seed", "0xff", "--share", "011"}) == "");
  CHECK(p.every == 10);
  CHECK(p.small == 10);
  CHECK(p.seed == 255);
  CHECK(p.share == 11);
}

TEST_CASE("a number that its option cannot have is refused, also one that is no number") {
  Program p;
  for (const char* text : {"nan", "NaN", "-nan", "inf", "-inf", "infinity"}) {
    CHECK(p.Error({"--rate", text}) ==
          absl::StrCat("--rate: '", text, "' is not allowed: a finite number"));
    CHECK(p.Error({"--part", text}) ==
          absl::StrCat("--part: '", text, "' is not allowed: a number from 0.1 to 1"));
  }
  CHECK(p.Error({"--part", "0.1"}) == "");
  CHECK(p.Error({"--part", "1.5"}) == "--part: '1.5' is not allowed: a number from 0.1 to 1");
}

TEST_CASE("an option with = and no value has the empty one, not the next argument") {
  Program p;
  CHECK(p.Error({"--file=", "--plan"}) == "");
  CHECK(p.file.empty());
  CHECK(p.one);
  CHECK(p.Error({"--count=", "--plan"}) ==
        "--count: '' is not allowed: an integer from 0 to 18446744073709551615");
  CHECK(p.Error({"--count=", "5"}) == "unexpected argument '5'");
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
