// Handlers of a worker's requests: from the record to the engine, and from there to the caller's
// next action.
//
// Each operation has one handler, in a file of its own; HandleRequest() finds it by the type.
//
// **Thread safety**: the engine's owner thread.
#ifndef VERBENA_SHARD_OPERATIONS_OPERATIONS_H_
#define VERBENA_SHARD_OPERATIONS_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/bags.h"
#include "proto/wire/record_check.h"
#include "shard/engine.h"

namespace verbena::shard {

// A request that CopyRecord() has returned.
struct Request {
  Token token;
  uint64_t worker = 0;  // incarnation
  const Record& record;
  absl::Span<const std::byte> payload;
  bool may_park = true;  // false: it is refused if it cannot be answered at once
};

// The caller's next action.
struct Outcome {
  enum class Kind : uint8_t {
    kAnswer,       // send `answer`, and return the slot
    kWrite,        // write `view` to the request's destination, then as kAnswer
    kHeld,         // nothing: the slot stays in use until a kPushDone event
    kReplicating,  // return the slot; a kReplicated event follows
    kDeferred,     // return the slot; an event follows
    kNoRoom,       // keep the request, and handle it again after Engine::TakeRoom()
    kMalformed     // close the lane: the payload breaks the rules (`malformed`)
  };
  Kind kind = Kind::kAnswer;
  Answer answer;
  // kAnswer, kWrite: one per group, or empty. Valid until the next call.
  absl::Span<const ReplyStatus> group_status = {};
  ChunkView view = {};
  absl::Status malformed = absl::OkStatus();
};

// Memory that handlers use again, so that the hot path does not allocate.
struct Scratch {
  std::vector<uint64_t> keys;
  std::vector<BagUse> uses;
  std::vector<NamedValue> values;
};

// Handles a request of an operation that workers send (wire::OperationTraits).
Outcome HandleRequest(Engine* engine, const Request& request, Scratch* scratch);

// ---- for the handlers ----

Outcome HandlePush(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandlePull(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleEndStep(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleAwait(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandlePushRows(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleLookup(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleScan(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleNorms(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleTotals(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandlePrefetch(Engine* engine, const Request& request, Scratch* scratch);
Outcome HandleSetOptimizer(Engine* engine, const Request& request, Scratch* scratch);

Outcome Malformed(absl::Status status);
Outcome FromRead(const PullOutcome& outcome);
Outcome FromGroups(const GroupsOutcome& outcome);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_OPERATIONS_OPERATIONS_H_
