// Kinds of memory that the data plane can be told of.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_MEMORY_MEMORY_KIND_H_
#define VERBENA_RDMA_MEMORY_MEMORY_KIND_H_

#include <cstdint>

namespace verbena::rdma {

// Where memory lies, and who may reach it.
enum class MemoryKind : uint8_t {
  kHost,    // ordinary memory of this machine
  kPinned,  // of this machine, page-locked for a GPU
  kCuda,    // of a CUDA device
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_MEMORY_KIND_H_
