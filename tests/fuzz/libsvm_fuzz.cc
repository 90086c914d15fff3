// Any bytes, in pieces of any size, give examples that hold together or an error with the file's
// name in it; never a crash.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/libsvm_reader.h"

std::vector<std::string> verbena::fuzz::Seeds() {
  return {
      "\x07"
      "1 1:1 4:-2.5\n0 2:1e-3\n",
      "\x01+1 3:+7 \r\n# comment\r\n\r\n-1\n",
      "\xff"
      "0\t67108864:0.5 # last\n1 5:1 5:2\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using verbena::worker::LibsvmParser;
  if (size == 0) return 0;
  // The first byte says how long the pieces are.
  const size_t piece = size_t{data[0]} + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  verbena::worker::SparseExamples examples;
  LibsvmParser parser("input", &examples);
  absl::Status status;
  for (size_t at = 0; at < text.size() && status.ok(); at += piece) {
    status = parser.Parse(text.substr(at, piece));
  }
  if (status.ok()) status = parser.Finish();
  if (!status.ok()) {
    FUZZ_CHECK(status.message().substr(0, 6) == "input:" && status.message().size() < 1000);
    return 0;
  }
  FUZZ_CHECK(examples.rows() > 0 && examples.row_begin.size() == examples.rows() + 1);
  FUZZ_CHECK(examples.row_begin.back() == examples.indices.size());
  FUZZ_CHECK(examples.values.size() == examples.indices.size());
  for (size_t row = 0; row < examples.rows(); ++row) {
    FUZZ_CHECK(examples.labels[row] == 0 || examples.labels[row] == 1);
    for (uint64_t k = examples.row_begin[row]; k < examples.row_begin[row + 1]; ++k) {
      FUZZ_CHECK(examples.indices[k] < examples.features);
      FUZZ_CHECK(k == examples.row_begin[row] || examples.indices[k - 1] < examples.indices[k]);
    }
  }
  return 0;
}
