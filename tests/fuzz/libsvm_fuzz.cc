// Any bytes, in pieces of any size, give examples that hold together or an error with the file's
// name in it; never a crash.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/data/libsvm_reader.h"

std::vector<std::string> verbena::fuzz::Seeds() {
  return {
      "\x07"
      "1 1:1 4:-2.5\n0 2:1e-3\n",
      "\x01+1 3:+7 \r\n# comment\r\n\r\n-1\n",
      "\xfe"
      "1 1:1e-400 67108866:0." +
          std::string(70, '3') + " 9223372036854775808:1\n",
      "\xff"
      "0\t67108864:0.5 # last\n1 5:1 5:2\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using verbena::worker::LibsvmParser;
  if (size == 0) return 0;
  // The first byte gives the length of the pieces and the greatest index.
  const size_t piece = size_t{data[0]} + 1;
  const uint64_t greatest =
      data[0] % 2 == 1 ? LibsvmParser::kMaxDenseIndex : LibsvmParser::kMaxIndex;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  verbena::worker::KeyedExamples examples;
  LibsvmParser parser("input", greatest, &examples);
  absl::Status status;
  for (size_t at = 0; at < text.size() && status.ok(); at += piece) {
    status = parser.Parse(text.substr(at, piece));
  }
  if (status.ok()) status = parser.Finish();
  // The same in one piece: where pieces end changes nothing.
  verbena::worker::KeyedExamples whole;
  LibsvmParser again("input", greatest, &whole);
  absl::Status status_of_whole = again.Parse(text);
  if (status_of_whole.ok()) status_of_whole = again.Finish();
  FUZZ_CHECK(status.ok() == status_of_whole.ok());
  if (!status.ok()) {
    FUZZ_CHECK(status.message().substr(0, 6) == "input:" && status.message().size() < 1000);
    return 0;
  }
  FUZZ_CHECK(examples.keys == whole.keys && examples.values == whole.values);
  FUZZ_CHECK(examples.labels == whole.labels && examples.row_begin == whole.row_begin);
  FUZZ_CHECK(examples.row_begin.size() == examples.rows() + 1);
  FUZZ_CHECK(examples.row_begin.back() == examples.keys.size());
  FUZZ_CHECK(examples.values.size() == examples.keys.size());
  for (const float value : examples.values) FUZZ_CHECK(std::isfinite(value));
  for (size_t row = 0; row < examples.rows(); ++row) {
    FUZZ_CHECK(examples.labels[row] == 0 || examples.labels[row] == 1);
    for (uint64_t k = examples.row_begin[row]; k < examples.row_begin[row + 1]; ++k) {
      FUZZ_CHECK(examples.keys[k] < examples.features && examples.features <= greatest);
      FUZZ_CHECK(k == examples.row_begin[row] || examples.keys[k - 1] < examples.keys[k]);
    }
  }
  return 0;
}
