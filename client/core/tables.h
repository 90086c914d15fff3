// The tables that a client uses, as its view has them: their locations, losses and ends.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_TABLES_H_
#define VERBENA_CLIENT_CORE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/core/key_plan.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"
#include "proto/control/view_difference.h"

namespace verbena::client {

class RequestTracker;

class Tables {
 public:
  explicit Tables(RequestTracker* tracker) : tracker_(*tracker) {}

  // Null: not in the view, or dropped.
  TableState* FindTable(uint32_t id);
  // DATA_LOSS: a part of [first_chunk, +chunks) is lost.
  absl::Status CheckLost(const TableState& table, uint32_t first_chunk, uint32_t chunks) const;
  absl::Status CheckRowsLost(const TableState& table,
                             absl::Span<const KeyPlan::Range> ranges) const;

  // `what` differs from the previous view.
  void OnView(const ViewDifference& what);
  void DropTable(TableState* table, const absl::Status& status);
  void LosePart(TableState* table, uint32_t part);
  // Drops all unposted records.
  void DropAllQueued();

  const std::map<uint32_t, std::unique_ptr<TableState>>& all() const { return tables_; }
  size_t size() const { return tables_.size(); }

 private:
  bool FollowView(TableState* table);
  void DropQueued(TableState* table);
  // Releases tables that were dropped and are no longer referenced.
  void ForgetDropped();
  bool Refers(const TableState& table) const;
  void MarkLost(TableState* table);  // according to the view
  bool Touches(const Operation& operation, uint32_t part) const;

  RequestTracker& tracker_;
  std::map<uint32_t, std::unique_ptr<TableState>> tables_;
  TableState* last_ = nullptr;     // the last one that was found
  std::vector<uint32_t> dropped_;  // of tables_, those that were dropped
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_TABLES_H_
