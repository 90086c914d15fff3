#include "bench/apply/limits.h"

#include <algorithm>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#define VERBENA_BEST_ISA __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define VERBENA_BEST_ISA
#endif

namespace verbena::bench {
namespace {

constexpr size_t kBlock = 2048;
// For each array: this far ahead of the current block.
constexpr size_t kAheadBytes = 4096;

VERBENA_BEST_ISA float Sum(const float* from, size_t n) {
  float sums[64] = {};
  for (size_t i = 0; i + 64 <= n; i += 64) {
    for (size_t k = 0; k < 64; ++k) sums[k] += from[i + k];
  }
  return std::accumulate(sums, sums + 64, 0.0f);
}
VERBENA_BEST_ISA uint32_t Sum16(const uint16_t* from, size_t n) {
  uint16_t sums[128] = {};
  for (size_t i = 0; i + 128 <= n; i += 128) {
    for (size_t k = 0; k < 128; ++k) sums[k] = static_cast<uint16_t>(sums[k] + from[i + k]);
  }
  return std::accumulate(sums, sums + 128, 0u);
}
VERBENA_BEST_ISA void Update(float* what, float by, size_t n) {
  for (size_t i = 0; i < n; ++i) what[i] += by;
}
template <typename T>
void Fill(T* what, T by, size_t n, bool streaming) {
#if defined(__x86_64__)
  if (streaming) {
    T line[16 / sizeof(T)];
    std::fill(std::begin(line), std::end(line), by);
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line));
    for (size_t i = 0; i < n; i += 16 / sizeof(T)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(what + i), value);
    }
    return;
  }
#endif
  std::fill_n(what, n, by);
}

template <typename T>
void Prefetch(const T* from, size_t block) {
#if defined(__x86_64__)
  const char* at = reinterpret_cast<const char*>(from) + kAheadBytes;
  for (size_t i = 0; i < block * sizeof(T); i += 64) _mm_prefetch(at + i, _MM_HINT_T0);
#else
  (void)from, (void)block;
#endif
}

}  // namespace

float Touch(Pass pass, const Traffic& t, size_t n) {
  const bool streaming = pass == Pass::kBlocksStreaming;
  const bool ahead = pass == Pass::kPrefetching;
  // Every number written depends on a number read, so that no read is optimized away.
  float sum = 0;
  for (size_t i = 0; i < n; i += kBlock) {
    for (const float* from : t.read) {
      if (ahead) Prefetch(from + i, kBlock);
      sum += Sum(from + i, kBlock);
    }
    for (const uint16_t* from : t.read16) {
      if (ahead) Prefetch(from + i, kBlock);
      sum += static_cast<float>(Sum16(from + i, kBlock));
    }
    const float by = sum * 1e-30f;
    for (float* what : t.updated) {
      if (ahead) Prefetch(what + i, kBlock);
      Update(what + i, by, kBlock);
    }
    for (float* what : t.written) Fill(what + i, by, kBlock, streaming);
    for (uint16_t* what : t.written16) {
      Fill(what + i, static_cast<uint16_t>(by), kBlock, streaming);
    }
  }
  return sum;
}

}  // namespace verbena::bench
