#include "worker/json_writer.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

namespace verbena::worker {
namespace {

TEST_CASE("an object of every kind of member") {
  JsonWriter json;
  CHECK(json.ToString() == "{}");
  json.Add("text", "a \"b\" \\ \n\t\x01");
  json.Add("count", uint64_t{18446744073709551615u});
  json.Add("share", 0.1);
  json.Add("none", std::numeric_limits<double>::quiet_NaN());
  json.Add("absent", std::optional<double>());
  json.Add("present", std::optional<double>(2));
  CHECK(json.ToString() ==
        R"({"text": "a \"b\" \\ \n\t\u0001", "count": 18446744073709551615, "share": 0.1, )"
        R"("none": null, "present": 2})");
}

TEST_CASE("strings are UTF-8 whatever the bytes") {
  CHECK(JsonString("\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xbf") ==
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xbf\"");
  CHECK(JsonString("\xff") == "\"\\ufffd\"");
  CHECK(JsonString("\xc3") == "\"\\ufffd\"");                        // cut off
  CHECK(JsonString("\xc0\x80") == "\"\\ufffd\\ufffd\"");             // overlong
  CHECK(JsonString("\xed\xa0\x80") == "\"\\ufffd\\ufffd\\ufffd\"");  // a surrogate
}

}  // namespace
}  // namespace verbena::worker
