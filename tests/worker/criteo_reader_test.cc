#include "worker/data/criteo_reader.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/worker/read_examples.h"
#include "tests/worker/temporary_file.h"

namespace verbena::worker {
namespace {

// A line with these fields and empty ones for the rest.
std::string Line(const std::string& label, const std::vector<std::string>& integers,
                 const std::vector<std::string>& categories) {
  std::string line = label;
  for (size_t i = 0; i < 13; ++i) line += "\t" + (i < integers.size() ? integers[i] : "");
  for (size_t i = 0; i < 26; ++i) line += "\t" + (i < categories.size() ? categories[i] : "");
  return line;
}

absl::StatusOr<KeyedExamples> Read(const std::string& text) {
  const TemporaryFile file(text);
  return ReadCriteo({file.path()});
}

// The message for `text`, with the file's path written as FILE.
std::string ErrorOf(const std::string& text) {
  const TemporaryFile file(text);
  const absl::StatusOr<KeyedExamples> result = ReadCriteo({file.path()});
  REQUIRE_FALSE(result.ok());
  CHECK(absl::IsInvalidArgument(result.status()));
  std::string message(result.status().message());
  const size_t at = message.find(file.path());
  REQUIRE(at != std::string::npos);
  return message.replace(at, file.path().size(), "FILE");
}

TEST_CASE("labels, integers and categories of click logs are read") {
  const auto examples = Read(Line("1", {"0", "7", "", "-2", "2147483647"}, {"68fd1e64", "", "0F"}) +
                             "\n" + Line("0", {}, {"68fd1e64"}) + "\n");
  REQUIRE(examples.ok());
  CHECK(examples->labels == std::vector<float>{1, 0});
  CHECK(examples->fields == 26);
  CHECK(examples->row_begin == std::vector<uint64_t>{0, 26, 52});
  REQUIRE(examples->inputs.size() == 26);
  CHECK(examples->inputs[0] == 0);
  CHECK(examples->inputs[1] == Approx(std::log(8.0)));
  CHECK(examples->inputs[2] == 0);
  CHECK(examples->inputs[3] == 0);
  CHECK(examples->inputs[4] == Approx(std::log(2147483648.0)));
  REQUIRE(examples->keys.size() == 52);
  CHECK(examples->keys[0] == CriteoKey(0, 0x68fd1e64));
  CHECK(examples->keys[1] == CriteoKey(1, std::nullopt));
  CHECK(examples->keys[2] == CriteoKey(2, 15));
  CHECK(examples->keys[26] == examples->keys[0]);
}

TEST_CASE("no two fields or categories share a key") {
  std::set<uint64_t> keys;
  for (uint32_t field = 0; field < 26; ++field) {
    keys.insert(CriteoKey(field, std::nullopt));
    for (const uint32_t category : {0u, 1u, 255u, 256u, 0xffffffffu}) {
      keys.insert(CriteoKey(field, category));
    }
  }
  CHECK(keys.size() == 26 * 6);
}

TEST_CASE("click logs may have CRLF and blank lines, and come in any pieces") {
  const std::string text = "\n" + Line("1", {"3"}, {"ab"}) + "\r\n\r\n" + Line("0", {}, {"0"});
  KeyedExamples whole;
  CriteoParser parser("whole", &whole);
  REQUIRE(parser.Parse(text).ok());
  REQUIRE(parser.Finish().ok());
  CHECK(whole.labels == std::vector<float>{1, 0});
  CHECK(whole.keys[25] == CriteoKey(25, std::nullopt));
  for (size_t cut = 1; cut < text.size(); ++cut) {
    KeyedExamples parts;
    CriteoParser again("parts", &parts);
    REQUIRE(again.Parse(text.substr(0, cut)).ok());
    REQUIRE(again.Parse(text.substr(cut)).ok());
    REQUIRE(again.Finish().ok());
    CHECK(parts.labels == whole.labels);
    CHECK(parts.keys == whole.keys);
    CHECK(parts.inputs == whole.inputs);
  }
}

TEST_CASE("an error in a click log names file, line, field, value and allowed values") {
  const std::string good = Line("0", {"1"}, {"a"}) + "\n";
  CHECK(ErrorOf(good + Line("2", {}, {})) ==
        "FILE:2: field 1 (label) \"2\": not a label; allowed: 0, 1");
  CHECK(ErrorOf(good + good + Line("", {}, {})) ==
        "FILE:3: field 1 (label) \"\": not a label; allowed: 0, 1");
  CHECK(ErrorOf(Line("1", {"1", "2.5"}, {})) ==
        "FILE:1: field 3 (I2) \"2.5\": not an integer; allowed: nothing, or a decimal integer of "
        "64 bits");
  CHECK(ErrorOf(Line("1", {"9223372036854775808"}, {})).substr(0, 46) ==
        "FILE:1: field 2 (I1) \"9223372036854775808\": no");
  CHECK(ErrorOf(Line("1", {}, {"", "xyz"})) ==
        "FILE:1: field 16 (C2) \"xyz\": not a category; allowed: nothing, or 1 to 8 hexadecimal "
        "digits");
  for (const char* bad : {"123456789", "0x1", "-1", "+1", " 1", "1 ", "\r1"}) {
    INFO(bad);
    CHECK(ErrorOf(Line("1", {}, {bad})).find("field 15 (C1) ") != std::string::npos);
  }
  CHECK(ErrorOf("1\t2\t3\n") ==
        "FILE:1: field 3 (I2) \"3\": the line ends after 3 fields; allowed: 40 (label, 13 "
        "integers, 26 categories)");
  CHECK(ErrorOf(Line("1", {}, {}) + "\t7\n") ==
        "FILE:1: field 41 (one too many) \"7\": allowed: 40 fields on a line");
  CHECK(ErrorOf(std::string(300000, 'x')) ==
        "FILE:1: field 1 (label) \"xxxxxxxxxxxxxxxxxxxxxxxx...\": not a label; allowed: 0, 1");
  CHECK(ErrorOf("") == "FILE: the file is empty");
  CHECK(ErrorOf("\n\r\n").substr(0, 25) == "FILE: no example in it; a");
  CHECK(absl::IsNotFound(ReadCriteo({"/nonexistent/criteo"}).status()));
}

TEST_CASE("click logs are read one after the other") {
  const TemporaryFile first(Line("1", {}, {"a"}));
  const TemporaryFile second(Line("0", {}, {"b"}) + "\n");
  const auto examples = ReadCriteo({first.path(), second.path()});
  REQUIRE(examples.ok());
  CHECK(examples->labels == std::vector<float>{1, 0});
}

}  // namespace
}  // namespace verbena::worker
