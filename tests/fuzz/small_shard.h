// A shard for fuzz targets that give it views: one that runs out of memory soon.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_FUZZ_SMALL_SHARD_H_
#define VERBENA_TESTS_FUZZ_SMALL_SHARD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/spec/table_spec.h"
#include "shard/allocator.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::fuzz {

class SmallAllocator final : public shard::Allocator {
 public:
  explicit SmallAllocator(size_t bytes) : left_(bytes) {}
  shard::Buffer Allocate(size_t bytes) override {
    if (bytes > left_) return {};
    left_ -= bytes;
    return heap_.Allocate(bytes);
  }
  void Free(const shard::Buffer& buffer) override {
    left_ += buffer.bytes;
    heap_.Free(buffer);
  }

 private:
  shard::HeapAllocator heap_;
  size_t left_;
};

// A sync table has an entry for each chunk and worker, and an index one for each chunk: the allowed
// number of them (server/coordinator/jobs.h) takes too long for a target that runs often.
inline bool TooManyContributions(const v1::ClusterView& view) {
  constexpr uint64_t kMost = 1 << 16;
  uint64_t chunks = 0, workers = 1;
  for (const v1::Table& table : view.tables()) {
    const v1::TableSpec& spec = table.spec();
    if (spec.dim() == 0 && spec.chunk_bytes() < 64) continue;  // refused: it has no layout
    uint64_t elements = spec.dim() > 0 ? 0 : 1;
    for (const uint64_t n : spec.shape()) {
      if (__builtin_mul_overflow(elements, n, &elements)) elements = 0;  // refused, too
    }
    chunks = std::max(chunks, elements / (spec.chunk_bytes() / 8 + 1));
  }
  for (const v1::Job& job : view.jobs()) {
    workers = std::max<uint64_t>(workers, job.expected_workers());
  }
  return chunks > kMost || chunks * workers > kMost;
}

}  // namespace verbena::fuzz

#endif  // VERBENA_TESTS_FUZZ_SMALL_SHARD_H_
