// Memory the data plane may read or write: blocks of one kind, allocated by us or lent by a caller.
//
// Allocated host blocks are memfds sealed SHRINK|GROW|SEAL, so that the shm transport can share
// them (fcntl(2), F_ADD_SEALS) and a peer's mapping cannot be made to fault by truncation.
//
// **Thread safety**: a block is immutable once made; the memory behind it is the user's business.
#ifndef VERBENA_RDMA_MEMORY_MEMORY_H_
#define VERBENA_RDMA_MEMORY_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace verbena::rdma {

enum class MemoryKind : uint8_t { kHost, kPinned, kCuda };
std::string_view MemoryKindName(MemoryKind kind);

// Shared ownership everywhere: a transport that reads late holds a weak reference and so never
// touches memory that was given back.
class MemoryBlock : public std::enable_shared_from_this<MemoryBlock> {
 public:
  // Zeroed, page-aligned host memory in a sealed memfd. `label` shows in /proc/PID/maps.
  // RESOURCE_EXHAUSTED names the size when there is no memory. kPinned and kCuda are UNIMPLEMENTED
  // ("this build has no CUDA").
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes, MemoryKind kind,
                                                               std::string_view label);
  // Memory of the caller's, who keeps it alive until the block and every transfer in it are gone.
  // INVALID_ARGUMENT for null or empty.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Register(void* data, size_t bytes,
                                                               MemoryKind kind);
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  bool allocated() const { return fd_ >= 0; }
  int fd() const { return fd_; }       // the memfd; -1 when registered
  uint64_t id() const { return id_; }  // unique in the process, never reused

 private:
  MemoryBlock(std::byte* data, size_t size, MemoryKind kind, int fd);
  std::byte* data_;
  size_t size_;
  MemoryKind kind_;
  int fd_;
  uint64_t id_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_MEMORY_H_
