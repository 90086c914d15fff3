// Who has to keep something of a table before it is changed: a save (shard/save).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_WATCH_H_
#define VERBENA_SHARD_TABLE_WATCH_H_

#include <cstdint>

#include "absl/types/span.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

// Where an apply puts what it changes of a chunk, instead of where it is; BufferPool::kNone: there.
struct ChunkSpares {
  uint32_t parameters = BufferPool::kNone;
  uint32_t state = BufferPool::kNone;
};

class ChunkWatch {
 public:
  // Before an apply; `content`: not only version and count of applies change. False: there is no
  // memory to keep what is there, and the apply has to wait. force: it cannot.
  virtual bool BeforeChange(uint32_t chunk, bool content, bool force, ChunkSpares* spares) = 0;
  // After it.
  virtual void Changed(uint32_t chunk) = 0;

 protected:
  ~ChunkWatch() = default;
};

class RowWatch {
 public:
  // Before an apply, or earlier. False: there is no memory to keep all of them; those that are kept
  // stay so.
  virtual bool BeforeChange(uint32_t slice, absl::Span<const uint32_t> rows) = 0;
  virtual void Changed(uint32_t slice) = 0;

 protected:
  ~RowWatch() = default;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_WATCH_H_
