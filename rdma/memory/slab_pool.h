// Hands out pieces of large blocks, so that whatever is done once per block (registering it with a
// device) need not be done for each small one.
//
// Pieces are cut best-fit and merged with their free neighbours when they come back, so lanes may
// open and close in any order without the pool growing. A request larger than a slab gets a slab of
// its own. Of slabs that are empty one is kept, the others go back to the system at once.
//
// **Thread safety**: thread-safe, one lock: for set-up, not for the data path. Pieces may be
// released on any thread, and after the pool is gone.
//
// Invariants:
//  1. A piece is zeroed, starts on a cache line (64 bytes), from 4 KiB on on a page, and shares no
//     cache line with another.
//  2. Free ranges of a slab never touch: neighbours are merged.
//  3. At most one slab has nothing in use, and it is of the usual size.
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
  // Largest slab that may be made (such as the largest region a device registers), and so the
  // largest piece; slab_bytes is cut down to it. In whole pages; 0: no limit.
  size_t max_slab_bytes = 0;
  PageOptions pages;
  std::string label = "slab";  // in /proc/PID/maps and in errors
  // Called for a slab before the first piece of it is handed out, without a lock held, possibly on
  // several threads at once. Its error becomes that of Allocate(), and the slab is not used.
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
    uint64_t bytes_reserved = 0;  // taken from the system
    uint64_t bytes_in_use = 0;    // handed out, rounded up to what they occupy
    size_t pieces = 0;
  };
  Statistics statistics() const;

 private:
  struct Slab;
  struct State;
  std::shared_ptr<State> state_;  // also of the pieces
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_SLAB_POOL_H_
