// The sequential reference: the contents of each chunk after each commit, from the recorded
// contributors alone.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_REFERENCE_H_
#define VERBENA_TESTS_CLUSTER_REFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/cluster/scenario_table.h"

namespace verbena::test {

// The integer gradient of worker `rank` for step `step` at `element`: never zero.
inline float SyncGradient(int rank, uint64_t step, uint64_t element) {
  return static_cast<float>(1 + (uint64_t(rank) * 7 + step * 3 + element) % 5);
}

class SyncReference {
 public:
  // `table` outlives the reference. mean: of the step's workers.
  explicit SyncReference(const ScenarioTable* table, bool replicated = false, bool mean = false)
      : table_(*table), replicated_(replicated), mean_(mean), chunks_(table->chunks()) {}

  // Step `step` of `chunk` was committed with the contributions of `ranks`. Returns the error (a
  // step out of order), or an empty string. With replicas it is called when the commit is certain
  // to be that or none: a primary that dies, or is replaced, may have reported a commit that no
  // worker will ever see. So a step may be reported again, and any of these reports may be the
  // right one.
  std::string Commit(uint32_t chunk, uint64_t step, absl::Span<const int> ranks,
                     uint32_t divisor = 1) {
    auto& versions = chunks_[chunk];
    if (versions.empty()) {
      versions.push_back({std::vector<float>(table_.end(chunk) - table_.first(chunk), 0.0f)});
    }
    if (versions.size() != step + 1 && !(replicated_ && step + 1 < versions.size())) {
      return "chunk " + std::to_string(chunk) + " committed step " + std::to_string(step) +
             " as its commit number " + std::to_string(versions.size() - 1);
    }
    if (versions.size() == step + 1) versions.emplace_back();
    for (const std::vector<float>& before : versions[step]) {
      std::vector<float> next = before;
      for (size_t i = 0; i < next.size(); ++i) {
        float sum = 0;  // exact
        for (int rank : ranks) sum += SyncGradient(rank, step, table_.first(chunk) + i);
        next[i] -= mean_ ? sum / static_cast<float>(divisor) : sum;
      }
      auto& after = versions[step + 1];
      if (std::find(after.begin(), after.end(), next) == after.end()) {
        after.push_back(std::move(next));
      }
    }
    return "";
  }

  // Whether `data` (the whole table) is version `version` of every chunk; names the first
  // difference. A version that was seen once is the right one from then on.
  std::string Check(absl::Span<const float> data, uint64_t version) {
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) {
      if (table_.first(chunk) == table_.end(chunk)) continue;  // no key: nobody asked there
      if (chunks_[chunk].size() <= version) {
        return "chunk " + std::to_string(chunk) + " was served at version " +
               std::to_string(version) + " before it was committed";
      }
      std::vector<std::vector<float>>& all = chunks_[chunk][version];
      const auto got = data.subspan(table_.first(chunk), table_.end(chunk) - table_.first(chunk));
      const auto seen = std::find_if(all.begin(), all.end(), [&](const std::vector<float>& want) {
        return std::equal(want.begin(), want.end(), got.begin());
      });
      if (seen == all.end()) return Difference(chunk, version, got, all.back());
      all = {std::vector<float>(*seen)};
    }
    return "";
  }

 private:
  std::string Difference(uint32_t chunk, uint64_t version, absl::Span<const float> got,
                         const std::vector<float>& want) const {
    size_t i = 0;
    while (got[i] == want[i]) ++i;
    return "element " + std::to_string(table_.first(chunk) + i) + " (chunk " +
           std::to_string(chunk) + ") at version " + std::to_string(version) + " is " +
           std::to_string(got[i]) + ", the reference has " + std::to_string(want[i]);
  }

  const ScenarioTable& table_;
  const bool replicated_;
  const bool mean_;
  // [chunk][version]: possible contents
  std::vector<std::vector<std::vector<std::vector<float>>>> chunks_;
};

// async: worker r adds 256^r to every element with each push, so a chunk is uniform and its value
// shows the number of pushes of each worker in it.
inline float AsyncGradient(int rank) { return static_cast<float>(1 << (8 * rank)); }
inline uint32_t AsyncCount(float value, int rank) {
  return (static_cast<uint32_t>(-value) >> (8 * rank)) & 0xff;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_REFERENCE_H_
