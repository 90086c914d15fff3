// The right contents of an embedding table, by a simple model: a std::map of rows, each changed by
// a plain loop over the contributions to it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_ROW_MODEL_H_
#define VERBENA_TESTS_SHARD_ROW_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "shard/optimizer/optimizer.h"
#include "shard/table/initializer.h"
#include "tests/shard/row_fixture.h"
#include "verbena/half.h"

namespace verbena::shard {

class RowModel {
 public:
  explicit RowModel(const RowOptions& o)
      : options_(o), optimizer_(*MakeOptimizer(o.optimizer)), applies_(o.partitions) {}

  bool Has(uint64_t key) const { return rows_.count(key) > 0; }
  Row Get(uint64_t key) const {
    const auto it = rows_.find(key);
    if (it != rows_.end()) return it->second.w;
    Row row(options_.dim);
    InitializeRow(options_.initializer, key, row.data(), row.size());
    Round(&row);
    return row;
  }
  Rows Get(const std::vector<uint64_t>& keys) const {
    Rows rows;
    for (const uint64_t key : keys) rows[key] = Get(key);
    return rows;
  }
  Rows Partition(uint32_t partition) const {
    Rows rows;
    for (const auto& [key, row] : rows_) {
      if (PartitionOfKey(kTable, key, options_.partitions) == partition) rows[key] = row.w;
    }
    return rows;
  }
  uint64_t size() const { return rows_.size(); }

  // One apply to a partition: the contributions to each key, in their order.
  void Apply(uint32_t partition, const std::map<uint64_t, std::vector<Row>>& contributions,
             float divisor) {
    const uint64_t step = ++applies_[partition];
    for (const auto& [key, rows] : contributions) {
      Row g = rows[0];
      for (size_t i = 1; i < rows.size(); ++i) {
        for (size_t k = 0; k < g.size(); ++k) g[k] += rows[i][k];
      }
      for (float& x : g) x /= divisor;
      const auto [it, made] = rows_.try_emplace(key);
      ModelRow& row = it->second;
      if (made) {
        row.w.resize(options_.dim);
        InitializeRow(options_.initializer, key, row.w.data(), row.w.size());
        Round(&row.w);
        for (Row& s : row.state) s.resize(options_.dim);
      }
      float* state[2] = {row.state[0].data(), row.state[1].data()};
      optimizer_->Apply(Isa::kBaseline, optimizer_->Prepare(step, ++row.t), row.w.data(),
                        row.w.data(), state, g.data(), g.size());
      Round(&row.w);
    }
  }

 private:
  // To a number that a table of 16 bits can have.
  void Round(Row* row) const {
    for (float& x : *row) {
      if (options_.row_dtype == v1::DTYPE_BF16) x = FloatFromBFloat16(BFloat16FromFloat(x));
      if (options_.row_dtype == v1::DTYPE_F16) x = FloatFromHalf(HalfFromFloat(x));
    }
  }
  struct ModelRow {
    Row w;
    Row state[2];
    uint64_t t = 0;
  };
  const RowOptions options_;
  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<uint64_t> applies_;
  std::map<uint64_t, ModelRow> rows_;
};

// A table made from a seed.
inline RowOptions RandomRowOptions(uint32_t seed, v1::Consistency consistency) {
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  static const char* const kOptimizers[] = {"sgd", "momentum", "adam", "rowwise_adagrad", "ftrl"};
  RowOptions o;
  o.consistency = consistency;
  o.workers = 1 + pick(4);
  o.partitions = 1 + pick(5);
  o.dim = 1 + pick(pick(8) == 0 ? 1024 : 20);
  o.staleness = pick(3);
  o.reduction = pick(2) == 0 ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
  o.optimizer.set_name(kOptimizers[pick(5)]);
  o.optimizer.set_rate(0.1);
  if (pick(3) == 0) {
    o.optimizer.mutable_schedule()->set_kind(v1::Schedule::STEP);
    o.optimizer.mutable_schedule()->set_period(5);
    o.optimizer.mutable_schedule()->set_factor(0.9);
  }
  o.initializer.set_seed(seed);
  o.row_dtype = std::vector{v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}[pick(3)];
  return o;
}

inline Row RandomRow(std::mt19937* random, uint32_t dim) {
  std::normal_distribution<float> normal(0, 1);
  Row row(dim);
  for (float& x : row) x = normal(*random);
  return row;
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_ROW_MODEL_H_
