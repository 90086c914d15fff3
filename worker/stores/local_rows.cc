#include "worker/stores/local_rows.h"

#include <algorithm>
#include <utility>

#include "worker/train/random.h"

namespace verbena::worker {

LocalRows::LocalRows(std::vector<EmbeddingTable> tables, LocalOptimizer optimizer, uint64_t seed)
    : specs_(std::move(tables)), optimizer_(optimizer), tables_(specs_.size()) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    // Tables of one shape must not start equal.
    tables_[i].seed = Mix(seed * 0x9e3779b97f4a7c15u + i);
  }
}

void LocalRows::InitialRow(const TableState& state, const EmbeddingTable& spec, uint64_t key,
                           float* out) {
  LocalInitialize(spec.initial, spec.scale, Mix(state.seed ^ Mix(key)), out, spec.dim);
}

void LocalRows::Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) {
  TableState& state = tables_[table];
  const EmbeddingTable& spec = specs_[table];
  std::vector<float>& out = state.slots[slot];
  out.resize(keys.size() * spec.dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto at = state.places.find(keys[i]);
    float* row = out.data() + i * spec.dim;
    if (at == state.places.end()) {
      InitialRow(state, spec, keys[i], row);
    } else {
      std::copy_n(state.parameters.data() + at->second * spec.dim, spec.dim, row);
    }
  }
  bytes_pulled_ += out.size() * sizeof(float);
}

absl::StatusOr<float*> LocalRows::Gradients(size_t table, size_t rows) {
  std::vector<float>& gradients = tables_[table].gradients;
  gradients.resize(rows * specs_[table].dim);
  return gradients.data();
}

size_t LocalRows::PlaceOf(TableState* state, const EmbeddingTable& spec, uint64_t key) {
  const auto [at, added] = state->places.try_emplace(key, state->places.size());
  if (added) {
    const size_t floats = (at->second + 1) * spec.dim;
    state->parameters.resize(floats);
    state->sums.resize(floats);
    if (optimizer_.states() > 0) state->first.resize(floats);
    if (optimizer_.states() > 1) state->second.resize(floats);
    state->counts.push_back(0);
    state->summed.push_back(false);
    InitialRow(*state, spec, key, state->parameters.data() + at->second * spec.dim);
  }
  return at->second;
}

void LocalRows::Push(size_t table, absl::Span<const uint64_t> keys) {
  TableState& state = tables_[table];
  const EmbeddingTable& spec = specs_[table];
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t place = PlaceOf(&state, spec, keys[i]);
    const float* from = state.gradients.data() + i * spec.dim;
    float* sum = state.sums.data() + place * spec.dim;
    if (!state.summed[place]) {
      state.summed[place] = true;
      state.touched.push_back(place);
      std::copy_n(from, spec.dim, sum);
    } else {
      for (size_t k = 0; k < spec.dim; ++k) sum[k] += from[k];
    }
  }
  bytes_pushed_ += keys.size() * spec.dim * sizeof(float);
}

void LocalRows::EndStep() {
  for (size_t t = 0; t < tables_.size(); ++t) {
    TableState& state = tables_[t];
    const size_t dim = specs_[t].dim;
    for (const size_t place : state.touched) {
      const size_t at = place * dim;
      optimizer_.Apply(++state.counts[place], state.sums.data() + at, dim,
                       state.parameters.data() + at,
                       state.first.empty() ? nullptr : state.first.data() + at,
                       state.second.empty() ? nullptr : state.second.data() + at);
      state.summed[place] = false;
    }
    state.touched.clear();
  }
}

}  // namespace verbena::worker
