// The table a scenario trains, as one array of numbers: a dense table's elements, or the rows of
// some keys, which stand in the order of their partitions. Contributions are counted, and steps
// committed, by chunk of a dense table, and by partition of an embedding table.
//
// **Thread safety**: immutable once made.
#ifndef VERBENA_TESTS_CLUSTER_SCENARIO_TABLE_H_
#define VERBENA_TESTS_CLUSTER_SCENARIO_TABLE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

class ScenarioTable {
 public:
  // Makes a dense table.
  explicit ScenarioTable(const v1::TableSpec& spec) : spec_(spec) {
    const DenseLayout layout = LayoutOf(spec);
    for (uint32_t c = 0; c < layout.chunks(); ++c) starts_.push_back(layout.first_element(c));
    starts_.push_back(layout.elements);
  }
  // Rows of an embedding table with this id: of `keys` keys.
  ScenarioTable(const v1::TableSpec& spec, uint32_t id, uint32_t keys, uint32_t partitions)
      : spec_(spec) {
    for (uint64_t key = 0; key < keys; ++key) keys_.push_back(key * key * 1'000'003);
    const auto partition = [&](uint64_t key) { return PartitionOfKey(id, key, partitions); };
    std::sort(keys_.begin(), keys_.end(),
              [&](uint64_t a, uint64_t b) { return partition(a) < partition(b); });
    starts_.assign(partitions + 1, 0);
    for (const uint64_t key : keys_) starts_[partition(key) + 1] += spec.dim();
    for (uint32_t p = 0; p < partitions; ++p) starts_[p + 1] += starts_[p];
  }

  const v1::TableSpec& spec() const { return spec_; }
  bool embedding() const { return spec_.dim() > 0; }
  uint32_t chunks() const { return static_cast<uint32_t>(starts_.size()) - 1; }
  uint64_t first(uint32_t chunk) const { return starts_[chunk]; }  // element
  uint64_t end(uint32_t chunk) const { return starts_[chunk + 1]; }
  uint64_t elements() const { return starts_.back(); }
  // Numbers of this table as they lie in memory: gradients that are pushed, parameters that are
  // pulled. Those of a scenario have few digits: bf16, the upper half of an f32, has them all.
  void PutGradients(absl::Span<const float> values, std::byte* to) const {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]) >> (gradient_bytes() == 2 ? 16 : 0);
      std::memcpy(to + i * gradient_bytes(), &bits, gradient_bytes());
    }
  }
  std::vector<float> Parameters(const std::byte* from) const {
    std::vector<float> values(elements());
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, from + i * parameter_bytes(), parameter_bytes());
      values[i] = std::bit_cast<float>(bits << (parameter_bytes() == 2 ? 16 : 0));
    }
    return values;
  }
  uint32_t gradient_bytes() const { return ElementBytes(GradientType(spec_)); }
  uint32_t parameter_bytes() const { return ElementBytes(ParameterType(spec_)); }
  // Keys of the elements [first, end), which begin and end with rows.
  absl::Span<const uint64_t> keys(uint64_t first, uint64_t end) const {
    return absl::MakeConstSpan(keys_).subspan(first / spec_.dim(), (end - first) / spec_.dim());
  }

 private:
  v1::TableSpec spec_;
  std::vector<uint64_t> keys_;
  std::vector<uint64_t> starts_;  // of each chunk, and the end
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SCENARIO_TABLE_H_
