#include "proto/base/json.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>

namespace verbena {
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

TEST_CASE("objects and arrays nest") {
  JsonArray empty, numbers, objects;
  numbers.Add(7u);
  numbers.Add(-1);
  numbers.Add("x");
  JsonWriter inner;
  inner.Add("yes", true);
  inner.AddNull("nothing");
  objects.Add(inner);
  objects.Add(JsonWriter());
  JsonWriter json;
  json.Add("empty", empty);
  json.Add("numbers", numbers);
  json.Add("objects", objects);
  json.Add("inner", inner);
  CHECK(
      json.ToString() ==
      R"({"empty": [], "numbers": [7, -1, "x"], "objects": [{"yes": true, "nothing": null}, {}], )"
      R"("inner": {"yes": true, "nothing": null}})");
}

TEST_CASE("control characters in strings are escaped") {
  CHECK(JsonString("\x1b[31m \x7f \r") == R"("\u001b[31m \u007f \u000d")");
  CHECK(JsonString("\xc2\x9b"
                   "31m \xc2\xa0") == "\"\\u009b31m \xc2\xa0\"");
}

TEST_CASE("strings are valid UTF-8 for any bytes") {
  CHECK(JsonString("\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xbf") ==
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xbf\"");
  CHECK(JsonString("\xff") == "\"\\ufffd\"");
  CHECK(JsonString("\xc3") == "\"\\ufffd\"");                        // cut off
  CHECK(JsonString("\xc0\x80") == "\"\\ufffd\\ufffd\"");             // overlong
  CHECK(JsonString("\xed\xa0\x80") == "\"\\ufffd\\ufffd\\ufffd\"");  // a surrogate
}

}  // namespace
}  // namespace verbena
