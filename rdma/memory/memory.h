// Memory the data plane may read or write: blocks of one kind, allocated by us or lent by a caller.
// What lies on a device (device.h) is known by its address there, which the host must not touch.
//
// Allocated host blocks are memfds sealed SHRINK|GROW|SEAL, so that the shm transport can share
// them (fcntl(2), F_ADD_SEALS) and a peer's mapping cannot be made to fault by truncation. Private
// ones belong to this process alone: slabs, of which pieces are handed out.
//
// **Thread safety**: a block is immutable once made, but for its attachments, which have a lock;
// the memory behind it is the user's business.
//
// Invariants:
//  1. The attachments of a block are destroyed before its memory is unmapped.
//  2. A piece keeps its root alive, and lies within it.
#ifndef VERBENA_RDMA_MEMORY_MEMORY_H_
#define VERBENA_RDMA_MEMORY_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/memory/memory_kind.h"
#include "rdma/memory/page_options.h"

namespace verbena::rdma {

std::string_view MemoryKindName(MemoryKind kind);

class Device;
struct Mapping;

// Shared ownership everywhere: a transport that reads late holds a weak reference and so never
// touches memory that was given back.
class MemoryBlock : public std::enable_shared_from_this<MemoryBlock> {
 public:
  // What a transport keeps with the memory, such as a device's registration of it.
  class Attachment {
   public:
    virtual ~Attachment() = default;
  };

  // Zeroed, page-aligned host memory in a sealed memfd. `label` shows in /proc/PID/maps.
  // RESOURCE_EXHAUSTED names the size when there is no memory.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(
      size_t bytes, std::string_view label, const PageOptions& options = kSharedPages);
  // The same, of the kind kPinned: page-locked, for copies from and to `device` and others.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocatePinned(std::shared_ptr<Device> device,
                                                                     size_t bytes,
                                                                     std::string_view label);
  // Memory of a device, of the kind kCuda: data() is an address there. Zeroed it is not.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocateOn(std::shared_ptr<Device> device,
                                                                 size_t bytes);
  // Zeroed, page-aligned host memory that no other process can map.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocatePrivate(size_t bytes,
                                                                      const PageOptions& options,
                                                                      std::string_view label);
  // Memory of the caller's, who keeps it alive until the block and every transfer in it are gone.
  // INVALID_ARGUMENT for null or empty.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Register(void* data, size_t bytes);
  // The same of memory of a device, such as a tensor. INVALID_ARGUMENT: it is not (says what it
  // is).
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> RegisterOn(std::shared_ptr<Device> device,
                                                                 void* data, size_t bytes);
  // The range [offset, offset + bytes) of `whole`, which may be a piece itself and lives as long as
  // this one. Not shareable by itself. `released` (may be empty) is called on the thread that drops
  // the last reference, while the memory is still there. The range must lie within `whole`: what
  // does not gives a null pointer.
  static std::shared_ptr<MemoryBlock> Piece(std::shared_ptr<MemoryBlock> whole, size_t offset,
                                            size_t bytes, std::function<void()> released);
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  // Whose memory this is; null: the host's.
  const std::shared_ptr<Device>& device() const { return root().device_; }
  bool allocated() const { return fd_ >= 0; }  // has a memfd, so that it can be shared
  int fd() const { return fd_; }               // the memfd; -1 when registered, private or a piece
  uint64_t id() const { return id_; }          // unique in the process, never reused
  PageKind pages() const { return pages_; }    // kSmall when registered: not known
  // The block this is a piece of; itself when it is none.
  const MemoryBlock& root() const { return root_ == nullptr ? *this : *root_; }

  // Keeps `attachment` with the root under `key`, in place of what was there; null: only removes
  // that. What is removed is destroyed on this thread, after the lock was given up.
  void Attach(const void* key, std::shared_ptr<Attachment> attachment) const;
  // Null: there is none.
  std::shared_ptr<Attachment> FindAttachment(const void* key) const;

 private:
  MemoryBlock(std::byte* data, size_t size, MemoryKind kind);
  // Owns the mapping and its descriptor.
  MemoryBlock(size_t size, const Mapping& mapping);

  std::byte* data_;
  size_t size_;
  MemoryKind kind_;
  PageKind pages_ = PageKind::kSmall;
  int fd_ = -1;
  int node_ = kAnyNode;
  size_t mapped_bytes_ = 0;  // a multiple of the page size; 0: not ours to unmap
  uint64_t id_;

  // Of a piece.
  MemoryBlock* root_ = nullptr;
  std::shared_ptr<MemoryBlock> whole_;
  std::function<void()> released_;

  // Of a root.
  std::shared_ptr<Device> device_;
  bool device_owned_ = false;  // allocated by us, there
  // A handful at most: one for each device.
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<const void*, std::shared_ptr<Attachment>>> attachments_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_MEMORY_H_
