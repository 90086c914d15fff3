// The kernels of a worker: kernel_types.h has their interface, text_elements.h a thread's part.
//
// Registers by ptxas 13.0 (-Xptxas -v) for sm_80, sm_90 and sm_100: 12 to 44 a thread; no local
// memory. The build fails on a spill.
#include <cstdint>

#include "worker/cuda/kernel_types.h"
#include "worker/cuda/text_elements.h"

namespace verbena::worker {
namespace {

__device__ __forceinline__ uint64_t Thread() {
  return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ uint64_t Threads() { return uint64_t{gridDim.x} * blockDim.x; }

// The threads of a warp, all of which are there.
struct Warp {
  uint32_t first = threadIdx.x % 32;
  static constexpr uint32_t count = 32;

  __device__ __forceinline__ float Max(float value) const {
    for (int step = 16; step > 0; step /= 2) {
      value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
    }
    return value;
  }
  __device__ __forceinline__ float Sum(float value) const {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
  }
};

}  // namespace
}  // namespace verbena::worker

#define VERBENA_KERNEL                                                            \
  extern "C" __global__ void __launch_bounds__(verbena::worker::kThreadsPerBlock, \
                                               verbena::worker::kBlocksPerMultiprocessor)

VERBENA_KERNEL verbena_scale_f32(const float* in, float factor, float* out, uint64_t n) {
  using namespace verbena::worker;
  ScaleRun(in, factor, out, n, Thread(), Threads());
}

VERBENA_KERNEL verbena_column_sums(const float* in, float* out, uint32_t rows, uint32_t columns) {
  using namespace verbena::worker;
  ColumnSumsRun(in, out, rows, columns, Thread(), Threads());
}

VERBENA_KERNEL verbena_text_embed(const uint8_t* bytes, const float* embedding, float* x,
                                  uint32_t items, uint32_t width) {
  using namespace verbena::worker;
  TextEmbedRun(bytes, embedding, x, items, width, Thread(), Threads());
}

VERBENA_KERNEL verbena_text_hidden(float* h, const float* c1, const float* mask, uint64_t n,
                                   uint32_t hidden) {
  using namespace verbena::worker;
  TextHiddenRun(h, c1, mask, n, hidden, Thread(), Threads());
}

// A warp for each row.
VERBENA_KERNEL verbena_text_softmax(const __grid_constant__ verbena::worker::TextSoftmax a) {
  using namespace verbena::worker;
  const uint64_t warps = Threads() / Warp::count;
  for (uint64_t row = Thread() / Warp::count; row < a.rows; row += warps) {
    TextSoftmaxRow(a, static_cast<uint32_t>(row), Warp());
  }
}

VERBENA_KERNEL verbena_text_output_gradient(float* p, const uint8_t* targets, float scale,
                                            uint32_t rows) {
  using namespace verbena::worker;
  TextOutputGradientRun(p, targets, scale, rows, Thread(), Threads());
}

VERBENA_KERNEL verbena_text_hidden_gradient(float* dh, const float* h, const float* mask,
                                            uint64_t n) {
  using namespace verbena::worker;
  TextHiddenGradientRun(dh, h, mask, n, Thread(), Threads());
}

VERBENA_KERNEL verbena_text_add_by_byte(const float* in, const uint8_t* bytes, uint32_t stride,
                                        float* out, uint32_t items, uint32_t width) {
  using namespace verbena::worker;
  TextAddByByteRun(in, bytes, stride, out, items, width, Thread(), Threads());
}
