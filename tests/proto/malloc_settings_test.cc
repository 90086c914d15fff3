#include "proto/malloc_settings.h"

#include <malloc.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <vector>

namespace verbena {
namespace {

// Sanitizers have a malloc() of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReplaced = true;
#else
constexpr bool kReplaced = false;
#endif

TEST_CASE("large blocks are mapped after others of their size have been freed") {
  if (kReplaced) return;
  ReturnLargeBlocks();
  constexpr size_t kBytes = 3 * kMappedBlockBytes;
  // Without the fixed threshold, this free() moves all later blocks of this size into the heap.
  std::free(std::malloc(kBytes));
  const size_t mapped_before = mallinfo2().hblkhd;
  std::vector<void*> blocks(8);
  for (void*& block : blocks) block = std::malloc(kBytes);
  CHECK(mallinfo2().hblkhd >= mapped_before + blocks.size() * kBytes);
  for (void* block : blocks) std::free(block);
  CHECK(mallinfo2().hblkhd == mapped_before);
}

}  // namespace
}  // namespace verbena
