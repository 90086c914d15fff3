// Errors about a field of a record.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_INVALID_FIELD_H_
#define VERBENA_PROTO_WIRE_INVALID_FIELD_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/record.h"

namespace verbena::wire {

inline constexpr std::string_view kRecord = "record";

// INVALID_ARGUMENT "RECORD.FIELD is VALUE; allowed: ALLOWED". Out of line: only a malformed record
// pays for its message.
template <typename Value>
[[gnu::cold, gnu::noinline]] absl::Status InvalidField(std::string_view what,
                                                       std::string_view field, const Value& value,
                                                       std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(what.data(), what.size()), ".",
                   absl::string_view(field.data(), field.size()), " is ", value,
                   "; allowed: ", absl::string_view(allowed.data(), allowed.size())));
}

[[gnu::cold, gnu::noinline]] inline absl::Status NotEqual(std::string_view what,
                                                          std::string_view field, uint64_t value,
                                                          uint64_t allowed) {
  return InvalidField(what, field, value, absl::StrCat(allowed));
}

[[gnu::cold, gnu::noinline]] inline absl::Status NotBelow(std::string_view what,
                                                          std::string_view field, uint64_t value,
                                                          uint64_t limit) {
  return InvalidField(what, field, value, absl::StrCat("less than ", limit));
}

// Call after a copy from memory that the peer can write. The compiler then cannot assume that
// source and copy are equal, so it cannot replace a later read of the copy by a second read of the
// source.
inline void CopiedOut(const void* copy) { asm volatile("" : : "r"(copy) : "memory"); }

inline uint64_t TotalCount(absl::Span<const Group> groups) {
  uint64_t count = 0;
  for (const Group& group : groups) count += group.count;
  return count;
}

}  // namespace verbena::wire

#endif  // VERBENA_PROTO_WIRE_INVALID_FIELD_H_
