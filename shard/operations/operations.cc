#include "shard/operations/operations.h"

#include <array>
#include <utility>

#include "proto/wire/operations.h"

namespace verbena::shard {
namespace {

using Handler = Outcome (*)(Engine*, const Request&, Scratch*);

// Not sent by workers: its lane refuses it before.
Outcome OfServers(Engine*, const Request&, Scratch*) {
  return Malformed(absl::InvalidArgumentError("an operation between servers"));
}

// In the order of wire::kOperations.
constexpr std::array<Handler, wire::kOperations.size()> kHandlers = {
    HandlePush,     HandlePull,  HandleEndStep,  HandleAwait,        HandlePushRows, HandleLookup,
    HandleScan,     HandleNorms, HandleTotals,   OfServers,          OfServers,      HandleLookup,
    HandlePrefetch, HandlePush,  HandlePushRows, HandleSetOptimizer, HandlePull,     HandlePush};

}  // namespace

Outcome HandleRequest(Engine* engine, const Request& request, Scratch* scratch) {
  return kHandlers[static_cast<size_t>(request.record.header.type) - 1](engine, request, scratch);
}

Outcome Malformed(absl::Status status) {
  return {.kind = Outcome::Kind::kMalformed, .answer = {}, .malformed = std::move(status)};
}

Outcome FromRead(const PullOutcome& outcome) {
  Outcome out;
  out.answer = outcome.answer;
  out.group_status = outcome.group_status;
  if (outcome.kind == PullOutcome::Kind::kDeferred) {
    out.kind = Outcome::Kind::kDeferred;
  } else if (outcome.kind == PullOutcome::Kind::kReady && outcome.view.bytes > 0) {
    // A scan that is at its end writes nothing.
    out.kind = Outcome::Kind::kWrite;
    out.view = outcome.view;
  }
  return out;
}

Outcome FromGroups(const GroupsOutcome& outcome) {
  Outcome out;
  out.kind = outcome.no_room       ? Outcome::Kind::kNoRoom
             : outcome.replicating ? Outcome::Kind::kReplicating
             : outcome.deferred    ? Outcome::Kind::kDeferred
                                   : Outcome::Kind::kAnswer;
  out.answer = outcome.answer;
  out.group_status = outcome.group_status;
  return out;
}

}  // namespace verbena::shard
