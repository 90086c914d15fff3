// Parses examples for binary classification in LIBSVM's text format, strictly.
//
//     line    = [label *(space index ":" value)] ["#" comment]
//     label   = "0" | "1" | "-1" | "+1"            (0 and -1 are the negative class)
//     index   = 1, 2, ... increasing within a line
//     value   = a finite decimal number
//
// Blank lines, CRLF, tabs and trailing spaces are fine. A feature's key is its index, counted from
// zero. A number of any number of digits is rounded to the nearest f32.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_DATA_LIBSVM_READER_H_
#define VERBENA_WORKER_DATA_LIBSVM_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/data/keyed_examples.h"

namespace verbena::worker {

class LibsvmParser {
 public:
  // Limit for a model with a dense weight for each index: a typing error must not make a table of
  // gigabytes.
  static constexpr uint64_t kMaxDenseIndex = uint64_t{1} << 26;
  // Limit for a model whose features are keys of rows.
  static constexpr uint64_t kMaxIndex = uint64_t{1} << 63;

  // Appends to *out, which outlives the parser. `name` is the file's, for errors, and `first_line`
  // the number of the line that the pieces begin with.
  LibsvmParser(std::string_view name, uint64_t max_index, KeyedExamples* out,
               uint64_t first_line = 1)
      : name_(name), max_index_(max_index), out_(out), line_(first_line) {}

  // Any piece of the file; pieces may end anywhere. INVALID_ARGUMENT names file, line, field, value
  // and the allowed values; do not go on after it.
  absl::Status Parse(std::string_view piece);
  // The file ends.
  absl::Status Finish() { return EndLine(); }

 private:
  absl::Status EndField(std::string_view field);
  absl::Status EndLine();
  absl::Status Label(std::string_view field);
  absl::Status Feature(std::string_view field);
  absl::Status Index(std::string_view field, std::string_view digits, uint64_t* index) const;
  absl::Status Error(std::string_view field, std::string_view problem) const;

  std::string name_;
  const uint64_t max_index_;
  KeyedExamples* out_;
  uint64_t line_;
  uint64_t field_count_ = 0;  // of this line, the label included
  uint64_t previous_index_ = 0;
  bool comment_ = false;
  std::string partial_;  // a field whose start was in an earlier piece
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_LIBSVM_READER_H_
