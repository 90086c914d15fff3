// Index from keys to rows: 26-bit row numbers by the hash of their keys, which are stored in the
// rows.
//
// A cache line has twelve slots of a tag, which is the hash's low 16 bits, and a row number. Lines
// are in pages, pages in groups of up to 16. The hash's high bits choose the group in a directory.
// The tag chooses two lines of the group: the first as a fraction, so that at most seven of its
// bits carry no information there, the second by other bits. If the first line is full, an
// insertion uses the second. If that is full too, it moves another row to that row's other line
// (cuckoo hashing with buckets: Dietzfelbinger and Weidling 2007). A group that is 96 % full gets
// one more page and is rebuilt from its own contents. A group of 16 pages becomes two, for which
// its rows' keys are hashed again. So an index has 5.6 to 6.2 bytes a row at every size (below some
// hundreds of rows: more). No insertion takes longer than one group. Nearly all lookups read one
// line, the others two.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. An Insert() that fails leaves the index unchanged.
//  2. A row is in its first line; or in its second, and the first has a flag for that; or anywhere
//     in the group, and the first has a flag for that. A rebuild of the group clears the flags. A
//     group is rebuilt when it grows, or when the number of removed rows reaches half of the rows
//     that it has. So a lookup of a key without a row ends soon, however long rows come and go.
#ifndef VERBENA_SHARD_TABLE_ROW_INDEX_H_
#define VERBENA_SHARD_TABLE_ROW_INDEX_H_

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/kernel/prefetch.h"
#include "shard/table/row_arena.h"

namespace verbena::shard {

class RowIndex {
  struct Line;

 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // The hashes of rows' keys, for a group that becomes two.
  using HashesOf = absl::FunctionRef<void(absl::Span<const uint32_t> rows, uint64_t* hashes)>;

  explicit RowIndex(RowArena* arena) : arena_(arena) {}
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  // Not the mixer that chose the partition: there all keys of this index share the high bits. This
  // is Pelle Evensen's moremur.
  static uint64_t Hash(uint64_t key) {
    key = (key ^ (key >> 27)) * 0x3c79ac492ba7b653u;
    key = (key ^ (key >> 33)) * 0x1c69b3f74ac4ae35u;
    return key ^ (key >> 27);
  }

  // The place of a hash's line.
  struct Place {
    Place() = default;
    Place(const RowIndex& index, uint64_t hash) {
      const uint32_t entry = index.directory_[index.EntryOf(hash)];
      group = entry / kMostPages;
      lines = (entry % kMostPages + 1) * kPageLines;
      line = LineOf(TagOf(hash), lines);
    }
    uint32_t group, line, lines;
    const Line* address;  // of the line, once it was sent for
  };

  // For a caller that will look up hashes soon.
  void PrefetchDirectory() const {
    for (size_t i = 0; i < directory_.size(); i += 16) PrefetchToRead(directory_.data() + i);
  }

  // Lookups; the index is not empty. They run in steps, each of which uses data that the previous
  // step has prefetched: the page, the line, and the first row there that may match. Without a
  // match, and if TryNext() returns that the second line may have one, the same steps follow there.
  void PrefetchPage(const Place& at) const {
    PrefetchToRead(&group_pages_[at.group].page[at.line / kPageLines]);
  }
  void PrefetchLine(Place* at) const {
    at->address = &LineAt(at->group, at->line);
    PrefetchToRead(at->address);
  }
  static uint32_t Guess(const Place& at, uint64_t hash) {
    const uint32_t matches = Matches(*at.address, hash);
    return matches == 0 ? kNone : at.address->row(static_cast<uint32_t>(std::countr_zero(matches)));
  }
  static bool TryNext(Place* at, uint64_t hash) {
    if (at->address->elsewhere() == 0) return false;
    at->line = SecondOf(TagOf(hash), at->lines);
    return true;
  }
  // The row of that hash for which same(row) confirms the key; kNone: there is none.
  template <typename Same>
  uint32_t Find(uint64_t hash, Same same) const {
    const Place at(*this, hash);
    const auto find = [&](uint32_t in) {
      const Line& line = LineAt(at.group, in);
      for (uint32_t m = Matches(line, hash); m != 0; m &= m - 1) {
        const uint32_t row = line.row(static_cast<uint32_t>(std::countr_zero(m)));
        if (same(row)) return row;
      }
      return kNone;
    };
    uint32_t row = find(at.line);
    const uint32_t elsewhere = LineAt(at.group, at.line).elsewhere();
    if (row != kNone || elsewhere == 0) return row;
    row = find(SecondOf(TagOf(hash), at.lines));
    for (uint32_t line = 0; row == kNone && elsewhere == kAnywhere && line < at.lines; ++line) {
      row = find(line);
    }
    return row;
  }
  // Reserves room for so many rows in an empty index, if memory allows, so that it need not grow.
  void Expect(uint64_t rows);
  // Inserts a hash that has no row with the same key. False: no memory.
  bool Insert(uint64_t hash, uint32_t row, HashesOf hashes_of);
  // Takes a row out.
  void Remove(uint64_t hash, uint32_t row);
  // How many lines a lookup of the hash looks at, if it has no row; for tests.
  uint32_t Reach(uint64_t hash) const;

  // Pages for so many insertions; in nearly all cases enough.
  uint64_t PagesFor(uint64_t more) const;
  uint64_t pages() const { return pages_; }
  uint64_t bookkeeping_bytes() const {
    return directory_.capacity() * sizeof(uint32_t) + groups_.capacity() * sizeof(Group) +
           group_pages_.capacity() * sizeof(GroupPages);
  }

 private:
  static constexpr uint32_t kSlots = 12;
  static constexpr uint32_t kSecond = 1;    // some are in their second line
  static constexpr uint32_t kAnywhere = 2;  // or in any line of the group
  struct alignas(64) Line {
    uint16_t tags[kSlots];
    // Row numbers: their low 16 bits, the next 8, and in `rest` the highest two of each.
    uint16_t low[kSlots];
    uint8_t middle[kSlots];
    uint32_t rest;  // 24 bits of those; 4: used slots; 2: elsewhere

    uint32_t row(uint32_t slot) const {
      return low[slot] | uint32_t{middle[slot]} << 16 | (rest >> 2 * slot & 3) << 24;
    }
    uint32_t used() const { return rest >> 24 & 15; }
    // Where rows whose first line this is may be: 0, kSecond or kAnywhere.
    uint32_t elsewhere() const { return rest >> 28 & 3; }
    void RaiseElsewhere(uint32_t to) {
      if (to > elsewhere()) rest = (rest & ~(3u << 28)) | to << 28;
    }
    void Set(uint32_t slot, uint16_t tag, uint32_t to_row) {
      tags[slot] = tag;
      low[slot] = static_cast<uint16_t>(to_row);
      middle[slot] = static_cast<uint8_t>(to_row >> 16);
      rest = (rest & ~(3u << 2 * slot)) | (to_row >> 24) << 2 * slot;
    }
    void Push(uint16_t tag, uint32_t to_row) {
      Set(used(), tag, to_row);
      rest += 1u << 24;
    }
    // The last row takes the slot.
    void Erase(uint32_t slot) {
      rest -= 1u << 24;
      Set(slot, tags[used()], row(used()));
    }
  };
  static_assert(sizeof(Line) == 64);
  static constexpr uint32_t kPageLines = RowArena::kPageBytes / sizeof(Line);
  static constexpr uint32_t kMostPages = 16;
  // Two lines of the cache.
  struct alignas(64) GroupPages {
    std::byte* page[kMostPages];
  };
  struct Group {
    uint16_t rows;
    uint16_t removed;  // since it was built
    uint16_t used;     // pages
    uint16_t depth;    // high bits of the hash that its keys share
  };
  static_assert(kMaxRowsOfPartition <= uint64_t{1} << 26);
  static constexpr uint32_t kMostRows = kMostPages * kPageLines * kSlots;
  static_assert(kMostRows <= UINT16_MAX);
  size_t EntryOf(uint64_t hash) const { return hash >> 1 >> (63 - depth_); }
  static uint16_t TagOf(uint64_t hash) { return static_cast<uint16_t>(hash); }
  static uint32_t LineOf(uint16_t tag, uint32_t lines) { return tag * lines >> 16; }
  // Another one than the first.
  static uint32_t SecondOf(uint16_t tag, uint32_t lines) {
    const auto turned = static_cast<uint16_t>(tag << 8 | tag >> 8);
    const uint32_t other = turned * (lines - 1) >> 16;
    return other < LineOf(tag, lines) ? other : other + 1;
  }
  const Line& LineAt(uint32_t group, uint32_t line) const {
    return reinterpret_cast<const Line*>(
        group_pages_[group].page[line / kPageLines])[line % kPageLines];
  }
  Line& LineAt(uint32_t group, uint32_t line) {
    return const_cast<Line&>(static_cast<const RowIndex*>(this)->LineAt(group, line));
  }
  // Which slots have the hash's tag, a bit each.
  static uint32_t Matches(const Line& line, uint64_t hash) {
    // Any contents are possible: a Guess() may read a page that was given back.
    const uint32_t used = ((1u << line.used()) - 1) & ((1u << kSlots) - 1);
#ifdef __SSE2__
    // Half of the second 16 bytes are not tags; `used` masks those slots.
    const auto* from = reinterpret_cast<const __m128i*>(line.tags);
    const __m128i tag = _mm_set1_epi16(static_cast<int16_t>(TagOf(hash)));
    const __m128i low = _mm_cmpeq_epi16(_mm_load_si128(from), tag);
    const __m128i high = _mm_cmpeq_epi16(_mm_load_si128(from + 1), tag);
    return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high))) & used;
#else
    uint32_t matches = 0;
    for (uint32_t i = 0; i < kSlots; ++i) matches |= (line.tags[i] == TagOf(hash) ? 1u : 0u) << i;
    return matches & used;
#endif
  }

  std::byte* TakePage();
  void ReserveGroups(size_t groups);
  bool AddGroup(uint32_t pages);
  bool Grow(uint64_t hash, HashesOf hashes_of);
  uint32_t Split(uint64_t hash, std::byte* page, uint32_t ones);
  bool PutIn(uint32_t group, uint32_t line, uint16_t tag, uint32_t row);
  // Makes room in a full line. False: none of its rows can go to its other line.
  bool SendOn(uint32_t group, uint32_t line);
  bool RemoveFrom(uint32_t group, uint32_t line, uint32_t row);
  void Put(uint32_t group, uint16_t tag, uint32_t row);
  // Moves out the contents of a group, which is empty then. Returns the number of rows.
  uint32_t Empty(uint32_t group, uint32_t* rows, uint16_t* tags);
  void Rebuild(uint32_t group);
  void Refer(uint64_t hash, uint32_t group);

  RowArena* const arena_;
  std::vector<uint32_t> directory_;  // by the hash's first depth_ bits: group, pages minus one
  uint32_t depth_ = 0;
  std::vector<Group> groups_;
  std::vector<GroupPages> group_pages_;  // of each of them
  uint64_t rows_ = 0;
  uint64_t pages_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_INDEX_H_
