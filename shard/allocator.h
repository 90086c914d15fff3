// Where table memory comes from: defined here, provided by the server out of registered slabs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_ALLOCATOR_H_
#define VERBENA_SHARD_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>

namespace verbena::shard {

class JobAccount;

// 64-byte aligned. `handle` means something to the allocator only,
// `account` to the pool of buffers above it: which job has it.
struct Buffer {
  std::byte* data = nullptr;
  size_t bytes = 0;  // as many as were asked for
  const void* handle = nullptr;
  JobAccount* account = nullptr;
};

// The use that memory of tables is taken for.
enum class MemoryFor : uint8_t {
  kPrimary,              // no replica is kept on this server
  kPrimaryBesideCopies,  // leaves room for replicas
  kLearner,
  // For a record that its primary waits for, or an apply that the follower already has: may use all
  // memory.
  kFollower,
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // Sets the use of memory for Allocate() and AllocateRows() until the next call.
  virtual void SetFor(MemoryFor /*use*/) {}
  // Zeroed. An empty buffer (data == nullptr) when there is no memory.
  virtual Buffer Allocate(size_t bytes) = 0;
  virtual void Free(const Buffer& buffer) = 0;

  // For pieces of `unit` bytes, a multiple of 64: rows of embedding tables and their indices, which
  // are never sent from where they are. Anything may be in them, and there may be fewer than asked
  // for.
  virtual Buffer AllocateRows(size_t bytes, size_t /*unit*/) { return Allocate(bytes); }

  // Temporary memory: rows being sent, sums of an open step. Its content is undefined, and asking
  // for it touches no page. It may still succeed when Allocate() reports that the limit is reached,
  // so that existing tables can be served.
  virtual Buffer AllocateScratch(size_t bytes) { return Allocate(bytes); }
  // Number of refusals of scratch memory, of all users of this memory. When it changes, each user
  // frees its idle buffers.
  virtual uint64_t shortages() const { return 0; }
  // So much memory was taken elsewhere (negative: given back). It counts against the limit, and is
  // never refused.
  virtual void Count(int64_t /*bytes*/) {}
  // Limit of all memory that one server allocates; 0: none.
  virtual uint64_t limit_bytes() const { return 0; }
  // Whether Allocate() of so many bytes, in several pieces, could succeed now. False is certain.
  virtual bool MayFit(uint64_t /*bytes*/) const { return true; }
  // Bytes of rows that AllocateRows() may give out for the current use; UINT64_MAX: no limit. An
  // estimate: other shards take from the same limit.
  virtual uint64_t RoomForRows() const { return UINT64_MAX; }
};

// Plain aligned memory, for tests and tools.
class HeapAllocator final : public Allocator {
 public:
  Buffer Allocate(size_t bytes) override;
  void Free(const Buffer& buffer) override;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ALLOCATOR_H_
