// Hook before a table's changes: a checkpoint keeps the contents before they change
// (shard/checkpoint).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_WATCH_H_
#define VERBENA_SHARD_TABLE_WATCH_H_

#include <cstdint>

#include "absl/types/span.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

// Where an apply writes the changed parts of a chunk, instead of in place; BufferPool::kNone: in
// place.
struct ChunkSpares {
  uint32_t parameters = BufferPool::kNone;
  uint32_t state = BufferPool::kNone;
};

class PreUpdateHook {
 public:
  // Called before an apply. `content`: more than the version and the count of applies changes.
  // False: there is no memory to keep the contents, and the apply must wait. force: it cannot wait.
  virtual bool BeforeChange(uint32_t chunk, bool content, bool force, ChunkSpares* spares) = 0;
  // Called after the apply.
  virtual void Changed(uint32_t chunk) = 0;

 protected:
  ~PreUpdateHook() = default;
};

class RowWatch {
 public:
  // Called before an apply, or earlier. False: there is no memory to keep all of them; those
  // already kept stay kept.
  virtual bool BeforeChange(uint32_t slice, absl::Span<const uint32_t> rows) = 0;
  virtual void Changed(uint32_t slice) = 0;

 protected:
  ~RowWatch() = default;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_WATCH_H_
