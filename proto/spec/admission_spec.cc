#include "proto/spec/admission_spec.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

constexpr uint64_t kLeastSketchBytes = 4096;
constexpr uint64_t kMostSketchBytes = uint64_t{64} << 30;

absl::Status Refused(const v1::TableSpec& spec, const char* field, const std::string& value,
                     const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("table ", Quoted(spec.name()), ": admission.",
                                                 field, " is ", value, "; allowed: ", allowed));
}

absl::Status CheckCounts(const v1::TableSpec& spec) {
  const v1::Admission& a = spec.admission();
  const bool counts = a.kind() == v1::Admission::MIN_COUNT;
  if (counts ? a.min_count() < 2 || a.min_count() > kMaxMinCount : a.min_count() != 0) {
    return Refused(spec, "min_count", absl::StrCat(a.min_count()),
                   counts ? absl::StrCat("2..", kMaxMinCount) : "0, unless kind is 2 (min_count)");
  }
  if (counts ? a.sketch_bytes() < kLeastSketchBytes || a.sketch_bytes() > kMostSketchBytes
             : a.sketch_bytes() != 0) {
    return Refused(spec, "sketch_bytes", absl::StrCat(a.sketch_bytes()),
                   counts ? absl::StrCat(kLeastSketchBytes, "..", kMostSketchBytes, ", or 0 for ",
                                         kDefaultSketchBytes)
                          : "0, unless kind is 2 (min_count)");
  }
  return absl::OkStatus();
}

absl::Status CheckChance(const v1::TableSpec& spec) {
  const v1::Admission& a = spec.admission();
  const bool chance = a.kind() == v1::Admission::PROBABILITY;
  if (chance ? !(a.probability() > 0 && a.probability() < 1) : a.probability() != 0) {
    return Refused(spec, "probability", Number(a.probability()),
                   chance ? "more than 0 and less than 1" : "0, unless kind is 3 (probability)");
  }
  if (!chance && a.seed() != 0) {
    return Refused(spec, "seed", absl::StrCat(a.seed()), "0, unless kind is 3 (probability)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NormalizeAdmission(v1::TableSpec* spec) {
  v1::Admission& a = *spec->mutable_admission();
  if (a.kind() == v1::Admission::KIND_UNSPECIFIED) a.set_kind(v1::Admission::ALWAYS);
  if (!v1::Admission::Kind_IsValid(a.kind())) {
    return Refused(*spec, "kind", absl::StrCat(static_cast<int>(a.kind())),
                   "1 (always), 2 (min_count), 3 (probability)");
  }
  if (a.kind() != v1::Admission::ALWAYS && spec->dim() == 0) {
    return Refused(*spec, "kind", absl::StrCat(static_cast<int>(a.kind())),
                   "1 (always) for a dense table");
  }
  if (a.kind() == v1::Admission::MIN_COUNT && a.sketch_bytes() == 0) {
    a.set_sketch_bytes(kDefaultSketchBytes);
  }
  if (absl::Status status = CheckCounts(*spec); !status.ok()) return status;
  if (absl::Status status = CheckChance(*spec); !status.ok()) return status;
  if (a.kind() == v1::Admission::ALWAYS) spec->clear_admission();
  return absl::OkStatus();
}

std::optional<FieldDifference> FirstDifference(const v1::Admission& first,
                                               const v1::Admission& second) {
  const auto kind = [](const v1::Admission& a) {
    return a.kind() == v1::Admission::KIND_UNSPECIFIED ? v1::Admission::ALWAYS : a.kind();
  };
  if (kind(first) != kind(second)) {
    return FieldDifference{"admission.kind", v1::Admission::Kind_Name(kind(first)),
                           v1::Admission::Kind_Name(kind(second))};
  }
  if (first.min_count() != second.min_count()) {
    return FieldDifference{"admission.min_count", absl::StrCat(first.min_count()),
                           absl::StrCat(second.min_count())};
  }
  if (first.probability() != second.probability()) {
    return FieldDifference{"admission.probability", Number(first.probability()),
                           Number(second.probability())};
  }
  if (first.sketch_bytes() != second.sketch_bytes()) {
    return FieldDifference{"admission.sketch_bytes", absl::StrCat(first.sketch_bytes()),
                           absl::StrCat(second.sketch_bytes())};
  }
  if (first.seed() != second.seed()) {
    return FieldDifference{"admission.seed", absl::StrCat(first.seed()),
                           absl::StrCat(second.seed())};
  }
  return std::nullopt;
}

}  // namespace verbena
