// The single-process reference of steps whose norms span chunks and tables: parameters of each
// step, from the recorded contributors alone, by the kernels that the servers use, table by table
// and chunk by chunk in one loop.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_NORM_REFERENCE_H_
#define VERBENA_TESTS_CLUSTER_NORM_REFERENCE_H_

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/table_spec.h"
#include "shard/engine.h"
#include "shard/kernel/fused_pass.h"
#include "tests/cluster/reference.h"

namespace verbena::test {

class NormReference {
 public:
  static constexpr char kOpen[] = " was not committed everywhere";

  explicit NormReference(const std::vector<v1::TableSpec>& specs) {
    for (const v1::TableSpec& spec : specs) {
      Table& table = tables_.emplace_back();
      table.spec = spec;
      table.layout = LayoutOf(spec);
      table.optimizer = *shard::MakeOptimizer(spec.optimizer());
      table.commits.resize(table.layout.chunks());
      table.state.resize(table.optimizer->state_arrays() * table.layout.elements);
      table.versions.emplace_back(table.layout.elements,
                                  static_cast<float>(spec.initializer().a()));
    }
  }

  // Returns the error of a commit, or an empty string.
  std::string Commit(size_t table, uint32_t chunk, uint64_t step, std::vector<int> ranks,
                     uint32_t divisor) {
    auto& commits = tables_[table].commits[chunk];
    if (commits.size() != step) {
      return "table " + std::to_string(table) + " chunk " + std::to_string(chunk) +
             " committed step " + std::to_string(step) + " as its commit number " +
             std::to_string(commits.size());
    }
    commits.push_back({std::move(ranks), divisor});
    return "";
  }

  // Whether `data` is version `version` of the table, bit for bit; names the first difference.
  std::string Check(size_t table, const std::vector<float>& data, uint64_t version) {
    while (tables_[table].versions.size() <= version) {
      if (!Step()) return "step " + std::to_string(steps_) + kOpen;
    }
    const std::vector<float>& want = tables_[table].versions[version];
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(&data[i], &want[i], sizeof(float)) == 0) continue;
      return "table " + std::to_string(table) + " element " + std::to_string(i) + " at version " +
             std::to_string(version) + " is " + std::to_string(data[i]) + ", the reference has " +
             std::to_string(want[i]);
    }
    return "";
  }

 private:
  struct Record {
    std::vector<int> ranks;
    uint32_t divisor;
  };
  struct Table {
    v1::TableSpec spec;
    DenseLayout layout;
    std::unique_ptr<shard::Optimizer> optimizer;
    std::vector<std::vector<Record>> commits;  // [chunk][step]
    std::vector<float> state;
    std::vector<std::vector<float>> versions;
    std::vector<float> gradient;  // the sum of the step
  };

  float DivisorOf(const Table& t, uint32_t chunk) const {
    const bool mean = t.spec.reduction() == v1::REDUCTION_MEAN;
    return mean ? static_cast<float>(t.commits[chunk][steps_].divisor) : 1.0f;
  }

  // Calls f(chunk, first element, elements, divisor).
  template <typename F>
  void ForChunks(const Table& t, F f) const {
    for (uint32_t c = 0; c < t.layout.chunks(); ++c) {
      f(c, t.layout.first_element(c), t.layout.elements_of(c), DivisorOf(t, c));
    }
  }

  bool Step() {
    for (const Table& t : tables_) {
      for (const auto& commits : t.commits) {
        if (commits.size() <= steps_) return false;
      }
    }
    const shard::Isa isa = shard::BestIsa();
    double total = 0;
    for (Table& t : tables_) {
      t.gradient.assign(t.layout.elements, 0);
      ForChunks(t, [&](uint32_t c, uint64_t first, uint32_t n, float divisor) {
        for (uint64_t i = first; i < first + n; ++i) {
          for (int rank : t.commits[c][steps_].ranks) {
            t.gradient[i] += SyncGradient(rank, steps_, i);
          }
        }
        const shard::Source sum = &t.gradient[first];
        if (t.optimizer->clip_global_norm() > 0) {
          total += shard::SquaredGradient(isa, {&sum, 1}, divisor, n);
        }
      });
    }
    for (Table& t : tables_) Apply(&t, total);
    ++steps_;
    return true;
  }

  void Apply(Table* t, double total) {
    const shard::Isa isa = shard::BestIsa();
    shard::ApplyScalars scalars = t->optimizer->Prepare(steps_ + 1);
    const double limit = t->optimizer->clip_global_norm();
    if (limit > 0) scalars.gradient_scale = shard::GradientScale(total, limit);
    std::vector<float> w = t->versions.back();
    const size_t stride = t->layout.elements;
    if (t->optimizer->has_trust_ratio()) {
      shard::TrustParts sum;
      ForChunks(*t, [&](uint32_t, uint64_t first, uint32_t n, float divisor) {
        const shard::Source g = &t->gradient[first];
        const shard::TrustParts part = shard::MeasureTrust(
            isa, *t->optimizer, scalars, {&g, 1}, divisor, &w[first], &t->state[first], stride, n);
        sum.weights += part.weights;
        sum.update += part.update;
      });
      scalars.trust = shard::TrustRatio(sum.weights, sum.update);
    }
    ForChunks(*t, [&](uint32_t, uint64_t first, uint32_t n, float divisor) {
      const shard::Source g = &t->gradient[first];
      float* state = t->state.empty() ? nullptr : &t->state[first];
      shard::ReduceAndApply(isa, *t->optimizer, scalars, {&g, 1}, divisor, &w[first], &w[first],
                            state, stride, n);
    });
    t->versions.push_back(std::move(w));
  }

  std::vector<Table> tables_;
  uint64_t steps_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_NORM_REFERENCE_H_
