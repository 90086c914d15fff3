#include "shard/allocator.h"

#include <cstring>
#include <new>

namespace verbena::shard {
namespace {
constexpr std::align_val_t kAlignment{64};
}  // namespace

Buffer HeapAllocator::Allocate(size_t bytes) {
  void* data = ::operator new(bytes, kAlignment, std::nothrow);
  if (data == nullptr) return {};
  std::memset(data, 0, bytes);
  return {static_cast<std::byte*>(data), bytes, nullptr};
}

void HeapAllocator::Free(const Buffer& buffer) { ::operator delete(buffer.data, kAlignment); }

}  // namespace verbena::shard
