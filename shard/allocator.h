// Where table memory comes from: defined here, provided by the server out of registered slabs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_ALLOCATOR_H_
#define VERBENA_SHARD_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>

namespace verbena::shard {

// 64-byte aligned, zeroed when handed out. `handle` means something to the allocator only.
struct Buffer {
  std::byte* data = nullptr;
  size_t bytes = 0;
  const void* handle = nullptr;
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // An empty buffer (data == nullptr) when there is no memory.
  virtual Buffer Allocate(size_t bytes) = 0;
  virtual void Free(const Buffer& buffer) = 0;
};

// Plain aligned memory, for tests and tools.
class HeapAllocator final : public Allocator {
 public:
  Buffer Allocate(size_t bytes) override;
  void Free(const Buffer& buffer) override;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ALLOCATOR_H_
