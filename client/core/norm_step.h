// First phase of a step whose norm covers several chunks (record.h: kNorms, kTotals), in a worker:
// the parts that have answered, and the total norms.
//
// States of a NormStep, by their names in the code: asking (for the partial norms of all chunks) ->
// `telling` (sending the totals to all partitions) -> over. Every worker of the job does the same,
// and the first totals that arrive count. So a step does not depend on a particular worker.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Totals are summed by table id, then by chunk. Their bits depend neither on servers nor on the
//     summing worker.
#ifndef VERBENA_CLIENT_CORE_NORM_STEP_H_
#define VERBENA_CLIENT_CORE_NORM_STEP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/table_state.h"
#include "proto/wire/record.h"

namespace verbena::client {

// One table in a NormStep.
struct NormTable {
  enum class Part : uint8_t { kTodo, kOut, kDone };

  TableState* table = nullptr;
  std::vector<Part> parts;      // by index of the table's part: requested or sent
  uint32_t left = 0;            // number of parts that are not kDone
  std::vector<double> numbers;  // by chunk, NormNumbers() each; 0 if its last replica is lost

  void Set(uint32_t part, Part state);
};

struct NormStep {
  NormStep(uint64_t step_id, NormKind norm_kind, uint64_t of_step,
           const std::vector<TableState*>& of_tables);

  uint32_t numbers() const { return NormNumbers(kind); }
  uint32_t BytesOf(const TableState& table, uint32_t part) const;
  NormTable* Find(const TableState* table);
  // Takes the partial norms that the server wrote for these parts of a table.
  void Take(NormTable* of, const std::vector<uint32_t>& parts, const std::byte* data);
  bool PhaseDone() const;
  // Sums the totals, and moves from asking to `telling`.
  void Sum();

  uint64_t id = 0;
  NormKind kind = NormKind::kGradient;
  uint64_t step = 0;
  bool telling = false;
  std::vector<NormTable> tables;  // by id
  std::array<double, 2> totals = {};
};

// Tables whose norms are summed together: all clipped tables, or one table with a trust ratio.
struct NormGroup {
  NormKind kind = NormKind::kGradient;
  std::vector<TableState*> tables;  // by id
  std::unique_ptr<NormStep> active;
  uint64_t next = 0;                // lower steps are over for the tables that took part last
  std::vector<uint32_t> took_part;  // tables, by id
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_NORM_STEP_H_
