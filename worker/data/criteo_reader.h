// Parses click logs in Criteo's text format, strictly.
//
//     line     = label 13*(tab integer) 26*(tab category)
//     label    = "0" | "1"
//     integer  = "" | ["-"] 1*digit          fits 64 bits
//     category = "" | 1*8 hexadecimal digits
//
// That is the format of the Kaggle display advertising challenge and of the terabyte click logs. An
// empty field is a missing value. Blank lines and CRLF are fine.
//
// An integer x becomes the input log(1 + x), a missing or negative one 0, as in DLRM (Naumov et
// al., 2019) and the MLPerf benchmark. A category becomes a key that no other (field, category)
// has; a missing one is a category too.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_DATA_CRITEO_READER_H_
#define VERBENA_WORKER_DATA_CRITEO_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/data/keyed_examples.h"

namespace verbena::worker {

inline constexpr uint32_t kCriteoIntegers = 13;
inline constexpr uint32_t kCriteoCategories = 26;

// The key of a category, or of its absence, in field 0 to 25. Distinct arguments, distinct keys.
uint64_t CriteoKey(uint32_t field, std::optional<uint32_t> category);

class CriteoParser {
 public:
  // Appends to *out, which outlives the parser. `name` is the file's, for errors, and `first_line`
  // the number of the line that the pieces begin with.
  CriteoParser(std::string_view name, KeyedExamples* out, uint64_t first_line = 1);

  // Any piece of the file; pieces may end anywhere. INVALID_ARGUMENT names file, line, field, value
  // and the allowed values; do not go on after it.
  absl::Status Parse(std::string_view piece);
  // The file ends.
  absl::Status Finish();

 private:
  absl::Status EndField(std::string_view field, bool ends_line);
  absl::Status EndLine(std::string_view last_field);
  absl::Status Label(std::string_view field);
  absl::Status Integer(std::string_view field);
  absl::Status Category(std::string_view field);
  absl::Status Error(std::string_view field, std::string_view problem) const;

  std::string name_;
  KeyedExamples* out_;
  uint64_t line_;
  uint32_t field_count_ = 0;  // of this line, before the current field
  std::string partial_;       // a field whose start was in an earlier piece
};

// Fields and inputs of such examples; no rows.
KeyedExamples CriteoShape();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_CRITEO_READER_H_
