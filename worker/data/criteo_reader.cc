#include "worker/data/criteo_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/train/random.h"

namespace verbena::worker {
namespace {

constexpr uint32_t kFields = 1 + kCriteoIntegers + kCriteoCategories;
// Integers may begin with zeros.
constexpr size_t kMaxFieldBytes = 4096;
constexpr size_t kShownBytes = 24;
constexpr size_t kMaxCategoryDigits = 8;

// As Criteo's description numbers them.
std::string FieldName(uint32_t field) {
  if (field == 0) return "label";
  if (field <= kCriteoIntegers) return absl::StrCat("I", field);
  if (field < kFields) return absl::StrCat("C", field - kCriteoIntegers);
  return "one too many";
}

float LogOf(int64_t value) { return static_cast<float>(std::log1p(static_cast<double>(value))); }

// Most integers are small, and the logarithm is the dearest part of reading them.
constexpr size_t kSmallIntegers = 4096;
const std::array<float, kSmallIntegers>& SmallLogs() {
  static const std::array<float, kSmallIntegers> kLogs = [] {
    std::array<float, kSmallIntegers> logs = {};
    for (size_t i = 0; i < logs.size(); ++i) logs[i] = LogOf(static_cast<int64_t>(i));
    return logs;
  }();
  return kLogs;
}

template <typename T>
bool ParseWhole(std::string_view text, int base, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

uint64_t CriteoKey(uint32_t field, std::optional<uint32_t> category) {
  // Mix() is a bijection, so keys collide only if its arguments do.
  constexpr uint64_t kMissing = 1u << 8;
  const uint64_t high = category ? field : field | kMissing;
  return Mix(high << 32 | category.value_or(0));
}

KeyedExamples CriteoShape() {
  KeyedExamples shape;
  shape.fields = kCriteoCategories;
  shape.input_width = kCriteoIntegers;
  return shape;
}

CriteoParser::CriteoParser(std::string_view name, KeyedExamples* out, uint64_t first_line)
    : name_(name), out_(out), line_(first_line) {
  out_->fields = kCriteoCategories;
  out_->input_width = kCriteoIntegers;
}

absl::Status CriteoParser::Error(std::string_view field, std::string_view problem) const {
  const std::string_view shown = field.substr(0, kShownBytes);
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ":", line_, ": field ", field_count_ + 1, " (", FieldName(field_count_),
                   ") \"", absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                   shown.size() < field.size() ? "..." : "",
                   "\": ", absl::string_view(problem.data(), problem.size())));
}

absl::Status CriteoParser::Parse(std::string_view piece) {
  while (!piece.empty()) {
    const auto* end =
        std::find_if(piece.begin(), piece.end(), [](char c) { return c == '\t' || c == '\n'; });
    const auto length = static_cast<size_t>(end - piece.begin());
    const std::string_view part = piece.substr(0, length);
    if (length == piece.size()) {
      partial_.append(part.substr(0, 2 * kMaxFieldBytes));
      if (partial_.size() > kMaxFieldBytes) return EndField(partial_, false);
      return absl::OkStatus();
    }
    absl::Status status;
    if (partial_.empty()) {
      status = EndField(part, *end == '\n');
    } else {
      partial_.append(part.substr(0, 2 * kMaxFieldBytes));
      status = EndField(partial_, *end == '\n');
      partial_.clear();
    }
    if (!status.ok()) return status;
    piece.remove_prefix(length + 1);
  }
  return absl::OkStatus();
}

absl::Status CriteoParser::Finish() {
  if (field_count_ > 0 || !partial_.empty()) return EndField(partial_, true);
  return absl::OkStatus();
}

absl::Status CriteoParser::EndField(std::string_view field, bool ends_line) {
  if (ends_line && !field.empty() && field.back() == '\r') field.remove_suffix(1);
  if (ends_line && field_count_ == 0 && field.empty()) {
    ++line_;
    return absl::OkStatus();
  }
  if (field_count_ >= kFields) return Error(field, "allowed: 40 fields on a line");
  absl::Status status;
  if (field_count_ == 0) {
    status = Label(field);
  } else if (field_count_ <= kCriteoIntegers) {
    status = Integer(field);
  } else {
    status = Category(field);
  }
  if (!status.ok()) return status;
  if (ends_line) return EndLine(field);
  ++field_count_;
  return absl::OkStatus();
}

absl::Status CriteoParser::EndLine(std::string_view last_field) {
  if (field_count_ + 1 != kFields) {
    return Error(last_field, absl::StrCat("the line ends after ", field_count_ + 1,
                                          field_count_ == 0 ? " field" : " fields",
                                          "; allowed: 40 (label, 13 integers, 26 categories)"));
  }
  out_->row_begin.push_back(out_->keys.size());
  ++line_;
  field_count_ = 0;
  return absl::OkStatus();
}

absl::Status CriteoParser::Label(std::string_view field) {
  if (field != "0" && field != "1") return Error(field, "not a label; allowed: 0, 1");
  out_->labels.push_back(field == "1" ? 1.0f : 0.0f);
  return absl::OkStatus();
}

absl::Status CriteoParser::Integer(std::string_view field) {
  int64_t value = 0;
  if (!field.empty() && (field.size() > kMaxFieldBytes || !ParseWhole(field, 10, &value))) {
    return Error(field, "not an integer; allowed: nothing, or a decimal integer of 64 bits");
  }
  const auto counted = static_cast<uint64_t>(std::max<int64_t>(value, 0));
  out_->inputs.push_back(counted < kSmallIntegers ? SmallLogs()[counted] : LogOf(value));
  return absl::OkStatus();
}

absl::Status CriteoParser::Category(std::string_view field) {
  std::optional<uint32_t> category;
  if (!field.empty()) {
    // from_chars would take a sign from no unsigned number, but any number of zeros.
    uint32_t value = 0;
    if (field.size() > kMaxCategoryDigits || !ParseWhole(field, 16, &value)) {
      return Error(field, "not a category; allowed: nothing, or 1 to 8 hexadecimal digits");
    }
    category = value;
  }
  out_->keys.push_back(CriteoKey(field_count_ - 1 - kCriteoIntegers, category));
  return absl::OkStatus();
}

}  // namespace verbena::worker
