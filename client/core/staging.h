// Staging: allocated memory that pulled chunks land in when the transport cannot write to their
// destination, and that rows travel in; a bounded number of buffers per size.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_STAGING_H_
#define VERBENA_CLIENT_CORE_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

class Staging {
 public:
  explicit Staging(size_t bytes) : limit_(bytes) {}

  struct Buffer {
    std::byte* data = nullptr;  // null: none is free now
    std::shared_ptr<rdma::MemoryBlock> block;
  };
  // An error only when there is no memory at all for this size.
  absl::Status Take(uint32_t bytes, Buffer* buffer);
  void Give(std::byte* data, uint32_t bytes);
  const std::shared_ptr<rdma::MemoryBlock>& BlockOf(const std::byte* data) const;
  size_t limit() const { return limit_; }

 private:
  struct Area {
    std::shared_ptr<rdma::MemoryBlock> block;
  };
  struct SizeClass {
    std::vector<std::byte*> free;
    size_t made = 0;
  };
  // Classes are powers of two from 4 KiB: buffer of 4 KiB << i.
  static int ClassOf(uint32_t bytes);
  absl::Status Grow(size_t buffer_bytes, SizeClass* size_class);

  size_t limit_;
  size_t allocated_ = 0;
  std::vector<Area> areas_;
  SizeClass classes_[21];
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_STAGING_H_
