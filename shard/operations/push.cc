// A push of one chunk of a dense table: a gradient, or new parameters or state.
#include "proto/wire/operations.h"
#include "shard/operations/operations.h"

namespace verbena::shard {

Outcome HandlePush(Engine* engine, const Request& request, Scratch*) {
  const RecordHeader& header = request.record.header;
  PushRequest push;
  push.token = request.token;
  push.worker = request.worker;
  push.table = header.table;
  push.group = request.record.groups[0];
  push.dtype = header.dtype;
  push.payload = request.payload;
  push.assigns = wire::OperationOf(header.type).assigns;
  push.array = header.array;
  if (header.array != 0) push.applies = header.min_version;
  const PushOutcome outcome = engine->Push(push);
  Outcome out;
  out.kind = outcome.no_room       ? Outcome::Kind::kNoRoom
             : outcome.replicating ? Outcome::Kind::kReplicating
             : outcome.held        ? Outcome::Kind::kHeld
                                   : Outcome::Kind::kAnswer;
  out.answer = outcome.answer;
  return out;
}

}  // namespace verbena::shard
