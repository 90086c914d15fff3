// Kinds of memory that the data plane can be told of, and how that of GPUs is reached.
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

// Whether RDMA devices read and write memory of GPUs themselves (GPUDirect RDMA).
enum class GpuDirectUse : uint8_t {
  kAuto,      // where they can, and are on the GPU's NUMA node; else through pinned host memory
  kOff,       // never
  kRequired,  // always, be it far: where it cannot be, calls on memory of GPUs fail
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_MEMORY_KIND_H_
