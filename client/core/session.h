// Membership of one worker: joins a job, keeps the lease, follows the cluster's view, leaves.
//
// A worker of an elastic job may have to wait, in kJoined, for its admission to the run: it has a
// lease and follows the view, and Join() ends when the view has its rank.
//
// States: kNew -> kJoining -> kJoined -> kLeaving -> kLeft; kJoined -> kExpired when the lease has
// ended. kLeft and kExpired are final.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_SESSION_H_
#define VERBENA_CLIENT_CORE_SESSION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/backoff.h"
#include "client/core/calls.h"
#include "client/core/lease_keeper.h"
#include "proto/control/control_channel.h"
#include "proto/control/view_difference.h"
#include "rdma/base/clock.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::client {

struct SessionOptions {
  std::string cluster, job, name;
  uint32_t expected_workers = 1;
  uint32_t max_workers = 0;
  int rank = -1;
  bool observer = false;
};

class Session {
 public:
  enum class State : uint8_t { kNew, kJoining, kJoined, kLeaving, kLeft, kExpired };
  struct Listener {
    // view() is newer; `what` differs from the previous view.
    std::function<void(const ViewDifference& what)> on_view;
    std::function<void(absl::Status)> on_expired;  // ABORTED: the outcome is unknown
  };

  // `keeper` gets the lease, and sends heartbeats when this object cannot.
  Session(SessionOptions options, ControlChannel* control, const Clock* clock, Random* random,
          LeaseKeeper* keeper, Listener listener);
  ~Session() { *alive_ = false; }

  void Join(int64_t deadline_ns, std::function<void(absl::Status)> done);
  void Leave(int64_t deadline_ns, std::function<void(absl::Status)> done);
  // ended_steps: Admissions::EndedSteps().
  void CreateTable(const v1::TableSpec& spec, uint64_t ended_steps, int64_t deadline_ns,
                   std::function<void(absl::StatusOr<v1::Table>)> done);
  void OpenTable(const std::string& name, int64_t deadline_ns,
                 std::function<void(absl::StatusOr<v1::Table>)> done);
  // If two tables have this name, the served one is dropped.
  void DropTable(const std::string& name, int64_t deadline_ns,
                 std::function<void(absl::Status)> done);
  void DropTable(uint32_t id, int64_t deadline_ns, std::function<void(absl::Status)> done);
  // Excludes tables that are being restored.
  void ListTables(int64_t deadline_ns,
                  std::function<void(absl::StatusOr<std::vector<v1::Table>>)> done);

  // `done` runs when view() is at least as new as this call.
  void FollowView(int64_t deadline_ns, std::function<void(absl::Status)> done);
  // Asks for a decision on the joining workers of the job. The view has it.
  void AdmitMembers(const v1::AdmitMembersRequest& request, int64_t deadline_ns);
  // Fetches the view at once (a reply or an error has shown that it is outdated).
  void Refresh();
  // Counts the answers to fetches that began after all earlier calls of Refresh(): when it grows,
  // view() is as new as those calls.
  uint64_t refreshes() const { return refreshes_; }
  // A server knows of no job with this incarnation: asks the coordinator soon. Only the
  // coordinator's answer ends the lease.
  void AskForLease();

  bool RunOnce(int64_t now);
  int64_t NextTimerNanos() const;
  bool busy() const { return calls_.busy(); }

  State state() const { return state_; }
  // OK while joined; otherwise FAILED_PRECONDITION with the fix.
  absl::Status Usable() const;
  uint64_t incarnation() const { return incarnation_; }
  int rank() const { return rank_; }
  const SessionOptions& options() const { return options_; }
  const v1::ClusterView& view() const { return view_; }
  const v1::Server* FindServer(uint64_t incarnation) const;
  const v1::Table* FindTable(uint32_t id) const;
  const v1::Job* OwnJob() const;
  // Whether this client may use the table: a table of its own job, or for an observer, without
  // pushes, one of any job. FAILED_PRECONDITION has both jobs; PERMISSION_DENIED: the observer's
  // token does not allow it.
  absl::Status CheckJob(const v1::Table& table) const;
  // Time when this client first saw the server as SILENT; 0: it is not.
  int64_t SilentSince(uint64_t incarnation) const;

 private:
  void Confirm(int64_t began, int64_t deadline_ns, std::shared_ptr<v1::JoinWorkerResponse> granted,
               std::function<void(absl::Status)> done);
  void Joined(v1::JoinWorkerResponse* granted, int64_t deadline_ns,
              std::function<void(absl::Status)> done);
  // Whether the lease was surely there less than half of its length ago.
  bool RenewedRecently() const;
  // This worker in the view; null: it is not there, or still joining.
  const v1::Worker* Admitted() const;
  // Join() ends if the view has admitted this worker, and its lease was renewed recently.
  void FollowAdmission();
  void EndJoin(absl::Status status);
  // The lease has ended; `who` is the source of this information.
  void Expire(std::string_view who);
  // Not OK: the view does not continue the current one and is not adopted. A member of an abandoned
  // history has expired.
  absl::Status TakeView(v1::ClusterView view);
  void FollowNewView(const ViewDifference& what);
  void FollowSilence();
  void Drop(v1::DropTableRequest request, int64_t deadline_ns,
            std::function<void(absl::Status)> done);
  void Heartbeat();
  void Watch();
  // Requests everything newer than the current view.
  v1::GetViewRequest ViewRequest() const;
  // Applies the view or changes of a response. False: they do not continue the current view; the
  // next request asks for the whole view.
  bool TakeAnswer(v1::GetViewResponse* response, uint64_t asked_at, absl::Status* status);
  void GetView(uint32_t wait_ms, std::function<void(absl::Status)> done);

  SessionOptions options_;
  ControlChannel* control_;
  const Clock* clock_;
  Random* random_;
  LeaseKeeper* keeper_;
  Listener listener_;
  Calls calls_;
  State state_ = State::kNew;
  uint64_t incarnation_ = 0;
  int rank_ = -1;
  uint32_t lease_ms_ = 0;  // granted when this client joins
  v1::ClusterView view_;
  bool needs_whole_view_ = false;
  std::vector<std::pair<uint64_t, int64_t>> silent_;
  absl::Status expired_;
  std::function<void(absl::Status)> admitted_;  // of Join(), while the worker is joining
  int64_t admit_by_ = kNever;

  bool heartbeat_out_ = false, watch_out_ = false, refresh_out_ = false, refresh_again_ = false;
  uint64_t refreshes_ = 0;
  int64_t refused_at_ = kNever;  // since when heartbeats are refused
  int64_t beat_sent_ = 0;        // time of the last heartbeat
  int64_t renewed_at_ = 0;       // when the last request was sent that has renewed the lease
  int64_t heartbeat_at_ = kNever, watch_at_ = kNever, refresh_at_ = kNever;
  Backoff watch_backoff_, refresh_backoff_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_SESSION_H_
