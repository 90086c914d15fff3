#include "rdma/lane/lane_config.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kMaxSlots = 256;         // 8 bits of RequestImm
constexpr uint32_t kMaxOperations = 65536;  // below 18 bits of ReplyImm, with the grant's index
constexpr uint32_t kMinSmallSlotBytes = 4096;
constexpr uint32_t kMaxSlotBytes = 64 << 20;

absl::Status Bad(const char* field, uint64_t value, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("lane.", field, " is ", value, "; allowed: ", allowed));
}

}  // namespace

absl::Status LaneConfig::Validate() const {
  if (small_slots < 1 || small_slots > kMaxSlots) {
    return Bad("small_slots", small_slots, absl::StrCat("1..", kMaxSlots));
  }
  if (large_slots > kMaxSlots - small_slots) {
    return Bad(
        "large_slots", large_slots,
        absl::StrCat("0..", kMaxSlots - small_slots, " beside ", small_slots, " small slots"));
  }
  if (small_slot_bytes < kMinSmallSlotBytes || small_slot_bytes > kMaxSlotBytes ||
      small_slot_bytes % kRecordAlignment != 0) {
    return Bad("small_slot_bytes", small_slot_bytes,
               absl::StrCat("a multiple of ", kRecordAlignment, " in ", kMinSmallSlotBytes, "..",
                            kMaxSlotBytes));
  }
  if (large_slots > 0 && (large_slot_bytes < small_slot_bytes || large_slot_bytes > kMaxSlotBytes ||
                          large_slot_bytes % kRecordAlignment != 0)) {
    return Bad("large_slot_bytes", large_slot_bytes,
               absl::StrCat("a multiple of ", kRecordAlignment, " in ", small_slot_bytes, "..",
                            kMaxSlotBytes));
  }
  if (operations < 1 || operations > kMaxOperations) {
    return Bad("operations", operations, absl::StrCat("1..", kMaxOperations));
  }
  return absl::OkStatus();
}

}  // namespace verbena::rdma
