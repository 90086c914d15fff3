#include "shard/table/partitioned_table.h"

#include "absl/strings/str_cat.h"

namespace verbena::shard {

uint32_t PartitionedTable::Claim(uint32_t partition, const Placement& placement) {
  uint32_t& index = slice_of_partition_[partition];
  if (index != kNone && placement.lost) lives_[index].state = LocalPartitionState::kAbsent;
  if (!placement.ours || placement.lost) return kNone;
  if (index == kNone) {
    index = slices();
    lives_.push_back({partition, LocalPartitionState::kAbsent});
  }
  return lives_[index].state == LocalPartitionState::kGone ? kNone : index;
}

absl::Status CheckServable(const v1::Table& table) {
  const v1::TableSpec& spec = table.spec();
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table.id(), " \"", spec.name(), "\": ", why...));
  };
  if (!v1::Consistency_IsValid(spec.consistency()) ||
      spec.consistency() == v1::CONSISTENCY_UNSPECIFIED) {
    return refuse("consistency ", spec.consistency(), " is not served");
  }
  return absl::OkStatus();
}

}  // namespace verbena::shard
