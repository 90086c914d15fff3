// Allocates pieces of large blocks, so that work per block (such as registration with a device) is
// not repeated for each small piece.
//
// Pieces are allocated best-fit, and freed ones are merged with free neighbors. So lanes may open
// and close in any order without growing the pool. A request larger than a slab gets its own slab.
// One empty slab is kept; others are returned to the system at once.
//
// **Thread safety**: thread-safe, with one lock: for set-up, not for the data path. Pieces may be
// released on any thread, and after the pool is destroyed.
//
// Invariants:
//  1. A piece is zeroed, starts on a cache line (64 bytes), from 4 KiB up on a page, and shares no
//     cache line with another piece.
//  2. Free ranges of a slab are never adjacent: neighbors are merged.
//  3. At most one slab is empty, and it has the usual size.
#ifndef VERBENA_RDMA_MEMORY_SLAB_POOL_H_
#define VERBENA_RDMA_MEMORY_SLAB_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"
#include "rdma/memory/page_options.h"

namespace verbena::rdma {

struct SlabPoolOptions {
  size_t slab_bytes = size_t{64} << 20;  // rounded up to whole pages
  // Maximum size of a slab (such as the largest region that a device registers), and so of a piece;
  // slab_bytes is reduced to it. In whole pages; 0: no limit.
  size_t max_slab_bytes = 0;
  PageOptions pages;
  std::string label = "slab";  // appears in /proc/PID/maps and in errors
  // Called for a slab before its first piece is allocated, without a lock held, possibly on several
  // threads at once. Allocate() returns its error, and the slab is not used.
  std::function<absl::Status(const std::shared_ptr<MemoryBlock>&)> on_new_slab;
};

class SlabPool {
 public:
  explicit SlabPool(SlabPoolOptions options);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // INVALID_ARGUMENT: 0 bytes, or more than max_slab_bytes. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes, std::string_view label);

  struct Statistics {
    size_t slabs = 0;
    uint64_t bytes_reserved = 0;  // allocated from the system
    uint64_t bytes_in_use = 0;    // allocated pieces, with rounding
    size_t pieces = 0;
  };
  Statistics statistics() const;

 private:
  struct Slab;
  struct State;
  std::shared_ptr<State> state_;  // shared with the pieces
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_SLAB_POOL_H_
