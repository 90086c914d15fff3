// The kernels of a worker: kernel_types.h says what they take, elements.h what a thread does.
//
// What ptxas 13.0 says (-Xptxas -v) for sm_80, sm_90 and sm_100: 39 to 48 registers a thread, the
// sum 55 to 62, conversions alone on sm_100 up to 61; no local memory. The build fails on a spill.
#include <cstdint>

#include "worker/cuda/elements.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

__device__ __forceinline__ uint64_t Thread() {
  return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ uint64_t Threads() { return uint64_t{gridDim.x} * blockDim.x; }

}  // namespace
}  // namespace verbena::worker

#define VERBENA_KERNEL                                                            \
  extern "C" __global__ void __launch_bounds__(verbena::worker::kThreadsPerBlock, \
                                               verbena::worker::kBlocksPerMultiprocessor)

#define VERBENA_CONVERSION(name, Conversion)                                            \
  VERBENA_KERNEL name(const verbena::worker::Conversion::In* __restrict__ in,           \
                      verbena::worker::Conversion::Out* __restrict__ out, uint64_t n) { \
    using namespace verbena::worker;                                                    \
    ConvertRun<Conversion>(in, out, n, Thread(), Threads());                            \
  }

#define VERBENA_GATHER(name, Conversion)                                                     \
  VERBENA_KERNEL name(const verbena::worker::Segment* __restrict__ segments,                 \
                      const uint32_t* __restrict__ tiles, uint32_t tile_count,               \
                      verbena::worker::Conversion::Out* __restrict__ bucket) {               \
    using namespace verbena::worker;                                                         \
    MoveTiles<Conversion, Direction::kGather>(segments, tiles, tile_count, bucket, Thread(), \
                                              Threads());                                    \
  }

#define VERBENA_SCATTER(name, Conversion)                                                     \
  VERBENA_KERNEL name(const verbena::worker::Segment* __restrict__ segments,                  \
                      const uint32_t* __restrict__ tiles, uint32_t tile_count,                \
                      const verbena::worker::Conversion::In* __restrict__ bucket) {           \
    using namespace verbena::worker;                                                          \
    MoveTiles<Conversion, Direction::kScatter>(segments, tiles, tile_count, bucket, Thread(), \
                                               Threads());                                    \
  }

VERBENA_CONVERSION(verbena_f32_to_bf16, F32ToBF16)
VERBENA_CONVERSION(verbena_bf16_to_f32, BF16ToF32)
VERBENA_CONVERSION(verbena_f32_to_f16, F32ToF16)
VERBENA_CONVERSION(verbena_f16_to_f32, F16ToF32)

VERBENA_GATHER(verbena_gather_32, Copy32)
VERBENA_GATHER(verbena_gather_16, Copy16)
VERBENA_GATHER(verbena_gather_f32_to_bf16, F32ToBF16)
VERBENA_GATHER(verbena_gather_bf16_to_f32, BF16ToF32)

VERBENA_SCATTER(verbena_scatter_32, Copy32)
VERBENA_SCATTER(verbena_scatter_16, Copy16)
VERBENA_SCATTER(verbena_scatter_f32_to_bf16, F32ToBF16)
VERBENA_SCATTER(verbena_scatter_bf16_to_f32, BF16ToF32)

VERBENA_KERNEL verbena_sum_f32(const __grid_constant__ verbena::worker::SumInputs inputs,
                               uint32_t count, float* out, uint64_t n) {
  using namespace verbena::worker;
  SumRun(inputs, count, out, n, Thread(), Threads());
}
