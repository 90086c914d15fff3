// Finds tables of a view. A name may have one served table and one that is being restored.
//
// **Thread safety**: pure functions. Pointers are valid while the view is not changed.
#ifndef VERBENA_PROTO_CONTROL_VIEW_TABLES_H_
#define VERBENA_PROTO_CONTROL_VIEW_TABLES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Each function returns null if it finds no table.

// A coordinator lists tables in the order of their ids, and changes keep that order: one that is
// not there is not looked for among all.
inline const v1::Table* FindTableById(uint32_t id, const v1::ClusterView& view) {
  const auto& tables = view.tables();
  const auto before = [](const v1::Table& table, uint32_t wanted) { return table.id() < wanted; };
  const auto it = std::lower_bound(tables.begin(), tables.end(), id, before);
  return it != tables.end() && it->id() == id ? &*it : nullptr;
}

inline const v1::Table* FindTableNamed(std::string_view name, bool restoring,
                                       const v1::ClusterView& view) {
  for (const v1::Table& table : view.tables()) {
    if (table.restoring() == restoring && table.spec().name() == name) return &table;
  }
  return nullptr;
}

// Returns the served table, or else the one that is being restored.
inline const v1::Table* FindTableNamed(std::string_view name, const v1::ClusterView& view) {
  const v1::Table* served = FindTableNamed(name, false, view);
  return served != nullptr ? served : FindTableNamed(name, true, view);
}

// The first step of the table of a worker that joined a run of the job; null: all that are not
// committed.
inline const v1::FirstStep* FirstStepOf(uint32_t table, const v1::Worker& worker,
                                        const v1::Job& job) {
  for (const v1::MemberAdmission& admission : job.admissions()) {
    if (admission.number() != worker.admission()) continue;
    for (const v1::FirstStep& first : admission.first_steps()) {
      if (first.table() == table) return &first;
    }
  }
  return nullptr;
}

// "table 'w' of job 'j' is being restored by verbena on host-a, process 4711".
inline std::string BeingRestored(const v1::Table& table) {
  return absl::StrCat("table '", table.spec().name(), "' of job '", table.spec().job(),
                      "' is being restored", table.restorer().empty() ? "" : " by ",
                      table.restorer());
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_VIEW_TABLES_H_
