// Norms over several chunks: the first phase of steps that commit in two phases.
//
// Norms and totals have a queue of their own: no step commits without them. So a server that cannot
// defer more of them replies at once (kTooEarly), and they are resent.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_NORM_STEPS_H_
#define VERBENA_CLIENT_CORE_NORM_STEPS_H_

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/core/lane_set.h"
#include "client/core/norm_step.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"
#include "proto/control/view_difference.h"

namespace verbena::client {

class RequestTracker;

class NormSteps {
 public:
  explicit NormSteps(RequestTracker* tracker) : tracker_(*tracker) {}

  // RunNorms() may have something to do.
  void Wake() { due_ = true; }
  bool due() const { return due_; }
  // Starts, continues and ends the first phases of steps, as far as the known state allows.
  void RunNorms();
  bool PumpNorms(Stream* stream);
  void Clear() { groups_.clear(); }

  // FAILED_PRECONDITION: the open step of `table` cannot end, because a table of the same norm is
  // at another step.
  absl::Status CheckNormStep(absl::string_view call, const TableState& table);
  absl::Status WithNormHint(const Operation& operation, absl::Status status);

  void FollowNormTables(const ViewDifference& what);
  void RestartNorms(const TableState& table);  // of parts that have just moved
  // A table that is about to be freed.
  bool Refers(const TableState& table) const;
  void Forget(const TableState* table);
  void DropEmptyGroups();
  // Whether a table's steps continue with the contents of replies.
  bool any() const;

  // ---- for the handlers of norms and totals ----
  // Null: that step is over, or was restarted.
  NormStep* NormStepOf(const PendingRequest& entry) const;
  void EnqueueNorms(PendingRequest* entry);
  void ReturnNorms(PendingRequest* entry);  // other entries handle its parts; frees it
  void Over(const NormStep* step);          // its totals are no longer needed

 private:
  static void FollowTables(NormGroup* group, const std::vector<TableState*>& tables);
  void RunNormGroup(NormGroup* group, const std::vector<TableState*>& tables);
  void FindNormGroups();
  bool HasNorms(const v1::Table& table) const;
  std::vector<TableState*> NormTables(const NormGroup& group);
  bool MayStart(const NormGroup& group, const std::vector<TableState*>& tables,
                uint64_t* step) const;
  void EndNormStep(NormGroup* group, bool over);
  // All servers have the totals, but the commit is not known: a server that takes over needs them.
  static bool KeepsTotals(const NormStep& step);
  void IssueNorms(NormStep* step);

  RequestTracker& tracker_;
  std::vector<std::unique_ptr<NormGroup>> groups_;
  bool stale_ = true;          // groups_ do not reflect the view
  std::set<uint32_t> tables_;  // ids of tables whose steps need norms, as in groups_
  bool due_ = false;
  uint64_t steps_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_NORM_STEPS_H_
