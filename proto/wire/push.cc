// A push: one chunk of a dense table.
#include "absl/strings/str_cat.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"

namespace verbena::wire {

absl::Status ValidatePush(const RecordHeader& header, absl::Span<const Group> groups) {
  const uint64_t count = TotalCount(groups);
  const uint64_t bytes = header.payload_bytes;
  if (bytes == PayloadBytes(header.dtype, count)) return absl::OkStatus();
  return InvalidField(
      kRecord, "payload_bytes", bytes,
      InBlocks(header.dtype)
          ? absl::StrCat(CodecBlockBytes(header.dtype), " for each ", CodecBlock(header.dtype),
                         " of the group's ", count, " elements, or less of them")
          : absl::StrCat(ElementBytes(header.dtype), " for each of the group's ", count,
                         " elements"));
}

}  // namespace verbena::wire
