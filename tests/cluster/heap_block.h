// Buffers of simulated clients, on the heap: pages of their own would take system calls and page
// faults for each of many thousand operations, and AddressSanitizer watches only the heap's bounds.
//
// **Thread safety**: any thread.
#ifndef VERBENA_TESTS_CLUSTER_HEAP_BLOCK_H_
#define VERBENA_TESTS_CLUSTER_HEAP_BLOCK_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "rdma/memory/memory.h"

namespace verbena::test {

// A block of zeroed memory, which lives as long as the block. `bytes`: at least 1.
inline std::shared_ptr<rdma::MemoryBlock> HeapBlock(size_t bytes) {
  class Memory final : public rdma::MemoryBlock::Attachment {
   public:
    explicit Memory(size_t bytes) : bytes_(std::make_unique<std::byte[]>(bytes)) {}
    std::byte* data() const { return bytes_.get(); }

   private:
    const std::unique_ptr<std::byte[]> bytes_;
  };
  auto memory = std::make_shared<Memory>(bytes);
  auto block = *rdma::MemoryBlock::Register(memory->data(), bytes);
  const void* const key = memory->data();
  block->Attach(key, std::move(memory));
  return block;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_HEAP_BLOCK_H_
