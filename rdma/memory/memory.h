// Memory of the data plane: blocks of one kind, allocated by this library or by a caller. Device
// memory (device.h) is identified by its device address, which the CPU must not access.
//
// Allocated host blocks are memfds sealed SHRINK|GROW|SEAL. So the shm transport can share them
// (fcntl(2), F_ADD_SEALS), and truncation cannot make a peer's mapping fault. Private blocks belong
// to this process only; they are slabs that are divided into pieces.
//
// **Thread safety**: a block is immutable after creation, except for its attachments, which have a
// lock. Its user synchronizes access to the memory itself.
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
#include "rdma/memory/page_options.h"
#include "verbena/memory_kind.h"

namespace verbena::rdma {

std::string_view MemoryKindName(MemoryKind kind);

class Device;
struct Mapping;

// Ownership is shared: a transport that reads late holds a weak reference, and so never touches
// freed memory.
class MemoryBlock : public std::enable_shared_from_this<MemoryBlock> {
 public:
  // Data that a transport keeps with the memory, such as a device registration.
  class Attachment {
   public:
    virtual ~Attachment() = default;
  };

  // Zeroed, page-aligned host memory in a sealed memfd. `label` appears in /proc/PID/maps.
  // RESOURCE_EXHAUSTED: no memory; the message has the size.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(
      size_t bytes, std::string_view label, const PageOptions& options = kSharedPages);
  // Allocates memory of kind kPinned: page-locked, for copies from and to `device` and others.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocatePinned(std::shared_ptr<Device> device,
                                                                     size_t bytes,
                                                                     std::string_view label);
  // Allocates memory of a device, of kind kCuda: data() is a device address. It is not zeroed.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocateOn(std::shared_ptr<Device> device,
                                                                 size_t bytes);
  // Zeroed, page-aligned host memory that no other process can map.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> AllocatePrivate(size_t bytes,
                                                                      const PageOptions& options,
                                                                      std::string_view label);
  // Wraps memory of the caller, which must outlive the block and every transfer in it.
  // INVALID_ARGUMENT: null or empty.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> Register(void* data, size_t bytes);
  // Wraps memory of a device, such as a tensor. INVALID_ARGUMENT: it is not memory of the device;
  // the message describes it.
  static absl::StatusOr<std::shared_ptr<MemoryBlock>> RegisterOn(std::shared_ptr<Device> device,
                                                                 void* data, size_t bytes);
  // The range [offset, offset + bytes) of `whole`, which may be a piece itself and is kept alive. A
  // piece cannot be shared individually. `released` (may be empty) is called on the thread that
  // drops the last reference, while the memory is still valid. Returns null if the range is not
  // within `whole`.
  static std::shared_ptr<MemoryBlock> Piece(std::shared_ptr<MemoryBlock> whole, size_t offset,
                                            size_t bytes, std::function<void()> released);
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  // The device of this memory; null: host memory.
  const std::shared_ptr<Device>& device() const { return root().device_; }
  bool allocated() const { return fd_ >= 0; }  // has a memfd and can be shared
  int fd() const { return fd_; }               // the memfd; -1 when registered, private or a piece
  uint64_t id() const { return id_; }          // unique in the process, never reused
  PageKind pages() const { return pages_; }    // kSmall when registered, where it is unknown
  // The block of which this is a piece; the block itself if it is not a piece.
  const MemoryBlock& root() const { return root_ == nullptr ? *this : *root_; }

  // Stores `attachment` at the root under `key` and replaces the previous one; null only removes
  // it. The previous one is destroyed on this thread after the lock was released.
  void Attach(const void* key, std::shared_ptr<Attachment> attachment) const;
  // Null: there is no such attachment.
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
  size_t mapped_bytes_ = 0;  // a multiple of the page size; 0: not unmapped by this block
  uint64_t id_;

  // For a piece.
  MemoryBlock* root_ = nullptr;
  std::shared_ptr<MemoryBlock> whole_;
  std::function<void()> released_;

  // For a root.
  std::shared_ptr<Device> device_;
  bool device_owned_ = false;  // allocated by this library on the device
  // Only a few: one per device.
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<const void*, std::shared_ptr<Attachment>>> attachments_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_MEMORY_H_
