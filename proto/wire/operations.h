// The operations of the data plane: the traits that all requests of one type have.
//
// Generic code (lanes, validation, dispatch) reads these traits; it does not ask which operation a
// request is. A new operation has a RecordType, one line in kOperations, its rule in
// proto/wire/NAME.cc if it has rules beyond the traits, its handler in shard/operations/ and its
// client side.
//
// **Thread safety**: constants and pure functions.
#ifndef VERBENA_PROTO_WIRE_OPERATIONS_H_
#define VERBENA_PROTO_WIRE_OPERATIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"

namespace verbena::wire {

// The element types that a request may name in RecordHeader::dtype.
enum class Elements : uint8_t {
  kNone,       // kNone or kF32: it has none, and the field does not matter
  kF32,        // rows are summed or read as they are
  kTable,      // of a table: f32, 16 bits, and the codecs of 8 bits
  kGradients,  // of pushes: as kTable, and the codecs of gradients only
};

// The latency histogram in which a server counts a request.
enum class Latency : uint8_t { kPush, kPull, kOther };

// Checks the rules that are no traits: the size of the payload, the groups.
using ValidateGroups = absl::Status (*)(const RecordHeader& header, absl::Span<const Group> groups);

struct OperationTraits {
  RecordType type;
  std::string_view name;  // in errors
  Elements elements = Elements::kNone;
  Latency latency = Latency::kOther;
  bool between_servers = false;  // sent by servers alone; the others by workers alone
  bool one_group = false;        // false: 1 to kMaxGroups
  bool payload = false;          // may have one
  bool by_reference = false;     // its payload may be in the sender's memory (kRecordReference)
  bool assigns = false;          // its data is new parameters, which replace the old ones
  bool state = false;            // of RecordHeader::array of the optimizer's state
  bool bags = false;             // RecordHeader::bags is its number of bags; the keys may repeat
  bool followers = false;        // RecordHeader::bags may ask a follower
  bool makes_steps = false;      // it is part of a worker's steps, so Group::admission may be set
  // Its reply shows commits of others: a primary answers it only while it has its lease.
  bool reads = false;
  // It makes records for replicas: it may wait in its slot for room in their log, and then later
  // ones of its partitions wait behind it.
  bool replicated = false;
  ValidateGroups validate = nullptr;  // null: it has no other rules
};

absl::Status ValidatePush(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidatePushRows(const RecordHeader& header, absl::Span<const Group> groups);
// A lookup and a prefetch have keys alone.
absl::Status ValidateKeys(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidateLookupBags(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidateNorms(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidateTotals(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidateSetOptimizer(const RecordHeader& header, absl::Span<const Group> groups);
absl::Status ValidateReplicate(const RecordHeader& header, absl::Span<const Group> groups);

// In the order of RecordType.
inline constexpr std::array<OperationTraits, 18> kOperations = {{
    {.type = RecordType::kPush,
     .name = "push",
     .elements = Elements::kGradients,
     .latency = Latency::kPush,
     .one_group = true,
     .payload = true,
     .by_reference = true,
     .makes_steps = true,
     .replicated = true,
     .validate = ValidatePush},
    {.type = RecordType::kPull,
     .name = "pull",
     .elements = Elements::kTable,
     .latency = Latency::kPull,
     .one_group = true,
     .followers = true,
     .reads = true},
    {.type = RecordType::kEndStep, .name = "end-step", .makes_steps = true, .replicated = true},
    {.type = RecordType::kAwait, .name = "await", .makes_steps = true, .reads = true},
    {.type = RecordType::kPushRows,
     .name = "push of rows",
     .elements = Elements::kTable,
     .latency = Latency::kPush,
     .payload = true,
     .makes_steps = true,
     .replicated = true,
     .validate = ValidatePushRows},
    {.type = RecordType::kLookup,
     .name = "lookup",
     .elements = Elements::kTable,
     .latency = Latency::kPull,
     .payload = true,
     .reads = true,
     .validate = ValidateKeys},
    {.type = RecordType::kScan,
     .name = "scan",
     .elements = Elements::kF32,
     .one_group = true,
     .reads = true},
    {.type = RecordType::kNorms, .name = "norms", .reads = true, .validate = ValidateNorms},
    {.type = RecordType::kTotals, .name = "totals", .payload = true, .validate = ValidateTotals},
    {.type = RecordType::kReplicate,
     .name = "replicate",
     .between_servers = true,
     .one_group = true,
     .payload = true,
     .validate = ValidateReplicate},
    {.type = RecordType::kBeacon, .name = "beacon", .between_servers = true},
    {.type = RecordType::kLookupBags,
     .name = "lookup of bags",
     .elements = Elements::kF32,
     .latency = Latency::kPull,
     .payload = true,
     .bags = true,
     .reads = true,
     .validate = ValidateLookupBags},
    {.type = RecordType::kPrefetch, .name = "prefetch", .payload = true, .validate = ValidateKeys},
    {.type = RecordType::kAssign,
     .name = "assignment",
     .elements = Elements::kTable,
     .latency = Latency::kPush,
     .one_group = true,
     .payload = true,
     .by_reference = true,
     .assigns = true,
     .makes_steps = true,
     .replicated = true,
     .validate = ValidatePush},
    {.type = RecordType::kAssignRows,
     .name = "assignment of rows",
     .elements = Elements::kF32,
     .latency = Latency::kPush,
     .payload = true,
     .assigns = true,
     .makes_steps = true,
     .replicated = true,
     .validate = ValidatePushRows},
    {.type = RecordType::kSetOptimizer,
     .name = "change of the optimizer",
     .payload = true,
     .replicated = true,
     .validate = ValidateSetOptimizer},
    {.type = RecordType::kPullState,
     .name = "pull of state",
     .elements = Elements::kF32,
     .latency = Latency::kPull,
     .one_group = true,
     .state = true,
     .reads = true},
    {.type = RecordType::kAssignState,
     .name = "assignment of state",
     .elements = Elements::kF32,
     .latency = Latency::kPush,
     .one_group = true,
     .payload = true,
     .by_reference = true,
     .assigns = true,
     .state = true,
     .makes_steps = true,
     .replicated = true,
     .validate = ValidatePush},
}};

constexpr bool InOrder() {
  for (size_t i = 0; i < kOperations.size(); ++i) {
    if (static_cast<size_t>(kOperations[i].type) != i + 1) return false;
  }
  return true;
}
static_assert(InOrder(), "the types count from 1, and each has its traits at its place");

// Null: there is no such operation.
constexpr const OperationTraits* FindOperation(RecordType type) {
  const size_t index = static_cast<size_t>(type) - 1;  // type 0 wraps, and is refused as well
  return index < kOperations.size() ? &kOperations[index] : nullptr;
}

// For a type that FindOperation() knows.
constexpr const OperationTraits& OperationOf(RecordType type) {
  return kOperations[static_cast<size_t>(type) - 1];
}

}  // namespace verbena::wire

#endif  // VERBENA_PROTO_WIRE_OPERATIONS_H_
