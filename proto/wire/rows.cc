// Requests about rows of embedding tables: their keys, and the rows of a push.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/bags.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"

namespace verbena::wire {

absl::Status ValidatePushRows(const RecordHeader& header, absl::Span<const Group> groups) {
  const uint64_t count = TotalCount(groups);
  const uint64_t bytes = header.payload_bytes;
  // The number of elements in a row depends on the table, which is not known here.
  const uint64_t rows = bytes - std::min(KeyBytes(count), bytes);
  if (count == 0 ? bytes == 0 : rows > 0 && rows % (count * kRowMultiple) == 0) {
    return absl::OkStatus();
  }
  return InvalidField(
      kRecord, "payload_bytes", bytes,
      absl::StrCat(count == 0 ? 0 : KeyBytes(count), " for the groups' ", count,
                   " keys and as many rows of ", kRowMultiple, " bytes or a multiple of that"));
}

absl::Status ValidateKeys(const RecordHeader& header, absl::Span<const Group> groups) {
  const uint64_t count = TotalCount(groups);
  if (count > 0 && header.payload_bytes == count * sizeof(uint64_t)) return absl::OkStatus();
  return InvalidField(kRecord, "payload_bytes", header.payload_bytes,
                      absl::StrCat("8 for each of the groups' ", count, " keys, at least one"));
}

absl::Status ValidateLookupBags(const RecordHeader& header, absl::Span<const Group> groups) {
  if (header.bags < 1 || header.bags > kMaxBags) {
    return InvalidField(kRecord, "bags", header.bags,
                        absl::StrCat("1..", kMaxBags, " for a lookup of bags"));
  }
  const uint64_t count = TotalCount(groups);
  if (count > 0 && header.payload_bytes == BagPayloadBytes(count)) return absl::OkStatus();
  return InvalidField(kRecord, "payload_bytes", header.payload_bytes,
                      absl::StrCat(BagPayloadBytes(count), " for the groups' ", count,
                                   " keys, at least one, and 8 for each"));
}

}  // namespace verbena::wire

namespace verbena {

absl::Status CopyKeys(const Record& record, absl::Span<const std::byte> payload,
                      std::vector<uint64_t>* keys) {
  const uint64_t count = wire::TotalCount(record.group_span());
  if (count * sizeof(uint64_t) > payload.size()) {
    return wire::InvalidField(wire::kRecord, "payload_bytes", payload.size(),
                              absl::StrCat("at least 8 for each of ", count, " keys"));
  }
  keys->resize(count);
  if (count > 0) std::memcpy(keys->data(), payload.data(), count * sizeof(uint64_t));
  wire::CopiedOut(keys->data());
  const bool repeat = wire::OperationOf(record.header.type).bags;
  const uint64_t* key = keys->data();
  for (const Group& group : record.group_span()) {
    for (uint32_t i = 1; i < group.count; ++i) {
      if (key[i - 1] < key[i] || (repeat && key[i - 1] == key[i])) continue;
      return wire::InvalidField(wire::kRecord, absl::StrCat("keys[", key + i - keys->data(), "]"),
                                key[i],
                                absl::StrCat(repeat ? "not less" : "more",
                                             " than the key before it in its group, ", key[i - 1]));
    }
    key += group.count;
  }
  return absl::OkStatus();
}

absl::Status CopyBagUses(const Record& record, absl::Span<const std::byte> payload,
                         std::vector<BagUse>* uses) {
  const uint64_t count = wire::TotalCount(record.group_span());
  if (BagPayloadBytes(count) > payload.size()) {
    return wire::InvalidField(
        wire::kRecord, "payload_bytes", payload.size(),
        absl::StrCat("at least ", BagPayloadBytes(count), " for ", count, " keys"));
  }
  uses->resize(count);
  const std::byte* from = payload.data() + KeyBytes(count);
  if (count > 0) std::memcpy(uses->data(), from, count * sizeof(BagUse));
  wire::CopiedOut(uses->data());
  const uint32_t bags = record.header.bags;
  for (size_t i = 0; i < uses->size(); ++i) {
    if ((*uses)[i].bag < bags) continue;
    return wire::NotBelow(wire::kRecord, absl::StrCat("uses[", i, "].bag"), (*uses)[i].bag, bags);
  }
  return absl::OkStatus();
}

}  // namespace verbena
