// Memory in pages as large as the system has them, like a server's tables.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_EMBEDDING_PAGES_H_
#define VERBENA_BENCH_EMBEDDING_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace verbena::bench {

// Zeroed. Taken from the system, and returned to it.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge + kHuge) {
    void* const data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<std::byte*>(data);
    data_ = mapping_ + (kHuge - reinterpret_cast<uintptr_t>(mapping_) % kHuge) % kHuge;
    (void)madvise(mapping_, bytes_, MADV_HUGEPAGE);
  }
  ~Pages() { (void)munmap(mapping_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  const size_t bytes_;
  std::byte* mapping_;
  std::byte* data_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_PAGES_H_
