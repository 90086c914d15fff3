#include "client/staging/staging.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::client {
namespace {

constexpr uint32_t kSmallest = 4096;
// Areas are registered and exposed as a whole.
constexpr size_t kMostArea = size_t{64} << 20;

size_t BufferBytes(int size_class) { return size_t{kSmallest} << size_class; }

bool Contains(const rdma::MemoryBlock& block, const std::byte* data) {
  return data >= block.data() && data < block.data() + block.size();
}

}  // namespace

int Staging::ClassOf(uint32_t bytes) {
  const uint32_t units = (std::max(bytes, kSmallest) + kSmallest - 1) / kSmallest;
  return std::bit_width(units - 1);
}

absl::Status Staging::Take(uint32_t bytes, Buffer* buffer) {
  const int size_class = ClassOf(bytes);
  SizeClass& buffers = classes_[size_class];
  if (buffers.free.empty()) {
    const bool fits = allocated_ + BufferBytes(size_class) <= limit_;
    // Every size gets at least one buffer, or its pulls could never be sent.
    if (fits || (!Recut(size_class) && buffers.made == 0)) {
      if (absl::Status s = Grow(size_class); !s.ok()) return s;
    }
    if (buffers.free.empty()) return absl::OkStatus();
  }
  buffer->data = buffers.free.back();
  buffers.free.pop_back();
  Area* area = AreaOf(buffer->data);
  ++area->used;
  buffer->block = area->block;
  return absl::OkStatus();
}

absl::Status Staging::Grow(int size_class) {
  const size_t buffer_bytes = BufferBytes(size_class);
  const size_t room = limit_ > allocated_ ? limit_ - allocated_ : 0;
  const size_t wanted = std::max(buffer_bytes, std::min(room, std::max(limit_ / 4, buffer_bytes)));
  const size_t most = std::max(buffer_bytes, kMostArea);
  const size_t bytes = std::min(wanted, most) / buffer_bytes * buffer_bytes;
  auto block = allocate_(bytes);
  if (!block.ok()) return block.status();
  allocated_ += bytes;
  areas_.push_back({*std::move(block), 0, 0, 0, bytes > room});
  Cut(&areas_.back(), size_class);
  return absl::OkStatus();
}

void Staging::Cut(Area* area, int size_class) {
  const size_t buffer_bytes = BufferBytes(size_class);
  area->size_class = size_class;
  area->buffers = area->block->size() / buffer_bytes;
  for (size_t i = 0; i < area->buffers; ++i) {
    classes_[size_class].free.push_back(area->block->data() + i * buffer_bytes);
  }
  classes_[size_class].made += area->buffers;
}

bool Staging::Recut(int size_class) {
  const auto area = std::find_if(areas_.begin(), areas_.end(), [&](const Area& a) {
    return a.used == 0 && !a.beyond_limit && a.size_class != size_class &&
           a.block->size() >= BufferBytes(size_class);
  });
  if (area == areas_.end()) return false;
  SizeClass& before = classes_[area->size_class];
  std::erase_if(before.free, [&](const std::byte* data) { return Contains(*area->block, data); });
  before.made -= area->buffers;
  Cut(&*area, size_class);
  return true;
}

absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Staging::AllocateHost(size_t bytes) {
  return rdma::MemoryBlock::Allocate(bytes, "verbena-staging");
}

size_t Staging::ToMake(uint32_t bytes) const {
  const size_t room = limit_ > allocated_ ? limit_ - allocated_ : 0;
  // Take() makes the first buffer of a size regardless of the limit.
  return std::max<size_t>(room / (BufferBytes(ClassOf(bytes))),
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
  --AreaOf(data)->used;
}

const Staging::Area* Staging::AreaOf(const std::byte* data) const {
  for (const Area& area : areas_) {
    if (Contains(*area.block, data)) return &area;
  }
  return nullptr;
}

Staging::Area* Staging::AreaOf(const std::byte* data) {
  return const_cast<Area*>(std::as_const(*this).AreaOf(data));
}

const std::shared_ptr<rdma::MemoryBlock>& Staging::BlockOf(const std::byte* data) const {
  static const std::shared_ptr<rdma::MemoryBlock> kNone;
  const Area* area = AreaOf(data);
  return area == nullptr ? kNone : area->block;
}

}  // namespace verbena::client
