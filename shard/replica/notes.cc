#include "shard/replica/notes.h"

#include <algorithm>
#include <limits>

namespace verbena::shard {
namespace {

// A stronger kind includes the weaker ones: a new slice has no versions and knows no workers.
int Strength(ReplicaKind kind) {
  return kind == ReplicaKind::kFresh ? 2 : kind == ReplicaKind::kReset ? 1 : 0;
}

}  // namespace

void ReplicaNotes::Put(uint32_t table, ReplicaHeader header, bool pass_learner) {
  const auto [it, is_new] =
      notes_.try_emplace({table, header.worker}, Note{table, header, pass_learner});
  Note& note = it->second;
  if (header.worker != 0) {
    ReplicaHeader& noted = note.header;
    noted.generation = header.generation;
    noted.worker_sequence = std::max(noted.worker_sequence, header.worker_sequence);
    noted.worker_clock = std::max(noted.worker_clock, header.worker_clock);
    note.pass_learner = pass_learner;
    return;
  }
  // Notes of workers describe the state before this one.
  const auto end = notes_.upper_bound({table, std::numeric_limits<uint64_t>::max()});
  for (auto worker = std::next(it); worker != end;) {
    const bool over =
        Strength(header.kind) > 0 || worker->second.header.generation != header.generation;
    worker = over ? notes_.erase(worker) : std::next(worker);
  }
  if (!is_new && Strength(note.header.kind) > Strength(header.kind)) {
    header.kind = note.header.kind;
  }
  note = {table, header, pass_learner};
}

void ReplicaNotes::PassLearner() {
  for (auto& [of, note] : notes_) note.pass_learner = true;
}

bool ReplicaNotes::any_passes_learner() const {
  return std::any_of(notes_.begin(), notes_.end(),
                     [](const auto& note) { return note.second.pass_learner; });
}

ReplicaNotes::Note ReplicaNotes::Take() {
  const auto first = notes_.begin();
  const Note note = first->second;
  notes_.erase(first);
  return note;
}

void ReplicaNotes::ForgetTable(uint32_t table) {
  notes_.erase(notes_.lower_bound({table, 0}),
               notes_.upper_bound({table, std::numeric_limits<uint64_t>::max()}));
}

}  // namespace verbena::shard
