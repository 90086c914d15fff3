// The limit of an embedding table: the same work on a hash map of this process, without a server.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_EMBEDDING_LOCAL_TABLE_H_
#define VERBENA_BENCH_EMBEDDING_LOCAL_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace verbena::bench {

// Rows of `dim` numbers, plain gradient descent.
class LocalTable {
 public:
  LocalTable(uint64_t rows, uint32_t dim) : dim_(dim) {
    index_.reserve(rows);
    values_.reserve(rows * dim);
  }

  void Push(absl::Span<const uint64_t> keys, const float* gradients, float rate) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto [at, made] = index_.try_emplace(keys[i], values_.size() / dim_);
      if (made) values_.resize(values_.size() + dim_);
      float* row = values_.data() + at->second * dim_;
      for (uint32_t d = 0; d < dim_; ++d) row[d] -= rate * gradients[i * dim_ + d];
    }
  }

  void Lookup(absl::Span<const uint64_t> keys, float* out) const {
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = index_.find(keys[i]);
      float* row = out + i * dim_;
      if (at == index_.end()) {
        std::memset(row, 0, dim_ * sizeof(float));
      } else {
        std::memcpy(row, values_.data() + at->second * dim_, dim_ * sizeof(float));
      }
    }
  }

  void Scan(float* out, uint64_t batch) const {
    for (uint64_t first = 0; first < values_.size(); first += batch * dim_) {
      const uint64_t count = std::min<uint64_t>(batch * dim_, values_.size() - first);
      std::memcpy(out, values_.data() + first, count * sizeof(float));
    }
  }

 private:
  const uint32_t dim_;
  absl::flat_hash_map<uint64_t, uint64_t> index_;
  std::vector<float> values_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_LOCAL_TABLE_H_
