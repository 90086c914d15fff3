#include "rdma/memory/memory.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "rdma/memory/pages.h"

namespace verbena::rdma {
namespace {

std::atomic<uint64_t> next_block_id{1};

absl::Status CheckKind(MemoryKind kind) {
  if (kind == MemoryKind::kHost) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("memory kind ", std::string(MemoryKindName(kind)), ": this build has no CUDA"));
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

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Allocate(size_t bytes, MemoryKind kind,
                                                                   std::string_view label,
                                                                   const PageOptions& options) {
  if (absl::Status status = CheckKind(kind); !status.ok()) return status;
  absl::StatusOr<Mapping> mapping = MapSharedPages(bytes, options, label);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<MemoryBlock>(new MemoryBlock(bytes, *mapping));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::AllocatePrivate(
    size_t bytes, const PageOptions& options, std::string_view label) {
  absl::StatusOr<Mapping> mapping = MapPrivatePages(bytes, options, label);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<MemoryBlock>(new MemoryBlock(bytes, *mapping));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Register(void* data, size_t bytes,
                                                                   MemoryKind kind) {
  if (absl::Status status = CheckKind(kind); !status.ok()) return status;
  if (data == nullptr) return absl::InvalidArgumentError("cannot register a null pointer");
  if (bytes == 0) return absl::InvalidArgumentError("cannot register 0 bytes");
  return std::shared_ptr<MemoryBlock>(new MemoryBlock(static_cast<std::byte*>(data), bytes, kind));
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
      // Relaxed: only uniqueness is wanted.
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
  // Invariant 1. Newest first, as members go.
  while (!attachments_.empty()) attachments_.pop_back();
  if (mapped_bytes_ > 0) UnmapPages({data_, mapped_bytes_, fd_, pages_, node_});
}

void MemoryBlock::Attach(const void* key, std::shared_ptr<Attachment> attachment) const {
  if (root_ != nullptr) return root_->Attach(key, std::move(attachment));
  // Swapped out under the lock, destroyed after it: `attachment` ends with this function.
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
