// One thread's part of the text model (worker/models/text_kernels.h has the formulas): the logic of
// the kernels, for the GPU and for tests on the host. Matrices are row-major.
//
// **Thread safety**: pure functions of memory that the caller gives. Threads `0..threads-1` called
// with the same arguments write disjoint elements, so they run in any order or at once.
//
// Invariants:
//  1. Every sum is taken in an order that the arguments alone determine: the same bits every time.
#ifndef VERBENA_WORKER_CUDA_TEXT_ELEMENTS_H_
#define VERBENA_WORKER_CUDA_TEXT_ELEMENTS_H_

#include <cmath>
#include <cstdint>

#include "worker/cuda/host_device.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {

inline constexpr uint32_t kBytes = 256;  // values of a byte: the model's classes

// out[i] = factor * in[i]; zeros when the factor is 0, whatever is in `in`.
VERBENA_HOST_DEVICE void ScaleRun(const float* in, float factor, float* out, uint64_t n,
                                  uint64_t thread, uint64_t threads) {
  for (uint64_t i = thread; i < n; i += threads) out[i] = factor == 0 ? 0.0f : factor * in[i];
}

// out[c] += the sum of column c of `in` [rows, columns].
VERBENA_HOST_DEVICE void ColumnSumsRun(const float* in, float* out, uint32_t rows, uint32_t columns,
                                       uint64_t thread, uint64_t threads) {
  for (uint64_t c = thread; c < columns; c += threads) {
    float sum = 0;
    for (uint32_t r = 0; r < rows; ++r) sum += in[uint64_t{r} * columns + c];
    out[c] += sum;
  }
}

// x[i] = embedding[bytes[i]], rows of `width`.
VERBENA_HOST_DEVICE void TextEmbedRun(const uint8_t* bytes, const float* embedding, float* x,
                                      uint32_t items, uint32_t width, uint64_t thread,
                                      uint64_t threads) {
  for (uint64_t i = thread; i < uint64_t{items} * width; i += threads) {
    x[i] = embedding[uint64_t{bytes[i / width]} * width + i % width];
  }
}

// h = mask * tanh(h + c1), elementwise over [rows, hidden]; a null mask is ones.
VERBENA_HOST_DEVICE void TextHiddenRun(float* h, const float* c1, const float* mask, uint64_t n,
                                       uint32_t hidden, uint64_t thread, uint64_t threads) {
  for (uint64_t i = thread; i < n; i += threads) {
    const float value = tanhf(h[i] + c1[i % hidden]);
    h[i] = mask == nullptr ? value : mask[i] * value;
  }
}

// One row of the softmax, by `lanes.count` threads; lanes.Max() and lanes.Sum() return the result
// over all threads to each.
template <typename Lanes>
VERBENA_HOST_DEVICE void TextSoftmaxRow(const TextSoftmax& a, uint32_t row, const Lanes& lanes) {
  float* p = a.p + uint64_t{row} * kBytes;
  const float* skip =
      a.skip + uint64_t{a.contexts[uint64_t{row} * a.context + a.context - 1]} * kBytes;
  const uint32_t target = a.targets[row];
  float greatest = -INFINITY;
  float wanted = 0;
  for (uint32_t c = lanes.first; c < kBytes; c += lanes.count) {
    float value = p[c] + a.c2[c] + skip[c];
    if (a.add != nullptr) value += a.add[uint64_t{row} * kBytes + c];
    p[c] = value;
    if (c == target) wanted = value;
    greatest = value > greatest ? value : greatest;
  }
  greatest = lanes.Max(greatest);
  float sum = 0;
  for (uint32_t c = lanes.first; c < kBytes; c += lanes.count) {
    p[c] = expf(p[c] - greatest);
    sum += p[c];
  }
  sum = lanes.Sum(sum);
  for (uint32_t c = lanes.first; c < kBytes; c += lanes.count) p[c] *= 1 / sum;
  if (target % lanes.count == lanes.first) a.losses[row] = logf(sum) - (wanted - greatest);
}

// p = scale * (p - [the target]): the gradient by the softmax's input.
VERBENA_HOST_DEVICE void TextOutputGradientRun(float* p, const uint8_t* targets, float scale,
                                               uint32_t rows, uint64_t thread, uint64_t threads) {
  for (uint64_t i = thread; i < uint64_t{rows} * kBytes; i += threads) {
    const float hit = targets[i / kBytes] == i % kBytes ? 1.0f : 0.0f;
    p[i] = (p[i] - hit) * scale;
  }
}

// Multiplies dh by the derivative of tanh and the mask: h = mask * tanh, so the factor is mask -
// h^2 / mask, and zero where the mask is.
VERBENA_HOST_DEVICE void TextHiddenGradientRun(float* dh, const float* h, const float* mask,
                                               uint64_t n, uint64_t thread, uint64_t threads) {
  for (uint64_t i = thread; i < n; i += threads) {
    const float square = h[i] * h[i];
    const float kept = mask == nullptr ? 1.0f : mask[i];
    dh[i] *= kept > 0 ? kept - square / kept : 0.0f;
  }
}

// out[bytes[i * stride]] += in[i], rows of `width`. A thread looks through all items for those of
// its byte: without atomic additions, whose order would be another each time.
VERBENA_HOST_DEVICE void TextAddByByteRun(const float* in, const uint8_t* bytes, uint32_t stride,
                                          float* out, uint32_t items, uint32_t width,
                                          uint64_t thread, uint64_t threads) {
  for (uint64_t o = thread; o < uint64_t{kBytes} * width; o += threads) {
    const uint64_t byte = o / width;
    const uint64_t column = o % width;
    float sum = out[o];
    for (uint64_t i = 0; i < items; ++i) {
      if (bytes[i * stride] == byte) sum += in[i * width + column];
    }
    out[o] = sum;
  }
}

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_TEXT_ELEMENTS_H_
