#include "shard/replica/copy_tails.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "proto/wire/record_check.h"

namespace verbena::shard {

namespace {

uint64_t Aligned(uint64_t bytes) { return (bytes + kTailAlignment - 1) & ~(kTailAlignment - 1); }

absl::Span<const std::byte> BytesOf(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

bool AllZero(absl::Span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

uint64_t CopyTails::Encoded(const TailRecord& record) {
  return sizeof(TailRecord) + Aligned(record.header.total_bytes);
}

void CopyTails::DropFirst(Tail* tail) {
  Item& first = tail->items.front();
  tail->base.sequence = first.record.group.sequence;
  tail->base.epoch = first.record.group.epoch;
  tail->bytes -= Encoded(first.record);
  bytes_ -= Encoded(first.record);
  pool_.ReturnScratch(first.data);
  tail->items.pop_front();
}

void CopyTails::Begin(uint32_t partition, const Group& last) {
  Forget(partition);
  tails_[partition].base.sequence = last.sequence;
  tails_[partition].base.epoch = last.epoch;
}

void CopyTails::Add(uint32_t partition, uint32_t table, const Group& group,
                    const ReplicaHeader& header, absl::Span<const std::byte> data) {
  Tail& tail = tails_[partition];
  Item item = {};
  item.record.table = table;
  item.record.group = group;
  item.record.header = header;
  item.record.header.total_bytes = static_cast<uint32_t>(data.size());
  item.record.header.part_offset = 0;
  const uint64_t bytes = Encoded(item.record);
  const uint64_t most = limits_.partition_bytes / 4, most_of_all = limits_.shard_bytes / 4;
  while (!tail.items.empty() && (tail.bytes + bytes > most || bytes_ + bytes > most_of_all)) {
    DropFirst(&tail);
  }
  const bool fits = tail.bytes + bytes <= most && bytes_ + bytes <= most_of_all;
  if (fits && !data.empty()) item.data = pool_.TakeScratch(data.size());
  if (!fits || (!data.empty() && item.data.data == nullptr)) return Begin(partition, group);
  if (!data.empty()) std::memcpy(item.data.data, data.data(), data.size());
  tail.bytes += bytes;
  bytes_ += bytes;
  tail.items.push_back(item);
}

void CopyTails::Forget(uint32_t partition) {
  Tail& tail = tails_[partition];
  while (!tail.items.empty()) DropFirst(&tail);
  tail = {};
}

void CopyTails::Trim() {
  for (Tail& tail : tails_) {
    while (!tail.items.empty()) DropFirst(&tail);
  }
}

Buffer CopyTails::Encode(uint32_t partition, uint32_t* bytes) const {
  const Tail& tail = tails_[partition];
  *bytes = 0;
  if (tail.items.empty() || tail.bytes > UINT32_MAX - sizeof(TailBase)) return {};
  const size_t total = sizeof(TailBase) + tail.bytes;
  const Buffer payload = pool_.TakeScratch(total);
  if (payload.data == nullptr) return {};
  std::byte* at = payload.data;
  std::memcpy(at, &tail.base, sizeof(TailBase));
  at += sizeof(TailBase);
  for (const Item& item : tail.items) {
    std::memcpy(at, &item.record, sizeof(TailRecord));
    at += sizeof(TailRecord);
    const size_t data = item.record.header.total_bytes;
    if (data > 0) std::memcpy(at, item.data.data, data);
    std::memset(at + data, 0, Aligned(data) - data);
    at += Aligned(data);
  }
  *bytes = static_cast<uint32_t>(total);
  return payload;
}

ReplyStatus CopyTails::Decode(absl::Span<const std::byte> payload, uint32_t partition,
                              TailBase* base, Visit visit) {
  if (payload.size() < sizeof(TailBase)) return ReplyStatus::kMalformed;
  std::memcpy(base, payload.data(), sizeof(TailBase));
  payload.remove_prefix(sizeof(TailBase));
  if (!AllZero(BytesOf(base->reserved0))) return ReplyStatus::kMalformed;
  TailRecord record;
  Record checked;
  while (!payload.empty()) {
    if (payload.size() < sizeof(record)) return ReplyStatus::kMalformed;
    std::memcpy(&record, payload.data(), sizeof(record));
    const size_t bytes = record.header.total_bytes;
    if (Encoded(record) > payload.size() || record.group.partition != partition) {
      return ReplyStatus::kMalformed;
    }
    // A later protocol may give the unused bytes a meaning that this one must not ignore.
    const auto padding = payload.subspan(sizeof(record) + bytes, Aligned(bytes) - bytes);
    if (!AllZero(BytesOf(record.reserved0)) || !AllZero(padding)) return ReplyStatus::kMalformed;
    checked.groups[0] = record.group;
    absl::Span<const std::byte> data;
    const auto whole = payload.subspan(offsetof(TailRecord, header), sizeof(ReplicaHeader) + bytes);
    if (!CopyReplicaHeader(checked, whole, &record.header, &data).ok() ||
        data.size() != record.header.total_bytes) {
      return ReplyStatus::kMalformed;
    }
    const ReplyStatus status = visit(record, data);
    if (status != ReplyStatus::kOk) return status;
    payload.remove_prefix(sizeof(record) + Aligned(bytes));
  }
  return ReplyStatus::kOk;
}

}  // namespace verbena::shard
