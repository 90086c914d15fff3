// The right contents of a sync table, by a simple model: contributions are kept as they came and a
// step's result is computed by a plain loop once the step is complete.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SHARD_SYNC_MODEL_H_
#define VERBENA_TESTS_SHARD_SYNC_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/shard/model_plan.h"

namespace verbena::shard {

class SyncModel {
 public:
  explicit SyncModel(const Plan& plan) : plan_(plan), o_(plan.options) {
    chunks_.resize(o_.chunks);
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      const uint32_t n = c + 1 == o_.chunks ? o_.last_elements : o_.chunk_elements;
      chunks_[c].history.push_back(Filled(n, static_cast<float>(o_.initial)));
      chunks_[c].velocity = Filled(n, 0);
      chunks_[c].partition = PartitionOfChunk(kTable, c, o_.partitions);
    }
  }
  void Pushed(uint32_t rank, uint32_t c, uint64_t step) { chunks_[c].pushed[step].insert(rank); }
  void Forgotten(uint32_t rank, uint32_t c, uint64_t step) { chunks_[c].pushed[step].erase(rank); }
  void Ended(uint32_t rank, uint32_t partition, uint64_t step,
             const std::vector<uint32_t>& listed) {
    ended_.insert({rank, partition, step});
    for (const uint32_t c : listed) chunks_[c].promised.insert({rank, step});
  }
  void Departed(uint32_t rank) { departed_.insert(rank); }
  bool departed(uint32_t rank) const { return departed_.count(rank) > 0; }

  // Commits whatever is complete.
  void Run() {
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      while (TryCommit(c)) {
      }
    }
  }
  uint64_t version(uint32_t c) const { return chunks_[c].history.size() - 1; }
  const std::vector<float>& at(uint32_t c, uint64_t version) const {
    return chunks_[c].history[version];
  }

 private:
  struct ChunkModel {
    uint32_t partition = 0;
    std::vector<std::vector<float>> history;  // by version
    std::vector<float> velocity;
    std::map<uint64_t, std::set<uint32_t>> pushed;     // step -> ranks that have arrived
    std::set<std::pair<uint32_t, uint64_t>> promised;  // (rank, step) counted by an end-step
  };

  bool TryCommit(uint32_t c) {
    ChunkModel& m = chunks_[c];
    const uint64_t step = m.history.size() - 1;
    const std::set<uint32_t>& pushed = m.pushed[step];
    uint32_t listed = 0;
    for (uint32_t r = 0; r < o_.workers; ++r) {
      if (pushed.count(r) > 0) {
        ++listed;
      } else if (!departed(r)) {
        if (ended_.count({r, m.partition, step}) == 0 || m.promised.count({r, step}) > 0) {
          return false;
        }
        ++listed;
      }
    }
    if (listed == 0) return false;
    Commit(&m, c, step, pushed, listed);
    return true;
  }

  void Commit(ChunkModel* m, uint32_t c, uint64_t step, const std::set<uint32_t>& ranks,
              uint32_t listed) {
    const auto n = static_cast<uint32_t>(m->velocity.size());
    std::vector<float> sum = Filled(n, 0);
    bool first = true;
    for (const uint32_t r : ranks) {
      const std::vector<float> g = Gradient(plan_, r, c, step, n);
      if (IsBad(g)) continue;
      for (uint32_t i = 0; i < n; ++i) sum[i] = first ? g[i] : sum[i] + g[i];
      first = false;
    }
    std::vector<float> w = m->history.back();
    for (uint32_t i = 0; i < n; ++i) {
      float g = sum[i];
      if (o_.reduction == v1::REDUCTION_MEAN) g = g / static_cast<float>(listed);
      if (o_.optimizer == "momentum") {
        m->velocity[i] = 0.9f * m->velocity[i] + g;
        g = m->velocity[i];
      }
      w[i] = w[i] - 0.5f * g;
    }
    m->history.push_back(w);
  }

  const Plan plan_;
  const FixtureOptions o_;
  std::vector<ChunkModel> chunks_;
  std::set<std::tuple<uint32_t, uint32_t, uint64_t>> ended_;
  std::set<uint32_t> departed_;
};

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_SYNC_MODEL_H_
