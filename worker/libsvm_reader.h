// Reads examples for binary classification in LIBSVM's text format, strictly.
//
//     line    = [label *(space index ":" value)] ["#" comment]
//     label   = "0" | "1" | "-1" | "+1"            (0 and -1 are the negative class)
//     index   = 1, 2, ... increasing within a line
//     value   = a finite decimal number
//
// Blank lines, CRLF, tabs, trailing spaces and lines of any length are fine. Memory is that of the
// examples and one block of the file.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_LIBSVM_READER_H_
#define VERBENA_WORKER_LIBSVM_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::worker {

// Rows of (index, value) pairs; indices count from zero here.
struct SparseExamples {
  std::vector<float> labels;  // 0 or 1
  std::vector<uint64_t> row_begin = {0};
  std::vector<uint32_t> indices;
  std::vector<float> values;
  uint32_t features = 0;  // one more than the greatest index seen

  size_t rows() const { return labels.size(); }
};

class LibsvmParser {
 public:
  // The greatest index accepted: a typing error must not make a table of gigabytes.
  static constexpr uint32_t kMaxIndex = uint32_t{1} << 26;

  // Appends to *out, which outlives the parser. `name` is the file's, for errors.
  LibsvmParser(std::string_view name, SparseExamples* out) : name_(name), out_(out) {}

  // Any piece of the file; pieces may end anywhere. INVALID_ARGUMENT names file, line, field, value
  // and what is allowed; do not go on after it.
  absl::Status Parse(std::string_view piece);
  // The file ends. INVALID_ARGUMENT when it had no example.
  absl::Status Finish();

 private:
  absl::Status EndField();
  absl::Status EndLine();
  absl::Status Label();
  absl::Status Feature();
  absl::Status Error(std::string_view problem) const;

  std::string name_;
  SparseExamples* out_;
  uint64_t line_ = 1;
  uint64_t field_count_ = 0;  // of this line, the label included
  uint64_t previous_index_ = 0;
  uint64_t bytes_ = 0;
  uint64_t examples_ = 0;
  bool comment_ = false;
  std::string field_;
};

// Of one file after the other.
absl::StatusOr<SparseExamples> ReadLibsvm(const std::vector<std::string>& paths);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_LIBSVM_READER_H_
