// Posting: size checks, and writing a record.
#include <cstring>

#include "proto/wire/record_check.h"
#include "rdma/lane/worker_lane_impl.h"

namespace verbena::rdma {
namespace {

// Payloads up to this size are copied after the header: one segment is cheaper than a second
// gather, and the reply need not wait for the write's completion.
constexpr uint32_t kCopiedPayloadBytes = 1024;
// Payloads from this size on are sent by reference if the transport can: copying a payload that
// fits a small slot is faster than a reference.
constexpr uint32_t kReferredPayloadBytes = 4096;

}  // namespace

// The free list of slots for a record of this size; null: it fits none.
std::vector<uint32_t>* WorkerLane::Impl::FreeSlots(size_t group_count, size_t payload_bytes) {
  if (group_count < 1 || group_count > kMaxGroups) return nullptr;
  const size_t bytes = PayloadOffset(static_cast<uint32_t>(group_count)) + payload_bytes;
  if (bytes <= config().small_slot_bytes) return &free_small;
  if (config().large_slots > 0 && bytes <= config().large_slot_bytes) return &free_large;
  return nullptr;
}

absl::Status WorkerLane::Impl::CheckRequest(const Request& request) const {
  if (state != State::kOpen || broken) {
    return absl::FailedPreconditionError(
        absl::StrCat("lane ", ticket.lane, " is not open", error.ok() ? "" : ": ",
                     error.ok() ? absl::string_view() : error.message()));
  }
  const size_t prefix = request.prefix.size();
  // At most kMaxGroups: there would be no slot for more.
  const size_t most =
      kRecordStagingBytes - PayloadOffset(static_cast<uint32_t>(request.groups.size()));
  if (prefix % kRecordAlignment != 0 || prefix > most) {
    return absl::InvalidArgumentError(absl::StrCat("record prefix of ", prefix,
                                                   " bytes; allowed: a multiple of ",
                                                   kRecordAlignment, " up to ", most));
  }
  const Segment& payload = request.payload;
  if (payload.bytes == 0) return absl::OkStatus();
  const MemoryBlock* block = payload.block;
  if (payload.data == nullptr || block == nullptr || payload.data < block->data() ||
      payload.bytes > block->size() ||
      static_cast<size_t>(payload.data - block->data()) > block->size() - payload.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("record payload of ", payload.bytes, " bytes lies outside its memory block"));
  }
  return absl::OkStatus();
}

// Returns the length of the first segment.
uint32_t WorkerLane::Impl::WriteStaging(std::byte* to, const Request& request, uint32_t operation,
                                        absl::Span<const std::byte> copied) {
  RecordHeader header = request.header;
  header.magic = kRecordMagic;
  header.version = static_cast<uint16_t>(ticket.protocol);
  header.flags = 0;
  if (request.reference) {
    header.flags = kRecordReference;
    header.destination = request.reference->address;
    header.destination_key = request.reference->key;
  }
  header.generation = ticket.generation;
  header.operation = operation;
  header.incarnation = ticket.incarnation;
  header.group_count = static_cast<uint16_t>(request.groups.size());
  header.payload_bytes = static_cast<uint32_t>(PayloadBytes(request));
  const size_t group_bytes = request.groups.size() * sizeof(Group);
  uint32_t offset = PayloadOffset(header.group_count);
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), request.groups.data(), group_bytes);
  std::memset(to + sizeof(header) + group_bytes, 0, offset - sizeof(header) - group_bytes);
  if (!request.prefix.empty()) {
    std::memcpy(to + offset, request.prefix.data(), request.prefix.size());
    offset += static_cast<uint32_t>(request.prefix.size());
  }
  if (!copied.empty()) std::memcpy(to + offset, copied.data(), copied.size());
  return offset + static_cast<uint32_t>(copied.size());
}

absl::Status WorkerLane::Impl::Post(const Request& request) {
  if (absl::Status s = CheckRequest(request); !s.ok()) return s;
  std::vector<uint32_t>* free_slots = FreeSlots(request.groups.size(), SlotPayloadBytes(request));
  if (free_slots == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", request.groups.size(), " groups and ",
                     SlotPayloadBytes(request), " payload bytes fits no slot of lane ", ticket.lane,
                     "; allowed: 1..", kMaxGroups, " groups, slots of ", config().small_slot_bytes,
                     " and ", config().large_slot_bytes, " bytes"));
  }
  if (free_slots->empty() || free_operations.empty()) {
    ++counters.credit_stalls;
    return absl::ResourceExhaustedError(absl::StrCat(
        "lane ", ticket.lane, " has no free ", free_operations.empty() ? "operation" : "slot",
        "; granted: ", config().operations, " operations, ", config().small_slots, " small and ",
        config().large_slots, " large slots"));
  }
  const uint32_t operation = free_operations.back();
  const uint32_t slot = free_slots->back();
  const Segment payload = request.reference ? Segment() : request.payload;
  const bool copied =
      payload.bytes == 0 ||
      (payload.bytes <= kCopiedPayloadBytes && payload.block->kind() != MemoryKind::kCuda &&
       PayloadOffset(static_cast<uint32_t>(request.groups.size())) + PayloadBytes(request) <=
           kRecordStagingBytes);

  std::byte* const record = staging->data() + size_t{slot} * kRecordStagingBytes;
  const Segment segments[kMaxSegments] = {
      {record,
       WriteStaging(record, request, operation,
                    absl::MakeConstSpan(payload.data, copied ? payload.bytes : 0)),
       staging.get()},
      payload};
  WriteRequest write;
  write.wr_id = slot;
  write.segments = absl::MakeConstSpan(segments, copied ? 1 : 2);
  write.remote = {ring.address + config().slot_offset(slot), ring.key};
  write.immediate = RequestImm{ticket.lane, slot, ticket.generation}.Encode();
  if (absl::Status s = endpoint->PostWrite(connection, write); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;
    } else {
      // Unregistrable memory is not a bug; any other error here is a bug of this process.
      Close(absl::Status(absl::IsResourceExhausted(s) ? s.code() : absl::StatusCode::kInternal,
                         absl::StrCat("lane ", ticket.lane, ": ", s.message())));
    }
    return s;
  }
  watch.Posted();
  free_operations.pop_back();
  free_slots->pop_back();
  Begin(request, operation, slot, copied);
  return absl::OkStatus();
}

void WorkerLane::Impl::Begin(const Request& request, uint32_t operation, uint32_t slot,
                             bool copied) {
  Operation& o = operations[operation];
  o.cookie = request.cookie;
  o.serial = next_serial++;
  o.min_version = request.header.min_version;
  o.group_count = static_cast<uint16_t>(request.groups.size());
  o.in_use = true;
  o.reading = !copied;
  o.replied = false;
  o.reported = false;
  o.previous = newest;
  o.next = kNone;
  (newest == kNone ? oldest : operations[newest].next) = operation;
  newest = operation;
  ++in_use;
  slots[slot] = {o.serial, operation, true, true};
  ++counters.records;
  counters.payload_bytes += PayloadBytes(request);
  if (request.reference) counters.referenced_bytes += request.payload.bytes;
}

bool WorkerLane::CanPost(size_t group_count, size_t payload_bytes, const Reserve& reserve) const {
  if (impl_->state != State::kOpen || impl_->broken) return false;
  if (impl_->free_operations.size() <= reserve.operations) return false;
  const std::vector<uint32_t>* slots = impl_->FreeSlots(group_count, payload_bytes);
  if (slots == nullptr) return false;
  const bool small = slots == &impl_->free_small;
  return slots->size() > (small ? reserve.small_slots : reserve.large_slots);
}

std::optional<RemoteMemory> WorkerLane::Refer(const std::shared_ptr<MemoryBlock>& block,
                                              const std::byte* data, uint32_t bytes) {
  if (bytes < kReferredPayloadBytes || !impl_->endpoint->CanBorrow() || !block->allocated()) {
    return std::nullopt;
  }
  const auto whole = Expose(block);
  if (!whole.ok()) return std::nullopt;  // a copy works instead, or returns the error
  return RemoteMemory{whole->address + static_cast<uint64_t>(data - block->data()), whole->key};
}

absl::Status WorkerLane::Post(const Request& request) { return impl_->Post(request); }

}  // namespace verbena::rdma
