#include "shard/replica/copy_set.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::shard {

bool CopySet::Cursor::Covers(uint32_t id, uint32_t local) const {
  // The cursor stands at the next id when it has passed the last table: that one may be made later.
  const bool passed = id > last_table && !VERBENA_FAILPOINT(shard, skip_next_table);
  return Covers(id) && (complete || passed || id != table || local < chunk);
}

const CopySet::Copy* CopySet::Find(const CopyId& id) const {
  const auto copy =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.id == id; });
  return copy == copies_.end() ? nullptr : &*copy;
}

const CopySet::Copy* CopySet::Learner() const {
  const auto copy = std::find_if(copies_.begin(), copies_.end(),
                                 [](const Copy& c) { return !c.required && !c.complete; });
  return copy == copies_.end() ? nullptr : &*copy;
}

bool CopySet::AnyDiffers() const {
  return std::any_of(copies_.begin(), copies_.end(), [](const Copy& c) { return c.differs; });
}

uint64_t CopySet::acknowledged() const {
  uint64_t acked = UINT64_MAX;
  for (const Copy& copy : copies_) acked = std::min(acked, copy.acked);
  return acked;
}

uint64_t CopySet::committed() const {
  uint64_t acked = UINT64_MAX;
  for (const Copy& copy : copies_) {
    if (copy.required) acked = std::min(acked, copy.acked);
  }
  return acked;
}

std::vector<CopyId> CopySet::Keep(absl::Span<const CopyOf> copies) {
  const bool had_learner = learning();
  std::vector<CopyId> gone;
  std::erase_if(copies_, [&](const Copy& copy) {
    const bool stays = std::any_of(copies.begin(), copies.end(), [&](const CopyOf& c) {
      return c.id == copy.id && c.since == copy.since;
    });
    if (stays) return false;
    Leave(copy);
    gone.push_back(copy.id);
    return true;
  });
  required_ = std::any_of(copies_.begin(), copies_.end(), [](const Copy& c) { return c.required; });
  if (had_learner && !learning()) {
    cursor_ = Cursor();
    cursor_.complete = true;
  }
  return gone;
}

void CopySet::Add(const CopyOf& copy, uint64_t begin, uint32_t last_table) {
  if (copy.learner || !learning()) {
    cursor_ = Cursor();
    cursor_.complete = !copy.learner;
  }
  if (copy.learner) {
    cursor_.last_table = last_table;
    cursor_.begun_as_learner = true;
    cursor_.begin = cursor_.appended = begin;
  }
  Copy added;
  added.id = copy.id;
  added.since = copy.since;
  added.begin = begin;
  added.complete = !copy.learner;
  added.sent = added.acked = added.released = begin - 1;
  copies_.push_back(added);
}

void CopySet::Require(const CopyId& id) {
  FindMutable(id)->required = required_ = !VERBENA_FAILPOINT(shard, acknowledge_early);
}

void CopySet::CompleteLearner(uint64_t end) {
  const CopyId learner = Learner()->id;
  cursor_.end = end;
  cursor_.complete = FindMutable(learner)->complete = true;
  Require(learner);
}

void CopySet::Leave(const Copy& copy) {
  const uint64_t first = std::max(copy.acked, copy.released) + 1;
  if (first <= copy.sent) former_.push_back({copy.id, first, copy.sent});
}

uint64_t CopySet::HandOver(const CopyId& id) {
  Copy* const copy = FindMutable(id);
  ++copy->sent;
  // It may have been sent before, and released.
  copy->released = std::min(copy->released, copy->sent - 1);
  return copy->sent;
}

bool CopySet::Answered(const CopyId& id, uint64_t sequence) {
  Copy* const copy = FindMutable(id);
  if (copy == nullptr || sequence > copy->sent) return false;
  copy->acked = std::max(copy->acked, sequence);
  return true;
}

void CopySet::Released(const CopyId& id, uint64_t sequence) {
  if (Copy* const copy = FindMutable(id)) {
    copy->released = std::max(copy->released, std::min(sequence, copy->sent));
  }
  std::erase_if(former_, [&](Former& f) {
    if (f.id != id) return false;
    f.first = sequence == UINT64_MAX ? UINT64_MAX : std::max(f.first, sequence + 1);
    return f.first > f.last;
  });
}

bool CopySet::Rewind(const CopyId& id) {
  Copy* const copy = FindMutable(id);
  if (copy == nullptr || copy->sent == copy->acked) return false;
  copy->sent = copy->acked;
  return true;
}

std::vector<CopyId> CopySet::Readers(uint64_t sequence) const {
  std::vector<CopyId> readers;
  for (const Former& f : former_) {
    if (f.first <= sequence && sequence <= f.last) readers.push_back(f.id);
  }
  return readers;
}

}  // namespace verbena::shard
