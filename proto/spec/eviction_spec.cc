#include "proto/spec/eviction_spec.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

absl::Status Refused(const v1::TableSpec& spec, const char* field, uint64_t value,
                     const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("table ", Quoted(spec.name()), ": eviction.",
                                                 field, " is ", value, "; allowed: ", allowed));
}

absl::Status CheckTtl(const v1::TableSpec& spec) {
  const v1::Eviction& e = spec.eviction();
  const bool ages = e.kind() == v1::Eviction::TTL_STEPS || e.kind() == v1::Eviction::TTL_SECONDS;
  if (ages ? e.ttl() >= 1 && e.ttl() <= kMaxTtl : e.ttl() == 0) return absl::OkStatus();
  return Refused(
      spec, "ttl", e.ttl(),
      ages ? absl::StrCat("1..", kMaxTtl) : "0, unless kind is 2 (ttl_steps) or 3 (ttl_seconds)");
}

absl::Status CheckLimits(const v1::TableSpec& spec) {
  const v1::Eviction& e = spec.eviction();
  const bool limits = e.kind() == v1::Eviction::LRU || e.kind() == v1::Eviction::LFU;
  if (!limits) {
    const char* const none = "0, unless kind is 4 (lru) or 5 (lfu)";
    if (e.max_rows() != 0) return Refused(spec, "max_rows", e.max_rows(), none);
    if (e.max_bytes() != 0) return Refused(spec, "max_bytes", e.max_bytes(), none);
    return absl::OkStatus();
  }
  if (e.max_rows() != 0 && e.max_bytes() != 0) {
    return Refused(spec, "max_bytes", e.max_bytes(), "0 where max_rows is set");
  }
  if (e.max_rows() == 0 && e.max_bytes() == 0) {
    return Refused(spec, "max_rows", 0, "1 and more, or max_bytes instead");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NormalizeEviction(v1::TableSpec* spec) {
  v1::Eviction& e = *spec->mutable_eviction();
  e.set_kind(KindOf(e));
  if (!v1::Eviction::Kind_IsValid(e.kind())) {
    return Refused(*spec, "kind", static_cast<uint64_t>(e.kind()),
                   "1 (never), 2 (ttl_steps), 3 (ttl_seconds), 4 (lru), 5 (lfu)");
  }
  if (e.kind() != v1::Eviction::NEVER && spec->dim() == 0) {
    return Refused(*spec, "kind", static_cast<uint64_t>(e.kind()), "1 (never) for a dense table");
  }
  if (absl::Status status = CheckTtl(*spec); !status.ok()) return status;
  if (absl::Status status = CheckLimits(*spec); !status.ok()) return status;
  if (e.kind() == v1::Eviction::NEVER) spec->clear_eviction();
  return absl::OkStatus();
}

std::optional<FieldDifference> FirstDifference(const v1::Eviction& first,
                                               const v1::Eviction& second) {
  const auto differs = [](const char* field, uint64_t a, uint64_t b) {
    return FieldDifference{field, absl::StrCat(a), absl::StrCat(b)};
  };
  if (KindOf(first) != KindOf(second)) {
    return FieldDifference{"eviction.kind", v1::Eviction::Kind_Name(KindOf(first)),
                           v1::Eviction::Kind_Name(KindOf(second))};
  }
  if (first.ttl() != second.ttl()) return differs("eviction.ttl", first.ttl(), second.ttl());
  if (first.max_rows() != second.max_rows()) {
    return differs("eviction.max_rows", first.max_rows(), second.max_rows());
  }
  if (first.max_bytes() != second.max_bytes()) {
    return differs("eviction.max_bytes", first.max_bytes(), second.max_bytes());
  }
  return std::nullopt;
}

}  // namespace verbena
