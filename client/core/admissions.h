// The part of a worker in the admission of others to a run of its elastic job, and its own first
// steps. See server/coordinator/admissions.h.
//
// While the view has joining workers, the worker with the least incarnation asks for a decision. It
// names a step of each sync table, and posts no record of that step or a later one before its view
// has the decision. Records of steps name the admission that the view has.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. From the request on, nothing of a held step is posted until Job.admission has grown: the
//     request may take effect at any time until then.
#ifndef VERBENA_CLIENT_CORE_ADMISSIONS_H_
#define VERBENA_CLIENT_CORE_ADMISSIONS_H_

#include <cstdint>
#include <map>

#include "client/core/table_state.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::client {

class RequestTracker;

class Admissions {
 public:
  explicit Admissions(RequestTracker* tracker) : tracker_(*tracker) {}

  // After each new view.
  void OnView();
  // Sends the request again if it was not answered.
  void RunOnce(int64_t now);
  int64_t next_ns() const { return ask_at_; }
  // At the first use of a table: sets its step, and the first one that is held.
  void Begin(TableState* table);

  // CreateTableRequest::ended_steps.
  uint64_t EndedSteps() const;
  // Group::admission of a record of a step.
  uint32_t NumberFor(const TableState& table) const { return table.sync ? known_ : 0; }

 private:
  // Whether this worker has to ask for a decision on the joining workers.
  bool IsAsked(const v1::Job& job) const;
  void Hold(const v1::Job& job);
  void Release();

  RequestTracker& tracker_;
  uint32_t known_ = 0;
  bool begun_ = false;  // this worker is in the run
  bool holds_ = false;
  v1::AdmitMembersRequest request_;  // of the decision that is waited for
  std::map<uint32_t, uint64_t> first_held_;
  int64_t ask_at_ = INT64_MAX;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_ADMISSIONS_H_
