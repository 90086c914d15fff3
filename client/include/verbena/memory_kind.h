// Kinds of memory that the data plane can use, and the access to GPU memory.
//
// **Thread safety**: plain data.
#ifndef VERBENA_MEMORY_KIND_H_
#define VERBENA_MEMORY_KIND_H_

#include <cstdint>

namespace verbena::rdma {

// Location of memory.
enum class MemoryKind : uint8_t {
  kHost,    // ordinary host memory
  kPinned,  // host memory, page-locked for a GPU
  kCuda,    // memory of a CUDA device
};

// Whether RDMA devices access GPU memory directly (GPUDirect RDMA).
enum class GpuDirectUse : uint8_t {
  kAuto,      // if possible, and if on the GPU's NUMA node; otherwise through pinned host memory
  kOff,       // never
  kRequired,  // always, at any distance; if it is not possible, calls on GPU memory fail
};

}  // namespace verbena::rdma

#endif  // VERBENA_MEMORY_KIND_H_
