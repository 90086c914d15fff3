#include "worker/libsvm_reader.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/file.h"

namespace verbena::worker {
namespace {

// Longer than any field that means something: 8 digits, a colon, a number of 40 characters.
constexpr size_t kMaxPairBytes = 64;

bool ParseDouble(std::string_view text, double* out) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);  // from_chars does not take it
    if (!text.empty() && text.front() == '-') return false;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::Status LibsvmParser::Error(std::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ":", line_, ": field ", field_count_ + 1, " \"",
                   absl::CHexEscape(absl::string_view(field_.data(), field_.size())),
                   field_.size() >= kMaxPairBytes ? "..." : "",
                   "\": ", absl::string_view(problem.data(), problem.size())));
}

absl::Status LibsvmParser::Parse(std::string_view piece) {
  bytes_ += piece.size();
  for (const char c : piece) {
    if (c == '\n') {
      if (absl::Status status = EndLine(); !status.ok()) return status;
    } else if (comment_) {
      continue;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '#') {
      if (absl::Status status = EndField(); !status.ok()) return status;
      comment_ = c == '#';
    } else {
      field_.push_back(c);
      if (field_.size() >= kMaxPairBytes) {
        return Error(field_count_ == 0 ? "too long; a label is 0, 1, -1 or +1"
                                       : "too long; a feature is index:value");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LibsvmParser::Finish() {
  if (absl::Status status = EndLine(); !status.ok()) return status;
  if (bytes_ == 0) return absl::InvalidArgumentError(absl::StrCat(name_, ": the file is empty"));
  if (examples_ == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": no example in it; a line is LABEL INDEX:VALUE ..."));
  }
  return absl::OkStatus();
}

absl::Status LibsvmParser::EndLine() {
  if (absl::Status status = EndField(); !status.ok()) return status;
  if (field_count_ > 0) {
    out_->row_begin.push_back(out_->indices.size());
    ++examples_;
  }
  ++line_;
  field_count_ = 0;
  previous_index_ = 0;
  comment_ = false;
  return absl::OkStatus();
}

absl::Status LibsvmParser::EndField() {
  if (field_.empty()) return absl::OkStatus();
  absl::Status status = field_count_ == 0 ? Label() : Feature();
  ++field_count_;
  field_.clear();
  return status;
}

absl::Status LibsvmParser::Label() {
  double value;
  if (!ParseDouble(field_, &value) || (value != 0 && value != 1 && value != -1)) {
    return Error("not a label; allowed: 0, 1, -1, +1");
  }
  out_->labels.push_back(value > 0 ? 1.0f : 0.0f);
  return absl::OkStatus();
}

absl::Status LibsvmParser::Feature() {
  const std::string_view field = field_;
  const size_t colon = field.find(':');
  if (colon == std::string_view::npos) return Error("not a feature; allowed: index:value");
  const std::string_view digits = field.substr(0, colon);
  uint64_t index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size() || index < 1 ||
      index > kMaxIndex) {
    return Error(absl::StrCat("bad index; allowed: an integer from 1 to ", kMaxIndex));
  }
  if (index <= previous_index_) {
    return Error(absl::StrCat("index not increasing; allowed after ", previous_index_, ": from ",
                              previous_index_ + 1, " to ", kMaxIndex));
  }
  double value;
  if (!ParseDouble(field.substr(colon + 1), &value) ||
      !(std::abs(value) <= std::numeric_limits<float>::max())) {
    return Error("bad value; allowed: a finite decimal number");
  }
  previous_index_ = index;
  out_->indices.push_back(static_cast<uint32_t>(index - 1));
  out_->values.push_back(static_cast<float>(value));
  if (index > out_->features) out_->features = static_cast<uint32_t>(index);
  return absl::OkStatus();
}

absl::StatusOr<SparseExamples> ReadLibsvm(const std::vector<std::string>& paths) {
  SparseExamples examples;
  for (const std::string& path : paths) {
    LibsvmParser parser(path, &examples);
    absl::Status status =
        ReadPieces(path, [&](std::string_view piece) { return parser.Parse(piece); });
    if (status.ok()) status = parser.Finish();
    if (!status.ok()) return status;
  }
  return examples;
}

}  // namespace verbena::worker
