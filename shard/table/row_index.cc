#include "shard/table/row_index.h"

#include <algorithm>
#include <cstring>

namespace verbena::shard {
namespace {

// Entries of the directory for so many rows. Chance wants an eighth of that; a group of keys that
// were made to have the same hashes stays as full as it is.
constexpr uint64_t MostEntries(uint64_t rows) { return std::max<uint64_t>(64, rows / 32); }
// How full a group of so many slots becomes. Fuller, lookups would look at the second line more
// often; emptier, the index would cost more than rows may.
constexpr uint64_t Most(uint64_t slots) { return slots * 24 / 25; }

}  // namespace

RowIndex::~RowIndex() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (uint32_t p = 0; p < groups_[g].used; ++p) {
      arena_->Give(RowArena::kPage, group_pages_[g].page[p]);
    }
  }
}

uint64_t RowIndex::PagesFor(uint64_t more) const {
  // Each insertion takes two at most. Many insertions together use all that they take: a group of 8
  // to 16 pages has at least 7/8 of the maximum, and groups are uneven by chance.
  constexpr uint64_t kRows = Most(uint64_t{kPageLines} * kSlots);
  const uint64_t all = (rows_ + more) * 8 / (kRows * 7) * 17 / 16 + kMostPages;
  return std::min(2 * more, std::max(all, pages_ + kMostPages) - pages_);
}

std::byte* RowIndex::TakePage() {
  std::byte* const page = arena_->Take(RowArena::kPage);
  if (page == nullptr) return nullptr;
  std::memset(page, 0, RowArena::kPageBytes);
  ++pages_;
  return page;
}

// The directory's entries of the group, which has the hash.
void RowIndex::Refer(uint64_t hash, uint32_t group) {
  const Group& g = groups_[group];
  const uint32_t others = depth_ - g.depth;
  const size_t first = EntryOf(hash) >> others << others;
  const uint32_t entry = group * kMostPages + g.used - 1;
  std::fill_n(directory_.begin() + static_cast<ptrdiff_t>(first), size_t{1} << others, entry);
}

bool RowIndex::PutIn(uint32_t group, uint32_t at, uint16_t tag, uint32_t row) {
  Line& line = LineAt(group, at);
  if (line.used() == kSlots) return false;
  line.Push(tag, row);
  return true;
}

bool RowIndex::SendOn(uint32_t group, uint32_t at) {
  const uint32_t lines = groups_[group].used * kPageLines;
  Line& line = LineAt(group, at);
  for (uint32_t s = 0; s < kSlots; ++s) {
    const uint16_t tag = line.tags[s];
    const uint32_t first = LineOf(tag, lines), second = SecondOf(tag, lines);
    if (!PutIn(group, first == at ? second : first, tag, line.row(s))) continue;
    if (first == at) line.RaiseElsewhere(kSecond);
    line.Erase(s);
    return true;
  }
  return false;
}

void RowIndex::Put(uint32_t group, uint16_t tag, uint32_t row) {
  const uint32_t lines = groups_[group].used * kPageLines;
  const uint32_t at = LineOf(tag, lines), second = SecondOf(tag, lines);
  if (PutIn(group, at, tag, row)) return;
  Line& line = LineAt(group, at);
  if (!PutIn(group, second, tag, row)) {
    if (SendOn(group, at)) {
      PutIn(group, at, tag, row);
      return;
    }
    if (!SendOn(group, second)) {
      line.RaiseElsewhere(kAnywhere);
      for (uint32_t any = 0; !PutIn(group, any, tag, row);) ++any;
      return;
    }
    PutIn(group, second, tag, row);
  }
  line.RaiseElsewhere(kSecond);
}

uint32_t RowIndex::Empty(uint32_t group, uint32_t* rows, uint16_t* tags) {
  Group& g = groups_[group];
  uint32_t n = 0;
  for (uint32_t l = 0; l < g.used * kPageLines; ++l) {
    const Line& line = LineAt(group, l);
    for (uint32_t s = 0; s < line.used(); ++s, ++n) {
      rows[n] = line.row(s);
      tags[n] = line.tags[s];
    }
  }
  for (uint32_t p = 0; p < g.used; ++p) {
    std::memset(group_pages_[group].page[p], 0, RowArena::kPageBytes);
  }
  g.removed = 0;
  return n;
}

void RowIndex::Rebuild(uint32_t group) {
  uint32_t rows[kMostRows];
  uint16_t tags[kMostRows];
  const uint32_t n = Empty(group, rows, tags);
  for (uint32_t i = 0; i < n; ++i) Put(group, tags[i], rows[i]);
}

uint32_t RowIndex::Reach(uint64_t hash) const {
  if (groups_.empty()) return 0;
  const Place at(*this, hash);
  const uint32_t elsewhere = LineAt(at.group, at.line).elsewhere();
  return elsewhere == kAnywhere ? 2 + at.lines : elsewhere + 1;
}

void RowIndex::ReserveGroups(size_t groups) {
  groups_.reserve(groups);
  group_pages_.reserve(groups);
}

// Splits the hash's group by one bit more, or gives it a page more.
bool RowIndex::Grow(uint64_t hash, HashesOf hashes_of) {
  const uint32_t group = Place(*this, hash).group;
  const bool split = groups_[group].used == kMostPages;
  if (split && groups_[group].depth == depth_ && directory_.size() * 2 > MostEntries(rows_)) {
    return false;
  }
  std::byte* const page = TakePage();
  if (page == nullptr) return false;
  uint32_t rows[kMostRows];
  uint16_t tags[kMostRows];
  const uint32_t n = Empty(group, rows, tags);
  if (!split) {
    Group& g = groups_[group];
    group_pages_[group].page[g.used++] = page;
    Refer(hash, group);
    for (uint32_t i = 0; i < n; ++i) Put(group, tags[i], rows[i]);
    return true;
  }
  uint64_t hashes[kMostRows];
  hashes_of({rows, n}, hashes);
  const uint64_t bit = uint64_t{1} << (63 - groups_[group].depth);
  const auto ones = static_cast<uint32_t>(
      std::count_if(hashes, hashes + n, [&](uint64_t h) { return (h & bit) != 0; }));
  const uint32_t fresh = Split(hash, page, ones);
  for (uint32_t i = 0; i < n; ++i) Put((hashes[i] & bit) != 0 ? fresh : group, tags[i], rows[i]);
  return true;
}

// The group of the hash, of kMostPages pages, which are empty, becomes two for `ones` rows that
// have the next bit and the others. `page`: one more, if they need it. Returns the ones' group.
uint32_t RowIndex::Split(uint64_t hash, std::byte* page, uint32_t ones) {
  const uint32_t old = Place(*this, hash).group;
  if (groups_[old].depth == depth_) {
    std::vector<uint32_t> doubled(directory_.size() * 2);
    for (size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    directory_.swap(doubled);
    ++depth_;
  }
  const auto fresh = static_cast<uint32_t>(groups_.size());
  if (groups_.size() == groups_.capacity()) ReserveGroups(groups_.size() * 9 / 8 + 1);
  groups_.emplace_back();
  group_pages_.emplace_back();
  Group& zero = groups_[old];
  Group& one = groups_[fresh];
  const uint64_t bit = uint64_t{1} << (63 - zero.depth);
  const auto pages_of = [](uint32_t rows) {
    uint32_t pages = 1;
    while (pages < kMostPages && Most(uint64_t{pages} * kPageLines * kSlots) < rows) ++pages;
    return pages;
  };
  std::byte* pages[kMostPages + 1];
  std::copy_n(group_pages_[old].page, kMostPages, pages);
  pages[kMostPages] = page;
  const uint32_t zeros = zero.rows - ones;
  one.rows = static_cast<uint16_t>(ones);
  zero.rows = static_cast<uint16_t>(zeros);
  zero.used = static_cast<uint16_t>(pages_of(zeros));
  one.used = static_cast<uint16_t>(pages_of(ones));
  if (zero.used + one.used > kMostPages + 1) {  // it was fuller than it should be
    zero.used = static_cast<uint16_t>(zeros / (kPageLines * kSlots) + 1);
    one.used = static_cast<uint16_t>(kMostPages + 1 - zero.used);
  }
  one.depth = ++zero.depth;
  std::copy_n(pages, zero.used, group_pages_[old].page);
  std::copy_n(pages + zero.used, one.used, group_pages_[fresh].page);
  for (uint32_t p = zero.used + one.used; p < kMostPages + 1; ++p) {
    arena_->Give(RowArena::kPage, pages[p]);
    --pages_;
  }
  Refer(hash & ~bit, old);
  Refer(hash | bit, fresh);
  return fresh;
}

// An empty one behind the others. False: no memory.
bool RowIndex::AddGroup(uint32_t pages) {
  Group group = {};
  GroupPages of = {};
  for (; group.used < pages; ++group.used) {
    of.page[group.used] = TakePage();
    if (of.page[group.used] != nullptr) continue;
    for (; group.used > 0; --pages_) arena_->Give(RowArena::kPage, of.page[--group.used]);
    return false;
  }
  groups_.push_back(group);
  group_pages_.push_back(of);
  return true;
}

void RowIndex::Expect(uint64_t rows) {
  constexpr uint64_t kRows = Most(uint64_t{kPageLines} * kSlots);
  if (rows <= kRows || !groups_.empty()) return;
  // Groups of 7 to 14 pages: chance makes some of them fuller.
  const auto depth = static_cast<uint32_t>(std::bit_width((rows - 1) / (14 * kRows)));
  const uint64_t in_group = (rows >> depth) + 1;
  const auto pages = static_cast<uint32_t>((in_group + kRows - 1) / kRows);
  RowArena::Counts wanted = {};
  wanted[RowArena::kPage] = uint64_t{pages} << depth;
  if (!arena_->Reserve(wanted)) return;
  ReserveGroups(size_t{1} << depth);
  directory_.resize(size_t{1} << depth);
  depth_ = depth;
  for (uint32_t g = 0; g < directory_.size(); ++g) {
    AddGroup(pages);  // reserved
    groups_[g].depth = static_cast<uint16_t>(depth);
    directory_[g] = g * kMostPages + pages - 1;
  }
}

bool RowIndex::Insert(uint64_t hash, uint32_t row, HashesOf hashes_of) {
  if (groups_.empty()) {
    if (!AddGroup(1)) return false;
    directory_.assign(1, 0);
  }
  for (;;) {
    const Group& g = groups_[Place(*this, hash).group];
    const uint32_t slots = g.used * kPageLines * kSlots;
    if (g.rows < Most(slots)) break;
    if (Grow(hash, hashes_of)) continue;
    if (g.rows == slots) return false;
    break;  // without memory it becomes fuller than it should
  }
  const uint32_t group = Place(*this, hash).group;
  ++groups_[group].rows;
  ++rows_;
  Put(group, TagOf(hash), row);
  return true;
}

void RowIndex::Remove(uint64_t hash, uint32_t row) {
  const Place at(*this, hash);
  bool removed = RemoveFrom(at.group, at.line, row) ||
                 RemoveFrom(at.group, SecondOf(TagOf(hash), at.lines), row);
  for (uint32_t line = 0; !removed && line < at.lines; ++line) {
    removed = RemoveFrom(at.group, line, row);
  }
  if (!removed) return;
  Group& group = groups_[at.group];
  --group.rows;
  --rows_;
  if (++group.removed > group.rows / 2) Rebuild(at.group);
}

bool RowIndex::RemoveFrom(uint32_t group, uint32_t at, uint32_t row) {
  Line& line = LineAt(group, at);
  for (uint32_t slot = 0; slot < line.used(); ++slot) {
    if (line.row(slot) != row) continue;
    line.Erase(slot);
    return true;
  }
  return false;
}

}  // namespace verbena::shard
