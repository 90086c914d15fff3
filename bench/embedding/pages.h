// Memory in pages as large as the system has them, which is what a server's tables lie in.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_EMBEDDING_PAGES_H_
#define VERBENA_BENCH_EMBEDDING_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "shard/allocator.h"

namespace verbena::bench {

// Zeroed. Of the system, to which it goes back.
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

// Tables' memory as a server's shard has it: out of slabs of 64 MiB, from front to back. What comes
// back is used again for the same size.
class SlabMemory final : public shard::Allocator {
 public:
  shard::Buffer Allocate(size_t bytes) override {
    constexpr size_t kSlab = size_t{64} << 20;
    const size_t rounded = (bytes + 63) / 64 * 64;
    used_ += bytes;
    if (std::vector<std::byte*>& idle = idle_[rounded]; !idle.empty()) {
      std::byte* const again = idle.back();
      idle.pop_back();
      std::memset(again, 0, bytes);
      return {again, bytes};
    }
    if (left_ < rounded) {
      const size_t slab = rounded > kSlab ? rounded : kSlab;
      slabs_.push_back(std::make_unique<Pages>(slab));
      next_ = slabs_.back()->data();
      left_ = slab;
    }
    std::byte* const data = next_;
    next_ += rounded;
    left_ -= rounded;
    return {data, bytes};
  }
  void Free(const shard::Buffer& buffer) override {
    idle_[(buffer.bytes + 63) / 64 * 64].push_back(buffer.data);
    used_ -= buffer.bytes;
  }
  void Count(int64_t bytes) override { used_ += static_cast<uint64_t>(bytes); }
  uint64_t used() const { return used_; }

 private:
  std::vector<std::unique_ptr<Pages>> slabs_;
  std::map<size_t, std::vector<std::byte*>> idle_;  // by size
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  uint64_t used_ = 0;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_PAGES_H_
