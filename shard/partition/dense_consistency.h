// How pushes of chunks become applies: sync, ssp and async of a dense table.
//
// The engine has checked the request: the worker is a member that may push, the chunk is resident
// and its slice ready, the payload has the chunk's size (or is empty: a contribution of zero) and
// is aligned.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_DENSE_CONSISTENCY_H_
#define VERBENA_SHARD_PARTITION_DENSE_CONSISTENCY_H_

#include <cstdint>
#include <memory>

#include "shard/partition/consistency.h"
#include "shard/partition/deferred_pulls.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {

// The objects that a table's consistency uses; all outlive it.
struct DenseParts {
  DenseTable* table;
  DeferredPulls* parking;
  BufferPool* pool;
  const Members* members;
  EngineContext* sink;
};

class Norms;

class DenseConsistency : public Consistency {
 public:
  virtual PushOutcome Push(const PushRequest& request, const Members::Member& member,
                           uint32_t chunk) = 0;
  // Whether a pull of min_version is answered now; otherwise it is deferred. sync, async: a version
  // of the chunk. ssp: the clock of `member`; answer->version is the least clock, and
  // answer->detail its distance behind that of `member`.
  virtual bool Readable(const Members::Member& member, uint32_t chunk, uint64_t min_version,
                        Answer* answer) const = 0;

  // Whether a push of `member` to the chunk's slice is applied, or contributes nothing. 0: no
  // sequence is required. sync: only 0.
  virtual bool Includes(const Members::Member& /*member*/, uint32_t /*chunk*/,
                        uint64_t sequence) const {
    return sequence == 0;
  }

  // For steps whose norm spans several chunks; null: this table has none.
  virtual Norms* norms() { return nullptr; }
  // Total norms arrived at the slice: its chunks continue.
  virtual void OnTotals(uint32_t /*slice*/) {}
};

std::unique_ptr<DenseConsistency> MakeSync(const DenseParts& parts);
std::unique_ptr<DenseConsistency> MakeAsync(const DenseParts& parts);
std::unique_ptr<DenseConsistency> MakeSsp(const DenseParts& parts);

// The numbers that a push carries: group.count of them.
inline Source SourceOf(const PushRequest& request) {
  Source source = {request.payload.data(), request.dtype};
  source.assigns = request.assigns;
  source.array = request.array;
  source.applies = request.applies;
  return source;
}

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_DENSE_CONSISTENCY_H_
