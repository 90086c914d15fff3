#include "worker/data/libsvm_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/charconv.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

// A double has at most 767 digits that decide how it is rounded, and 308 zeros around them.
constexpr size_t kMaxPairBytes = 4096;
constexpr size_t kShownPairBytes = 64;

constexpr std::array<bool, 256> FieldEnds() {
  std::array<bool, 256> ends = {};
  for (const char c : {' ', '\t', '\r', '\n', '#'}) ends[static_cast<unsigned char>(c)] = true;
  return ends;
}
constexpr std::array<bool, 256> kFieldEnds = FieldEnds();

// Length of the field that `text` begins with.
size_t FieldLength(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && !kFieldEnds[static_cast<unsigned char>(text[n])]) ++n;
  return n;
}

// Too small for a double: 0. Too great: infinite.
bool ParseDouble(std::string_view text, double* out) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);  // from_chars does not take it
    if (!text.empty() && text.front() == '-') return false;
  }
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, *out);
  if (end != last) return false;
  if (error == std::errc::result_out_of_range) {
    // Only this one distinguishes too small from too great; it takes hexadecimal numbers, too.
    absl::from_chars(text.data(), last, *out);
    *out = std::abs(*out) < 1 ? 0 : std::numeric_limits<double>::infinity();
    return true;
  }
  return error == std::errc();
}

}  // namespace

absl::Status LibsvmParser::Error(std::string_view field, std::string_view problem) const {
  const std::string_view shown = field.substr(0, kShownPairBytes);
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ":", line_, ": field ", field_count_ + 1, " \"",
                   absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                   shown.size() < field.size() ? "..." : "",
                   "\": ", absl::string_view(problem.data(), problem.size())));
}

absl::Status LibsvmParser::Parse(std::string_view piece) {
  while (!piece.empty()) {
    if (comment_) {
      piece.remove_prefix(std::min(piece.find('\n'), piece.size()));
      if (piece.empty()) return absl::OkStatus();
    }
    const size_t length = FieldLength(piece);
    const std::string_view part = piece.substr(0, length);
    if (length == piece.size() || !partial_.empty()) {
      partial_.append(part.substr(0, kMaxPairBytes + 1));
      if (length == piece.size() && partial_.size() <= kMaxPairBytes) return absl::OkStatus();
    }
    absl::Status status = EndField(partial_.empty() ? part : partial_);
    partial_.clear();
    if (!status.ok()) return status;
    if (length == piece.size()) return absl::OkStatus();
    const char end = piece[length];
    piece.remove_prefix(length + 1);
    comment_ = end == '#';
    if (end != '\n') continue;
    if (status = EndLine(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LibsvmParser::EndLine() {
  absl::Status status = EndField(partial_);
  partial_.clear();
  if (!status.ok()) return status;
  if (field_count_ > 0) out_->row_begin.push_back(out_->keys.size());
  ++line_;
  field_count_ = 0;
  previous_index_ = 0;
  comment_ = false;
  return absl::OkStatus();
}

absl::Status LibsvmParser::EndField(std::string_view field) {
  if (field.empty()) return absl::OkStatus();
  if (field.size() > kMaxPairBytes) {
    return Error(field, absl::StrCat("too long; allowed: ", kMaxPairBytes, " bytes, as ",
                                     field_count_ == 0 ? "a label 0, 1, -1 or +1"
                                                       : "a feature index:value"));
  }
  absl::Status status = field_count_ == 0 ? Label(field) : Feature(field);
  ++field_count_;
  return status;
}

absl::Status LibsvmParser::Label(std::string_view field) {
  double value;
  if (!ParseDouble(field, &value) || (value != 0 && value != 1 && value != -1)) {
    return Error(field, "not a label; allowed: 0, 1, -1, +1");
  }
  out_->labels.push_back(value > 0 ? 1.0f : 0.0f);
  return absl::OkStatus();
}

absl::Status LibsvmParser::Index(std::string_view field, std::string_view digits,
                                 uint64_t* index) const {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *index);
  const bool whole = end == digits.data() + digits.size() && !digits.empty();
  const bool too_great =
      error == std::errc::result_out_of_range || (error == std::errc() && *index > max_index_);
  if (!whole || (error != std::errc() && !too_great) || (!too_great && *index < 1)) {
    return Error(field, absl::StrCat("bad index; allowed: an integer from 1 to ", max_index_));
  }
  if (too_great) {
    return Error(
        field, absl::StrCat("bad index; allowed: an integer from 1 to ", max_index_,
                            max_index_ < kMaxIndex ? " where each has a dense weight; with --model "
                                                     "embedding-logistic, fm or mlp up to 2^63"
                                                   : ""));
  }
  if (*index > previous_index_) return absl::OkStatus();
  return Error(field, absl::StrCat("index not increasing; allowed after ", previous_index_,
                                   ": from ", previous_index_ + 1, " to ", max_index_));
}

absl::Status LibsvmParser::Feature(std::string_view field) {
  const size_t colon = field.find(':');
  if (colon == std::string_view::npos) return Error(field, "not a feature; allowed: index:value");
  uint64_t index = 0;
  if (absl::Status s = Index(field, field.substr(0, colon), &index); !s.ok()) return s;
  double value;
  if (!ParseDouble(field.substr(colon + 1), &value) || std::isnan(value)) {
    return Error(field, "bad value; allowed: a finite decimal number");
  }
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
    return Error(field, "bad value; allowed: a finite decimal number, from -3.4e38 to 3.4e38");
  }
  previous_index_ = index;
  out_->keys.push_back(index - 1);
  out_->values.push_back(static_cast<float>(value));
  out_->features = std::max(out_->features, index);
  return absl::OkStatus();
}

}  // namespace verbena::worker
