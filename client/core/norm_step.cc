#include "client/core/norm_step.h"

#include <algorithm>
#include <cstring>

#include "client/core/failpoints.h"

namespace verbena::client {

void NormTable::Set(uint32_t part, Part state) {
  if (parts[part] == Part::kDone) ++left;
  parts[part] = state;
  if (state == Part::kDone) --left;
}

NormStep::NormStep(uint64_t step_id, NormKind norm_kind, uint64_t of_step,
                   const std::vector<TableState*>& of_tables)
    : id(step_id), kind(norm_kind), step(of_step) {
  for (TableState* table : of_tables) {
    NormTable& t = tables.emplace_back();
    t.table = table;
    t.parts.assign(table->parts.size(), NormTable::Part::kTodo);
    t.left = static_cast<uint32_t>(t.parts.size());
    t.numbers.assign(size_t{table->chunks()} * numbers(), 0);
  }
}

uint32_t NormStep::BytesOf(const TableState& table, uint32_t part) const {
  const uint32_t chunks = (table.chunks() - part + table.partitions - 1) / table.partitions;
  return chunks * numbers() * static_cast<uint32_t>(sizeof(double));
}

NormTable* NormStep::Find(const TableState* table) {
  for (NormTable& t : tables) {
    if (t.table == table) return &t;
  }
  return nullptr;
}

void NormStep::Take(NormTable* of, const std::vector<uint32_t>& parts, const std::byte* data) {
  const size_t bytes = numbers() * sizeof(double);
  for (const uint32_t part : parts) {
    for (uint32_t c = part; c < of->table->chunks(); c += of->table->partitions) {
      std::memcpy(&of->numbers[size_t{c} * numbers()], data, bytes);
      data += bytes;
    }
    of->Set(part, NormTable::Part::kDone);
  }
}

bool NormStep::PhaseDone() const {
  return std::all_of(tables.begin(), tables.end(), [](const NormTable& t) { return t.left == 0; });
}

void NormStep::Sum() {
  telling = true;
  totals = {};
  for (NormTable& t : tables) {
    const bool counts = &t == &tables.front() || !VERBENA_FAILPOINT(client, norm_of_first_table);
    for (size_t i = 0; counts && i < t.numbers.size(); ++i) totals[i % numbers()] += t.numbers[i];
    std::fill(t.parts.begin(), t.parts.end(), NormTable::Part::kTodo);
    t.left = static_cast<uint32_t>(t.parts.size());
  }
}

}  // namespace verbena::client
