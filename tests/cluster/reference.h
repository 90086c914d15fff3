// The sequential reference: what each chunk holds after each commit, from the recorded
// contributors alone.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_REFERENCE_H_
#define VERBENA_TESTS_CLUSTER_REFERENCE_H_

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
  // `table` outlives the reference.
  explicit SyncReference(const ScenarioTable* table) : table_(*table), chunks_(table->chunks()) {}

  // Step `step` of `chunk` was committed with the contributions of `ranks`. Returns what is wrong
  // with that (a step out of order), or an empty string.
  std::string Commit(uint32_t chunk, uint64_t step, absl::Span<const int> ranks) {
    auto& versions = chunks_[chunk];
    if (versions.empty()) versions.emplace_back(table_.end(chunk) - table_.first(chunk), 0.0f);
    if (versions.size() != step + 1) {
      return "chunk " + std::to_string(chunk) + " committed step " + std::to_string(step) +
             " as its commit number " + std::to_string(versions.size() - 1);
    }
    std::vector<float> next = versions.back();
    for (size_t i = 0; i < next.size(); ++i) {
      for (int rank : ranks) next[i] -= SyncGradient(rank, step, table_.first(chunk) + i);
    }
    versions.push_back(std::move(next));
    return "";
  }

  // Whether `data` (the whole table) is version `version` of every chunk; says where it is not.
  std::string Check(absl::Span<const float> data, uint64_t version) const {
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) {
      if (chunks_[chunk].size() <= version) {
        return "chunk " + std::to_string(chunk) + " was served at version " +
               std::to_string(version) + " before it was committed";
      }
      const std::vector<float>& want = chunks_[chunk][version];
      for (size_t i = 0; i < want.size(); ++i) {
        const uint64_t element = table_.first(chunk) + i;
        if (data[element] != want[i]) {
          return "element " + std::to_string(element) + " (chunk " + std::to_string(chunk) +
                 ") at version " + std::to_string(version) + " is " +
                 std::to_string(data[element]) + ", the reference has " + std::to_string(want[i]);
        }
      }
    }
    return "";
  }

 private:
  const ScenarioTable& table_;
  std::vector<std::vector<std::vector<float>>> chunks_;  // [chunk][version][element]
};

// async: worker r adds 256^r to every element with each push, so a chunk is uniform and its value
// tells how many pushes of each worker it holds.
inline float AsyncGradient(int rank) { return static_cast<float>(1 << (8 * rank)); }
inline uint32_t AsyncCount(float value, int rank) {
  return (static_cast<uint32_t>(-value) >> (8 * rank)) & 0xff;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_REFERENCE_H_
