#include "client/staging/staging.h"

#include <algorithm>
#include <bit>

namespace verbena::client {
namespace {

constexpr uint32_t kSmallest = 4096;
// Areas are registered and exposed whole.
constexpr size_t kMostArea = size_t{64} << 20;

}  // namespace

int Staging::ClassOf(uint32_t bytes) {
  const uint32_t units = (std::max(bytes, kSmallest) + kSmallest - 1) / kSmallest;
  return std::bit_width(units - 1);
}

absl::Status Staging::Take(uint32_t bytes, Buffer* buffer) {
  SizeClass& size_class = classes_[ClassOf(bytes)];
  const size_t buffer_bytes = size_t{kSmallest} << ClassOf(bytes);
  if (size_class.free.empty()) {
    // Within the limit; but every size gets at least one buffer, or its pulls could never go.
    if (allocated_ + buffer_bytes > limit_ && size_class.made > 0) return absl::OkStatus();
    if (absl::Status s = Grow(buffer_bytes, &size_class); !s.ok()) return s;
  }
  buffer->data = size_class.free.back();
  size_class.free.pop_back();
  buffer->block = BlockOf(buffer->data);
  return absl::OkStatus();
}

absl::Status Staging::Grow(size_t buffer_bytes, SizeClass* size_class) {
  const size_t room = limit_ > allocated_ ? limit_ - allocated_ : 0;
  const size_t wanted = std::max(buffer_bytes, std::min(room, std::max(limit_ / 4, buffer_bytes)));
  const size_t most = std::max(buffer_bytes, kMostArea);
  const size_t bytes = std::min(wanted, most) / buffer_bytes * buffer_bytes;
  auto block = allocate_(bytes);
  if (!block.ok()) return block.status();
  allocated_ += bytes;
  for (size_t offset = 0; offset < bytes; offset += buffer_bytes) {
    size_class->free.push_back((*block)->data() + offset);
    ++size_class->made;
  }
  areas_.push_back({*std::move(block)});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Staging::AllocateHost(size_t bytes) {
  return rdma::MemoryBlock::Allocate(bytes, "verbena-staging");
}

size_t Staging::ToMake(uint32_t bytes) const {
  const size_t room = limit_ > allocated_ ? limit_ - allocated_ : 0;
  // Take() makes a first one whatever the limit.
  return std::max<size_t>(room / (size_t{kSmallest} << ClassOf(bytes)),
                          classes_[ClassOf(bytes)].made == 0 ? 1 : 0);
}

size_t Staging::Left(uint32_t bytes) const {
  return classes_[ClassOf(bytes)].free.size() + ToMake(bytes);
}

size_t Staging::Capacity(uint32_t bytes) const {
  return classes_[ClassOf(bytes)].made + ToMake(bytes);
}

void Staging::Give(std::byte* data, uint32_t bytes) {
  classes_[ClassOf(bytes)].free.push_back(data);
}

const std::shared_ptr<rdma::MemoryBlock>& Staging::BlockOf(const std::byte* data) const {
  static const std::shared_ptr<rdma::MemoryBlock> kNone;
  for (const Area& area : areas_) {
    if (data >= area.block->data() && data < area.block->data() + area.block->size()) {
      return area.block;
    }
  }
  return kNone;
}

}  // namespace verbena::client
