// What a worker knows of the first phase of a step whose norm spans several chunks (record.h:
// kNorms, kTotals): which parts have answered, and what they add up to.
//
// States of a NormStep: asking (for the parts of all chunks) -> telling (all partitions the totals)
// -> over. Every worker of the job does the same, and the first whose totals arrive counts: so a
// step needs no particular worker.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Totals are summed by table id, then by chunk: their bits depend neither on servers nor on who
//     sums.
#ifndef VERBENA_CLIENT_CORE_NORM_STEP_H_
#define VERBENA_CLIENT_CORE_NORM_STEP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/table_state.h"
#include "proto/record.h"

namespace verbena::client {

// One table in a NormStep.
struct NormTable {
  enum class Part : uint8_t { kTodo, kOut, kDone };

  TableState* table = nullptr;
  std::vector<Part> parts;      // of the table, by index: asked, or told
  uint32_t left = 0;            // not kDone
  std::vector<double> numbers;  // by chunk, NormNumbers() each; 0 where its only copy is lost

  void Set(uint32_t part, Part state);
};

struct NormStep {
  NormStep(uint64_t step_id, NormKind norm_kind, uint64_t of_step,
           const std::vector<TableState*>& of_tables);

  uint32_t numbers() const { return NormNumbers(kind); }
  uint32_t BytesOf(const TableState& table, uint32_t part) const;
  NormTable* Find(const TableState* table);
  // What the server wrote for these parts of a table.
  void Take(NormTable* of, const std::vector<uint32_t>& parts, const std::byte* data);
  bool PhaseDone() const;
  // From asking to telling.
  void Sum();

  uint64_t id = 0;
  NormKind kind = NormKind::kGradient;
  uint64_t step = 0;
  bool telling = false;
  std::vector<NormTable> tables;  // by id
  std::array<double, 2> totals = {};
};

// Tables whose norms are summed together: all clipped ones, or one with a trust ratio.
struct NormGroup {
  NormKind kind = NormKind::kGradient;
  std::vector<TableState*> tables;  // by id
  std::unique_ptr<NormStep> active;
  uint64_t next = 0;                // steps below it are over, of those that took part last
  std::vector<uint32_t> took_part;  // tables, by id
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_NORM_STEP_H_
