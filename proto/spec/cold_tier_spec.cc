#include "proto/spec/cold_tier_spec.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"

namespace verbena {

absl::Status NormalizeColdTier(v1::TableSpec* spec) {
  const uint64_t bytes = HotBytes(*spec);
  const auto refused = [&](const std::string& allowed) {
    return absl::InvalidArgumentError(absl::StrCat("table ", Quoted(spec->name()),
                                                   ": cold_tier.hot_bytes is ", bytes,
                                                   "; allowed: ", allowed));
  };
  if (bytes == 0) {
    spec->clear_cold_tier();
    return absl::OkStatus();
  }
  if (spec->dim() == 0) return refused("0 for a dense table");
  if (bytes < kMinHotBytes) {
    return refused(absl::StrCat(kMinHotBytes, " and more, or 0: all rows in memory"));
  }
  return absl::OkStatus();
}

std::optional<FieldDifference> FirstDifference(const v1::ColdTier& first,
                                               const v1::ColdTier& second) {
  if (first.hot_bytes() == second.hot_bytes()) return std::nullopt;
  return FieldDifference{"cold_tier.hot_bytes", absl::StrCat(first.hot_bytes()),
                         absl::StrCat(second.hot_bytes())};
}

}  // namespace verbena
