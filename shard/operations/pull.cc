// A pull of one chunk of a dense table: its parameters, here perhaps as a follower, or an array of
// its state.
#include "shard/operations/operations.h"
#include "shard/replica/copy_reads.h"

namespace verbena::shard {

Outcome HandlePull(Engine* engine, const Request& request, Scratch*) {
  const RecordHeader& header = request.record.header;
  PullRequest pull;
  pull.token = request.token;
  pull.worker = request.worker;
  pull.table = header.table;
  pull.group = request.record.groups[0];
  pull.dtype = header.dtype;
  pull.array = header.array;
  pull.min_version = header.min_version;
  pull.destination = header.destination;
  pull.destination_key = header.destination_key;
  pull.may_park = request.may_park;
  return FromRead(header.bags != 0 ? engine->copy_reads().Pull(pull) : engine->Pull(pull));
}

}  // namespace verbena::shard
