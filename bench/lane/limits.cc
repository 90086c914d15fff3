#include "bench/lane/limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbena::bench {
namespace {

class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes_);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  size_t bytes_;
  void* data_;
};

// Whole cache lines with streaming stores, the rest as it comes.
void CopyStreaming(std::byte* target, const std::byte* source, size_t bytes) {
  size_t at = 0;
#if defined(__x86_64__)
  for (; at + 64 <= bytes; at += 64) {
    for (size_t part = 0; part < 64; part += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at + part)));
    }
  }
  _mm_sfence();
#endif
  std::memcpy(target + at, source + at, bytes - at);
}

}  // namespace

double CopyMegabytes(uint32_t bytes, uint32_t depth, double seconds) {
  using Clock = std::chrono::steady_clock;
  const size_t stride = (size_t{bytes} + 63) / 64 * 64;
  const Pages source(stride * depth);
  const Pages target(stride * depth);
  double best = 0;
  for (const bool streaming : {false, true}) {
    const auto begin = Clock::now();
    std::chrono::duration<double> passed(0);
    double copied = 0;
    do {
      for (uint32_t i = 0; i < depth; ++i) {
        std::byte* const to = target.data() + i * stride;
        const std::byte* const from = source.data() + i * stride;
        if (streaming) {
          CopyStreaming(to, from, bytes);
        } else {
          std::memcpy(to, from, bytes);
        }
        asm volatile("" : : "r"(to) : "memory");
      }
      copied += static_cast<double>(bytes) * depth;
      passed = Clock::now() - begin;
    } while (passed.count() < seconds / 2);
    best = std::max(best, copied / passed.count() / 1e6);
  }
  return best;
}

}  // namespace verbena::bench
