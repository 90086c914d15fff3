#include "rdma/memory/memory.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "rdma/memory/device.h"
#include "rdma/memory/pages.h"

namespace verbena::rdma {
namespace {

std::atomic<uint64_t> next_block_id{1};

// Attachment of a block with page-locked pages.
class PinnedPages final : public MemoryBlock::Attachment {
 public:
  PinnedPages(std::shared_ptr<Device> device, std::byte* data)
      : device_(std::move(device)), data_(data) {}
  ~PinnedPages() override { device_->Unpin(data_); }

 private:
  const std::shared_ptr<Device> device_;
  std::byte* const data_;
};

absl::Status CheckLent(const void* data, size_t bytes) {
  if (data == nullptr) return absl::InvalidArgumentError("cannot register a null pointer");
  if (bytes == 0) return absl::InvalidArgumentError("cannot register 0 bytes");
  return absl::OkStatus();
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Allocate(size_t bytes,
                                                                   std::string_view label,
                                                                   const PageOptions& options) {
  absl::StatusOr<Mapping> mapping = MapSharedPages(bytes, options, label);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<MemoryBlock>(new MemoryBlock(bytes, *mapping));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::AllocatePinned(
    std::shared_ptr<Device> device, size_t bytes, std::string_view label) {
  auto block = Allocate(bytes, label);
  if (!block.ok()) return block;
  if (absl::Status s = device->Pin((*block)->data_, (*block)->mapped_bytes_); !s.ok()) return s;
  (*block)->kind_ = MemoryKind::kPinned;
  std::byte* const data = (*block)->data_;
  // The device identifies page-locked memory by its address, so the address is the key.
  (*block)->Attach(data, std::make_shared<PinnedPages>(std::move(device), data));
  return block;
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::AllocateOn(std::shared_ptr<Device> device,
                                                                     size_t bytes) {
  absl::StatusOr<std::byte*> data = device->Allocate(bytes);
  if (!data.ok()) return data.status();
  std::shared_ptr<MemoryBlock> block(new MemoryBlock(*data, bytes, MemoryKind::kCuda));
  block->device_ = std::move(device);
  block->device_owned_ = true;
  return block;
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::AllocatePrivate(
    size_t bytes, const PageOptions& options, std::string_view label) {
  absl::StatusOr<Mapping> mapping = MapPrivatePages(bytes, options, label);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<MemoryBlock>(new MemoryBlock(bytes, *mapping));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Register(void* data, size_t bytes) {
  if (absl::Status s = CheckLent(data, bytes); !s.ok()) return s;
  return std::shared_ptr<MemoryBlock>(
      new MemoryBlock(static_cast<std::byte*>(data), bytes, MemoryKind::kHost));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::RegisterOn(std::shared_ptr<Device> device,
                                                                     void* data, size_t bytes) {
  if (absl::Status s = CheckLent(data, bytes); !s.ok()) return s;
  auto* const address = static_cast<std::byte*>(data);
  if (absl::Status s = device->CheckMemory(address, bytes); !s.ok()) return s;
  std::shared_ptr<MemoryBlock> block(new MemoryBlock(address, bytes, MemoryKind::kCuda));
  block->device_ = std::move(device);
  return block;
}

std::shared_ptr<MemoryBlock> MemoryBlock::Piece(std::shared_ptr<MemoryBlock> whole, size_t offset,
                                                size_t bytes, std::function<void()> released) {
  if (whole == nullptr || offset > whole->size_ || bytes > whole->size_ - offset) return nullptr;
  std::shared_ptr<MemoryBlock> piece(new MemoryBlock(whole->data_ + offset, bytes, whole->kind_));
  piece->pages_ = whole->pages_;
  piece->root_ = whole->root_ == nullptr ? whole.get() : whole->root_;
  piece->whole_ = std::move(whole);
  piece->released_ = std::move(released);
  return piece;
}

MemoryBlock::MemoryBlock(std::byte* data, size_t size, MemoryKind kind)
    : data_(data),
      size_(size),
      kind_(kind),
      // Relaxed: only uniqueness is needed.
      id_(next_block_id.fetch_add(1, std::memory_order_relaxed)) {}

MemoryBlock::MemoryBlock(size_t size, const Mapping& mapping)
    : MemoryBlock(mapping.data, size, MemoryKind::kHost) {
  pages_ = mapping.pages;
  fd_ = mapping.fd;
  node_ = mapping.node;
  mapped_bytes_ = mapping.bytes;
}

MemoryBlock::~MemoryBlock() {
  if (released_) released_();
  // Invariant 1. Newest first, like the destruction of members.
  while (!attachments_.empty()) attachments_.pop_back();
  if (device_owned_) device_->Free(data_);
  if (mapped_bytes_ > 0) UnmapPages({data_, mapped_bytes_, fd_, pages_, node_});
}

void MemoryBlock::Attach(const void* key, std::shared_ptr<Attachment> attachment) const {
  if (root_ != nullptr) return root_->Attach(key, std::move(attachment));
  // Swapped under the lock and destroyed after it: `attachment` ends with this function.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = std::find_if(attachments_.begin(), attachments_.end(),
                               [key](const auto& entry) { return entry.first == key; });
  if (it == attachments_.end()) {
    if (attachment != nullptr) attachments_.emplace_back(key, std::move(attachment));
    return;
  }
  it->second.swap(attachment);
  if (it->second == nullptr) attachments_.erase(it);
}

std::shared_ptr<MemoryBlock::Attachment> MemoryBlock::FindAttachment(const void* key) const {
  if (root_ != nullptr) return root_->FindAttachment(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [attached, attachment] : attachments_) {
    if (attached == key) return attachment;
  }
  return nullptr;
}

}  // namespace verbena::rdma
