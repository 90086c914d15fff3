#include "worker/data/libsvm_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "tests/worker/read_examples.h"
#include "tests/worker/temporary_file.h"

namespace verbena::worker {
namespace {

absl::StatusOr<KeyedExamples> ReadPairs(const std::string& text) {
  const TemporaryFile file(text);
  return ReadLibsvm({file.path()});
}

// The message for `text`, with the file's path written as FILE.
std::string LibsvmErrorOf(const std::string& text) {
  const TemporaryFile file(text);
  const absl::StatusOr<KeyedExamples> result = ReadLibsvm({file.path()});
  REQUIRE_FALSE(result.ok());
  CHECK(absl::IsInvalidArgument(result.status()));
  std::string message(result.status().message());
  const size_t at = message.find(file.path());
  REQUIRE(at != std::string::npos);
  return message.replace(at, file.path().size(), "FILE");
}

TEST_CASE("labels, indices and values are read") {
  const auto examples = ReadPairs("0 1:1 4:-2.5\n1 2:1e-3\n-1\n+1 3:+7 \n");
  REQUIRE(examples.ok());
  CHECK(examples->labels == std::vector<float>{0, 1, 0, 1});
  CHECK(examples->row_begin == std::vector<uint64_t>{0, 2, 3, 3, 4});
  CHECK(examples->keys == std::vector<uint64_t>{0, 3, 1, 2});
  CHECK(examples->values == std::vector<float>{1, -2.5f, 1e-3f, 7});
  CHECK(examples->features == 4);
}

TEST_CASE("CRLF, comments, blank lines, tabs, trailing spaces and no last newline are fine") {
  const auto examples =
      ReadPairs("# heading\r\n\r\n1 1:1   \r\n\n   \t\n0\t2:2 # why 9:x\r\n#\n1 3:3#c");
  REQUIRE(examples.ok());
  CHECK(examples->labels == std::vector<float>{1, 0, 1});
  CHECK(examples->keys == std::vector<uint64_t>{0, 1, 2});
}

TEST_CASE("a line may be long, up to a limit that the error names") {
  std::string line = "1";
  constexpr uint32_t kFeatures = 90000;
  for (uint32_t i = 1; i <= kFeatures; ++i) line += " " + std::to_string(i) + ":0.5";
  const auto examples = ReadPairs("0 1:1\n" + line + "\n0 2:1\n");
  REQUIRE(examples.ok());
  CHECK(examples->rows() == 3);
  CHECK(examples->features == kFeatures);
  CHECK(examples->row_begin[2] - examples->row_begin[1] == kFeatures);
  line += std::string(1 << 20, ' ');
  for (const char* end : {"\n", ""}) {
    CHECK(LibsvmErrorOf("0 1:1\n" + line + end) ==
          "FILE:2: a line of more than 1048576 bytes; allowed: up to 1048576, as LABEL "
          "INDEX:VALUE ...");
  }
}

TEST_CASE("pieces may end anywhere") {
  const std::string text = "1 1:0.25 17:3\r\n0 2:1 # c\n1 5:2";
  KeyedExamples whole;
  LibsvmParser parser("whole", 100, &whole);
  REQUIRE(parser.Parse(text).ok());
  REQUIRE(parser.Finish().ok());
  for (size_t cut = 1; cut < text.size(); ++cut) {
    KeyedExamples parts;
    LibsvmParser cut_parser("parts", 100, &parts);
    REQUIRE(cut_parser.Parse(std::string_view(text).substr(0, cut)).ok());
    REQUIRE(cut_parser.Parse(std::string_view(text).substr(cut)).ok());
    REQUIRE(cut_parser.Finish().ok());
    CHECK(parts.keys == whole.keys);
    CHECK(parts.values == whole.values);
    CHECK(parts.labels == whole.labels);
  }
}

TEST_CASE("errors name file, line, field, value and allowed values") {
  CHECK(LibsvmErrorOf("1 1:1\n0 2:1 0:5\n") ==
        "FILE:2: field 3 \"0:5\": bad index; allowed: an integer from 1 to 67108864");
  CHECK(LibsvmErrorOf("1 x:1\n") ==
        "FILE:1: field 2 \"x:1\": bad index; allowed: an integer from 1 to 67108864");
  CHECK(LibsvmErrorOf("1 -3:1\n") ==
        "FILE:1: field 2 \"-3:1\": bad index; allowed: an integer from 1 to 67108864");
  const std::string dense =
      " where each has a dense weight; with --model embedding-logistic, fm or mlp up to 2^63";
  CHECK(LibsvmErrorOf("1 67108865:1\n") ==
        "FILE:1: field 2 \"67108865:1\": bad index; allowed: an integer from 1 to 67108864" +
            dense);
  CHECK(LibsvmErrorOf("1 99999999999999999999999:1\n") ==
        "FILE:1: field 2 \"99999999999999999999999:1\": bad index; allowed: an integer from 1 to "
        "67108864" +
            dense);
  CHECK(LibsvmErrorOf("1 5:1 5:2\n") ==
        "FILE:1: field 3 \"5:2\": index not increasing; allowed after 5: from 6 to 67108864");
  CHECK(LibsvmErrorOf("\n\n1 7:1 3:2\n") ==
        "FILE:3: field 3 \"3:2\": index not increasing; allowed after 7: from 8 to 67108864");
  CHECK(LibsvmErrorOf("1 1:one\n") ==
        "FILE:1: field 2 \"1:one\": bad value; allowed: a finite decimal number");
  for (const char* value : {"nan", "", "1.5x", "+-1", "0x10"}) {
    CHECK(LibsvmErrorOf(std::string("1 1:") + value + "\n") ==
          std::string("FILE:1: field 2 \"1:") + value +
              "\": bad value; allowed: a finite decimal number");
  }
  for (const char* value : {"inf", "1e99", "-1e999", "3.5e38"}) {
    CHECK(LibsvmErrorOf(std::string("1 1:") + value + "\n") ==
          std::string("FILE:1: field 2 \"1:") + value +
              "\": bad value; allowed: a finite decimal number, from -3.4e38 to 3.4e38");
  }
  CHECK(LibsvmErrorOf("1 12\n") == "FILE:1: field 2 \"12\": not a feature; allowed: index:value");
  for (const char* label : {"2", "0.5", "yes", "1:1", "+", "nan"}) {
    CHECK(LibsvmErrorOf(std::string(label) + " 1:1\n") ==
          std::string("FILE:1: field 1 \"") + label + "\": not a label; allowed: 0, 1, -1, +1");
  }
}

TEST_CASE("a field of any length or bytes gives a short printable error") {
  const std::string message = LibsvmErrorOf("1 " + std::string(1 << 19, '\x01') + "\n");
  CHECK(message.size() < 400);
  CHECK(message.find("FILE:1: field 2 \"\\x01") == 0);
}

TEST_CASE("empty and missing files, and files without examples, are errors") {
  CHECK(LibsvmErrorOf("") == "FILE: the file is empty");
  CHECK(LibsvmErrorOf("# only\n\n") == "FILE: no example in it; a line is LABEL INDEX:VALUE ...");
  const auto missing = ReadLibsvm({"/nonexistent/a9a"});
  CHECK(absl::IsNotFound(missing.status()));
  CHECK(missing.status().message() == "cannot open /nonexistent/a9a: No such file or directory");
  const auto directory = ReadLibsvm({"/"});
  CHECK(directory.status().message() == "cannot read /: Is a directory");
}

TEST_CASE("several files are one after the other, and each is checked by its own name") {
  const TemporaryFile first("1 1:1\n");
  const TemporaryFile second("0 3:1\n");
  const auto both = ReadLibsvm({first.path(), second.path()});
  REQUIRE(both.ok());
  CHECK(both->labels == std::vector<float>{1, 0});
  const TemporaryFile bad("0 3:1\nx\n");
  const auto failed = ReadLibsvm({first.path(), bad.path()});
  CHECK(failed.status().message() ==
        bad.path() + ":2: field 1 \"x\": not a label; allowed: 0, 1, -1, +1");
}

}  // namespace
}  // namespace verbena::worker
