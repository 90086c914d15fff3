#include "tests/cluster/replica_compare.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard/engine_core.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {

// Sees the inside of an engine.
struct EngineInspector {
  // Records of the partition that are not applied here, or that its copy has not answered.
  static size_t Pending(const ReplicaLog& log, uint32_t partition) {
    return log.partitions_[partition].entries.size();
  }
  // Reads of the partition wait for its copy.
  static bool Holds(const ReplicaLog& log, uint32_t partition) {
    const ReplicaLog::Partition& p = log.partitions_[partition];
    return std::any_of(p.held_reads.begin(), p.held_reads.end(),
                       [&](const auto& held) { return held.second > p.committed; });
  }
  static const EngineCore& Core(const Engine& engine) { return *engine.core_; }

  // Bytes of the records that one source made.
  struct Use {
    uint64_t bytes = 0, largest = 0;
    std::map<ReplicaKind, int> kinds;
    // `before`: bytes of the record that was added with it.
    void Add(ReplicaKind kind, uint32_t more, uint32_t before = 0) {
      bytes += more;
      ++kinds[kind];
      largest = std::max<uint64_t>(largest, uint64_t{more} + before);
    }
    bool Exceeds(uint64_t limit, uint64_t records) const {
      return bytes > limit + records * largest;
    }
  };
  // Whether one look at the room lets both in: a slice for a learner and the changes of its
  // optimizer (catch_up.cc), or rows that a push makes and the push (row_consistency.cc).
  static bool Together(ReplicaKind before, ReplicaKind kind) {
    return (before == ReplicaKind::kBeginPartition && kind == ReplicaKind::kOptimizer) ||
           (before == ReplicaKind::kMakeRows && kind == ReplicaKind::kRows);
  }
  // First of applies, then of catch-up.
  using Uses = std::array<Use, 2>;
  static void Count(const ReplicaLog& log, std::vector<Uses>* partitions, Uses* all) {
    partitions->resize(log.partitions_.size());
    for (uint32_t p = 0; p < log.partitions_.size(); ++p) {
      std::map<ReplicaKind, size_t> beside_limits;  // one for each copy (log.h)
      const ReplicaLog::Entry* last = nullptr;
      for (const ReplicaLog::Entry& e : log.partitions_[p].entries) {
        const ReplicaKind kind = e.header.kind;
        const bool beside = kind == ReplicaKind::kBegin || kind == ReplicaKind::kComplete;
        const size_t copies = std::max<size_t>(log.partitions_[p].copies.size(), 1);
        if (beside && ++beside_limits[kind] <= copies) continue;
        const bool together = last != nullptr && Together(last->header.kind, kind);
        const uint32_t before = together ? last->bytes : 0;
        last = &e;
        (*partitions)[p][e.catches_up ? 1 : 0].Add(kind, e.bytes, before);
        (*all)[e.catches_up ? 1 : 0].Add(kind, e.bytes, before);
      }
    }
    // Records of former replicas count for the shard alone.
    for (const ReplicaLog::Retired& r : log.retired_) {
      (*all)[r.catches_up ? 1 : 0].Add(ReplicaKind::kBegin, r.bytes);
    }
  }
};

}  // namespace verbena::shard

namespace verbena::test {
namespace {

using shard::Engine;
using shard::EngineInspector;
using shard::PartitionedTable;
using shard::TableState;

using Content = std::map<uint64_t, std::vector<std::byte>>;  // by chunk or key

void ReadChunks(const shard::DenseTable& table, uint32_t slice, Content* content) {
  for (const uint32_t index : table.slice(slice).chunks) {
    if (!table.resident(index)) continue;
    std::vector<std::byte> all(table.ContentBytes());
    table.ReadContent(index, all.data());
    // A short chunk's arrays have a rest that means nothing.
    const size_t elements = table.layout().elements_of(table.chunk(index).id);
    const size_t arrays = table.state_arrays() + (table.has_master() ? 1 : 0);
    const size_t parameters = all.size() - arrays * table.array_bytes();
    std::vector<std::byte>& bytes = (*content)[table.chunk(index).id];
    bytes.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(
                                                elements * ElementBytes(table.parameter_type())));
    for (size_t a = 0; a < arrays; ++a) {
      const auto from = all.begin() + static_cast<ptrdiff_t>(parameters + a * table.array_bytes());
      bytes.insert(bytes.end(), from, from + static_cast<ptrdiff_t>(elements * sizeof(float)));
    }
  }
}

// Rows that no apply has changed are those of a step that is open on the primary alone.
void ReadRows(const shard::EmbeddingTable& table, uint32_t slice, Content* content) {
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < table.rows_in(slice); ++row) {
    if (!table.rows(slice).is_free(row) && table.rows(slice).applies(row) > 0) rows.push_back(row);
  }
  shard::RowReader reader(table.rows(slice), rows);
  for (const uint32_t row : rows) {
    const std::byte* from = reader.Next();
    std::vector<std::byte> bytes(table.content_bytes());
    if (from == nullptr) continue;
    uint64_t key = 0;
    table.ReadRow(slice, row, from, &key, bytes.data());
    (*content)[key] = std::move(bytes);
  }
}

Content Read(const TableState& state, uint32_t slice) {
  Content content;
  if (slice == PartitionedTable::kNone || !state.table->ready(slice)) return content;
  if (state.dense.table != nullptr) {
    ReadChunks(*state.dense.table, slice, &content);
  } else {
    ReadRows(*state.rows.table, slice, &content);
  }
  return content;
}

std::map<uint64_t, uint64_t> Sequences(absl::Span<const shard::WorkerMark> marks) {
  std::map<uint64_t, uint64_t> sequences;
  for (const shard::WorkerMark& mark : marks) {
    if (mark.sequence > 0) sequences[mark.worker] = mark.sequence;
  }
  return sequences;
}

// As the f32 that both have there: most content is that.
std::string FirstDifference(const std::vector<std::byte>& primary,
                            const std::vector<std::byte>& copy) {
  if (primary.size() != copy.size()) return " in size";
  const auto at = std::mismatch(primary.begin(), primary.end(), copy.begin());
  const auto offset = static_cast<size_t>(at.first - primary.begin()) / sizeof(float);
  float is = 0, wanted = 0;
  if ((offset + 1) * sizeof(float) > primary.size()) return "";
  std::memcpy(&wanted, primary.data() + offset * sizeof(float), sizeof(float));
  std::memcpy(&is, copy.data() + offset * sizeof(float), sizeof(float));
  return absl::StrCat(" at number ", offset, " of ", primary.size() / sizeof(float), ": ", wanted,
                      " at the primary, ", is, " at the copy");
}

std::string CompareContent(const Content& primary, const Content& copy) {
  size_t missing = 0, different = 0, foreign = 0;
  std::string first;
  for (const auto& [id, bytes] : primary) {
    const auto it = copy.find(id);
    if (it != copy.end() && it->second == bytes) continue;
    ++(it == copy.end() ? missing : different);
    if (!first.empty()) continue;
    first = it == copy.end() ? absl::StrCat(id, " is missing")
                             : absl::StrCat(id, " differs", FirstDifference(bytes, it->second));
  }
  for (const auto& [id, bytes] : copy) {
    if (primary.contains(id)) continue;
    ++foreign;
    if (first.empty()) first = absl::StrCat(id, " is the copy's alone");
  }
  if (first.empty()) return "";
  return absl::StrCat("of ", primary.size(), " rows or chunks the copy lacks ", missing, ", ",
                      different, " differ, and it has ", foreign, " more: ", first);
}

std::string CompareTable(uint32_t partition, const TableState& p, const TableState& c) {
  if (p.table == nullptr || c.table == nullptr) {
    return p.table == c.table ? "" : "one of the two does not serve it";
  }
  const uint32_t slice = p.table->slice_of(partition);
  const uint32_t copied = c.table->slice_of(partition);
  // Lost, or it has nothing there.
  if (slice == PartitionedTable::kNone || !p.table->ready(slice)) return "";
  std::string difference = CompareContent(Read(p, slice), Read(c, copied));
  if (!difference.empty()) return difference;
  const auto marks = c.marks.find(partition);
  if (marks == c.marks.end() || marks->second.generation != p.job->members.generation()) return "";
  std::vector<shard::WorkerMark> known;
  for (const auto& [worker, mark] : marks->second.workers) known.push_back(mark);
  const auto wanted = Sequences(p.consistency->Marks(slice));
  const auto has = Sequences(known);
  for (const auto& [worker, sequence] : wanted) {
    const auto it = has.find(worker);
    // The copy may know a departed worker that the primary has forgotten, not the reverse.
    if (it != has.end() && it->second == sequence) continue;
    return absl::StrCat("worker ", worker, " is at sequence ", sequence, ", the copy knows ",
                        it == has.end() ? 0 : it->second);
  }
  return "";
}

void Append(const void* from, size_t bytes, UnitContent* to) {
  to->append(static_cast<const char*>(from), bytes);
}

// Stamps are no part of a checkpoint.
void SavedRows(const shard::EmbeddingTable& table, uint32_t slice, TableContent* content) {
  const shard::RowStore& rows = table.rows(slice);
  std::vector<uint32_t> all;
  for (uint32_t row = 0; row < table.rows_in(slice); ++row) {
    if (!rows.is_free(row) && rows.applies(row) > 0) all.push_back(row);
  }
  shard::RowReader reader(rows, all);
  std::vector<float> wide(table.dim());
  for (const uint32_t row : all) {
    const std::byte* from = reader.Next();
    if (from == nullptr) continue;
    UnitContent& unit = (*content)[rows.key(row)];
    const uint64_t applies = rows.applies(row);
    Append(&applies, sizeof(applies), &unit);
    Append(rows.WidenedContent(from, wide.data()), table.dim() * sizeof(float), &unit);
    Append(rows.StateOfContent(from), table.state_arrays() * table.state_width() * sizeof(float),
           &unit);
  }
}

void SavedChunks(const shard::DenseTable& table, uint32_t slice, TableContent* content) {
  Content chunks;
  ReadChunks(table, slice, &chunks);
  for (const uint32_t index : table.slice(slice).chunks) {
    const shard::DenseTable::Chunk& chunk = table.chunk(index);
    UnitContent& unit = (*content)[chunk.id];
    Append(&chunk.applies, sizeof(chunk.applies), &unit);
    const std::vector<std::byte>& bytes = chunks[chunk.id];
    Append(bytes.data(), bytes.size(), &unit);
  }
}

}  // namespace

std::string DescribeReplicas(const Engine& primary, const Engine& copy, uint32_t partition) {
  const auto& p = EngineInspector::Core(primary);
  const auto& c = EngineInspector::Core(copy);
  if (partition >= p.partitions.size() || partition >= c.partitions.size()) return "no view";
  return absl::StrCat(
      "revisions ", p.revision, " and ", c.revision, ", last record ", p.log.last(partition),
      ", acknowledged ", std::min(p.log.copies(partition).acknowledged(), p.log.last(partition)),
      ", in the log ", EngineInspector::Pending(p.log, partition), ", the copy is at ",
      c.copies.sequence(partition), c.copies.begun(partition) ? "" : " and has not begun",
      c.copies.learning(partition) ? " and learns" : "");
}

ReplicaComparison CompareReplicas(const Engine& primary, const Engine& copy, uint32_t partition) {
  const auto& p = EngineInspector::Core(primary);
  const auto& c = EngineInspector::Core(copy);
  ReplicaComparison result;
  if (p.revision != c.revision || partition >= p.partitions.size()) return result;
  if (!p.log.leads(partition) || !c.partitions[partition].copy ||
      p.log.copies(partition).learning()) {
    return result;
  }
  const uint64_t last = p.log.last(partition);
  if (EngineInspector::Pending(p.log, partition) > 0) return result;
  if (!c.copies.begun(partition) || c.copies.learning(partition) ||
      std::min(p.log.copies(partition).acknowledged(), p.log.last(partition)) != last ||
      c.copies.sequence(partition) != last) {
    return result;
  }
  result.comparable = true;
  for (const auto& [id, state] : p.tables) {
    const auto it = c.tables.find(id);
    if (it == c.tables.end()) continue;
    const std::string difference = CompareTable(partition, state, it->second);
    if (difference.empty()) continue;
    result.difference = absl::StrCat(
        "table ", id, " {", state.table == nullptr ? "" : state.table->spec().ShortDebugString(),
        "}", ", partition ", partition, ", sequence ", last, ": ", difference);
    return result;
  }
  return result;
}

std::string ReplicaLogExcess(const Engine& engine) {
  const shard::ReplicaLog& log = EngineInspector::Core(engine).log;
  const shard::ReplicaLogLimits& limits = log.limits();
  std::vector<EngineInspector::Uses> partitions;
  EngineInspector::Uses all;
  EngineInspector::Count(log, &partitions, &all);
  std::string text;
  // `records`: as many are added between two looks at the limit.
  const auto check = [&](const std::string& of, const EngineInspector::Uses& uses, uint64_t limit,
                         uint64_t records) {
    static constexpr const char* kSources[] = {" for applies", " for catch-up"};
    for (size_t i = 0; i < uses.size(); ++i) {
      // A quarter is catch-up's (shard/replica/log_limits.h).
      const uint64_t most = i == 0 ? limit : limit / 4;
      if (!uses[i].Exceeds(most, records)) continue;
      absl::StrAppend(&text, of, kSources[i], ": ", uses[i].bytes, " bytes, the largest record ",
                      uses[i].largest, ", limit ", most, "; ");
      for (const auto& [kind, count] : uses[i].kinds) {
        absl::StrAppend(&text, count, " of kind ", static_cast<int>(kind), "; ");
      }
    }
  };
  for (size_t p = 0; p < partitions.size(); ++p) {
    check(absl::StrCat("partition ", p), partitions[p], limits.partition_bytes, 1);
  }
  // A request adds a record to each partition that it names.
  check("all partitions", all, limits.shard_bytes, partitions.size());
  return text;
}

std::optional<uint32_t> PartitionWithHeldReads(const Engine& engine) {
  const auto& core = EngineInspector::Core(engine);
  for (uint32_t p = 0; p < core.partitions.size(); ++p) {
    if (core.partitions[p].ours && EngineInspector::Holds(core.log, p)) return p;
  }
  return std::nullopt;
}

uint64_t RevisionOf(const Engine& engine) { return EngineInspector::Core(engine).revision; }

std::optional<uint32_t> RowsPushed(const Engine& primary, uint64_t revision, uint32_t table,
                                   uint32_t partition) {
  const auto& p = EngineInspector::Core(primary);
  const auto it = p.tables.find(table);
  if (p.revision != revision || it == p.tables.end() || it->second.rows.table == nullptr ||
      !p.log.leads(partition)) {
    return std::nullopt;
  }
  const shard::EmbeddingTable& rows = *it->second.rows.table;
  const uint32_t slice = rows.slice_of(partition);
  if (slice == PartitionedTable::kNone || !rows.ready(slice)) return std::nullopt;
  uint32_t count = 0;
  for (uint32_t row = 0; row < rows.rows_in(slice); ++row) {
    if (!rows.rows(slice).is_free(row) && rows.rows(slice).applies(row) > 0) ++count;
  }
  return count;
}

std::optional<float> FirstOfChunk(const Engine& engine, uint32_t table, uint32_t chunk) {
  const auto& core = EngineInspector::Core(engine);
  const auto it = core.tables.find(table);
  if (it == core.tables.end() || it->second.dense.table == nullptr) return std::nullopt;
  const shard::DenseTable& dense = *it->second.dense.table;
  const uint32_t partition = dense.partition_of(chunk);
  const uint32_t slice = dense.slice_of(partition);
  if (slice == PartitionedTable::kNone || !dense.ready(slice)) return std::nullopt;
  Content chunks;
  ReadChunks(dense, slice, &chunks);
  const auto found = chunks.find(chunk);
  if (found == chunks.end()) return std::nullopt;
  const bool wide = dense.parameter_type() == ElementType::kF32;
  uint32_t bits = 0;
  std::memcpy(&bits, found->second.data(), wide ? 4 : 2);
  return std::bit_cast<float>(wide ? bits : bits << 16);
}

std::map<uint32_t, TableContent> ReadTable(const Engine& primary, uint32_t table) {
  std::map<uint32_t, TableContent> content;
  const auto& p = EngineInspector::Core(primary);
  const auto it = p.tables.find(table);
  if (it == p.tables.end() || it->second.table == nullptr) return content;
  const TableState& state = it->second;
  for (uint32_t partition = 0; partition < p.partitions.size(); ++partition) {
    const uint32_t slice = state.table->slice_of(partition);
    if (!p.log.leads(partition) || slice == PartitionedTable::kNone || !state.table->ready(slice)) {
      continue;
    }
    TableContent& of_partition = content[partition];
    if (state.dense.table != nullptr) {
      SavedChunks(*state.dense.table, slice, &of_partition);
    } else {
      SavedRows(*state.rows.table, slice, &of_partition);
    }
  }
  return content;
}

}  // namespace verbena::test
