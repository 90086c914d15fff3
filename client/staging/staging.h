// Staging buffers, a bounded number per size: for pulled chunks whose destination the transport
// cannot write, for chunks of device memory, and for rows in transit.
//
// **Thread safety**: one owner at a time.
// **Invariants**:
//   1. Areas take at most the limit, plus one buffer of each size that did not fit.
//   2. An area without a buffer in use, within the limit, is recut for a size that has none free.
#ifndef VERBENA_CLIENT_STAGING_STAGING_H_
#define VERBENA_CLIENT_STAGING_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

class Staging {
 public:
  using Allocate = absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>>(size_t bytes);
  // Allocates shared host memory, or memory from `allocate`: both can be exposed on every
  // transport.
  explicit Staging(size_t bytes) : Staging(bytes, AllocateHost) {}
  Staging(size_t bytes, std::function<Allocate> allocate)
      : limit_(bytes), allocate_(std::move(allocate)) {}

  struct Buffer {
    std::byte* data = nullptr;  // null: no buffer is free now
    std::shared_ptr<rdma::MemoryBlock> block;
  };
  // An error means that there is no memory for this size at all.
  absl::Status Take(uint32_t bytes, Buffer* buffer);
  void Give(std::byte* data, uint32_t bytes);
  // Number of buffers of this size that Take() can return without recutting an area.
  size_t Left(uint32_t bytes) const;
  // Maximum number of buffers of this size while other sizes keep theirs.
  size_t Capacity(uint32_t bytes) const;
  const std::shared_ptr<rdma::MemoryBlock>& BlockOf(const std::byte* data) const;
  size_t limit() const { return limit_; }
  // Whether both sizes use the same buffers.
  static bool SameSize(uint32_t a, uint32_t b) { return ClassOf(a) == ClassOf(b); }

 private:
  struct Area {
    std::shared_ptr<rdma::MemoryBlock> block;
    int size_class = 0;
    size_t buffers = 0, used = 0;
    bool beyond_limit = false;  // never recut, because its size would need another one
  };
  struct SizeClass {
    std::vector<std::byte*> free;
    size_t made = 0;
  };
  // Size classes are powers of two from 4 KiB: 4 KiB << i.
  static int ClassOf(uint32_t bytes);
  static Allocate AllocateHost;
  size_t ToMake(uint32_t bytes) const;
  absl::Status Grow(int size_class);
  // Recuts an unused area; false: there is none.
  bool Recut(int size_class);
  void Cut(Area* area, int size_class);
  const Area* AreaOf(const std::byte* data) const;
  Area* AreaOf(const std::byte* data);

  const size_t limit_;
  const std::function<Allocate> allocate_;
  size_t allocated_ = 0;
  std::vector<Area> areas_;
  SizeClass classes_[21];
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_STAGING_H_
