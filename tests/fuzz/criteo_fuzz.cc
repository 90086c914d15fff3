// Any bytes, in pieces of any size, give examples that hold together or an error with the file's
// name in it; never a crash.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/data/criteo_reader.h"

std::vector<std::string> verbena::fuzz::Seeds() {
  const std::string missing(39, '\t');
  const std::string categories =
      "\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510"
      "\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9"
      "\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\te8b83407\t9727dd16";
  return {
      "\x07"
      "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2" +
          categories + "\n",
      "\x01"
      "1" +
          missing + "\r\n\r\n0" + missing,
      "\xff"
      "1\t-1\t99999999999\t" +
          categories + "\n0\t1\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using verbena::worker::CriteoParser;
  if (size == 0) return 0;
  // The first byte is the length of the pieces.
  const size_t piece = size_t{data[0]} + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  verbena::worker::KeyedExamples examples;
  CriteoParser parser("input", &examples);
  absl::Status status;
  for (size_t at = 0; at < text.size() && status.ok(); at += piece) {
    status = parser.Parse(text.substr(at, piece));
  }
  if (status.ok()) status = parser.Finish();
  // The same in one piece: where pieces end changes nothing.
  verbena::worker::KeyedExamples whole;
  CriteoParser again("input", &whole);
  absl::Status status_of_whole = again.Parse(text);
  if (status_of_whole.ok()) status_of_whole = again.Finish();
  FUZZ_CHECK(status.ok() == status_of_whole.ok());
  if (!status.ok()) {
    FUZZ_CHECK(status.message().substr(0, 6) == "input:" && status.message().size() < 1000);
    return 0;
  }
  FUZZ_CHECK(examples.keys == whole.keys && examples.inputs == whole.inputs);
  FUZZ_CHECK(examples.row_begin.size() == examples.rows() + 1);
  FUZZ_CHECK(examples.row_begin.back() == examples.keys.size());
  FUZZ_CHECK(examples.keys.size() == examples.rows() * verbena::worker::kCriteoCategories);
  FUZZ_CHECK(examples.inputs.size() == examples.rows() * verbena::worker::kCriteoIntegers);
  for (const float label : examples.labels) FUZZ_CHECK(label == 0 || label == 1);
  for (const float input : examples.inputs) FUZZ_CHECK(std::isfinite(input) && input >= 0);
  return 0;
}
