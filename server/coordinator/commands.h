// The coordinator's commands as changes of its state. The caller undoes, saves and replies.
//
// **Thread safety**: pure functions on a state. After an error the state is partly changed.
#ifndef VERBENA_SERVER_COORDINATOR_COMMANDS_H_
#define VERBENA_SERVER_COORDINATOR_COMMANDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/configurations.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/store.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

enum class Effect { kNone, kChanged };

// The lease of a table that is being restored: loading it again may take hours, so a restorer may
// be silent for longer than a member.
inline uint64_t RestoreLeaseMillis(const CoordinatorOptions& options) {
  return uint64_t{4} * options.lease_ms;
}

absl::StatusOr<Effect> AddServer(const v1::JoinServerRequest& request,
                                 const CoordinatorOptions& options, CoordinatorState* state,
                                 ViewEditor* view, v1::JoinServerResponse* response);

// `token`: the id of the presented token.
absl::StatusOr<Effect> AddWorker(const v1::JoinWorkerRequest& request, const std::string& token,
                                 const CoordinatorOptions& options, CoordinatorState* state,
                                 ViewEditor* view, v1::JoinWorkerResponse* response);

// A worker is retired, a server becomes silent. kNone when that was so already; NOT_FOUND when the
// incarnation was never given out.
absl::StatusOr<Effect> RemoveMember(uint64_t incarnation, CoordinatorState* state,
                                    ViewEditor* view);

// kNone when the table exists with the same specification. A table that is to be restored must not
// exist, or be replaced.
absl::StatusOr<Effect> AddTable(const v1::CreateTableRequest& request,
                                const CoordinatorOptions& options, CoordinatorState* state,
                                ViewEditor* view, v1::Table* table);

// kNone when all are served.
absl::StatusOr<Effect> FinishRestore(const v1::FinishRestoreRequest& request, ViewEditor* view);

absl::StatusOr<Effect> RemoveTable(const v1::DropTableRequest& request, ViewEditor* view);

// NOT_FOUND; FAILED_PRECONDITION: the server is alive, or no live server could take its partitions.
// The joining workers of the caller's job get ranks and first steps (admissions.h).
absl::StatusOr<Effect> AdmitMembers(const v1::AdmitMembersRequest& request, ViewEditor* view);
absl::StatusOr<Effect> ForgetJob(const v1::ForgetJobRequest& request, ViewEditor* view);
absl::StatusOr<Effect> RemoveServer(const v1::RemoveServerRequest& request, CoordinatorState* state,
                                    ViewEditor* view, v1::RemoveServerResponse* response);

// A table's lost partitions restart empty, and its job starts a new generation: servers drop its
// steps and sequences. kNone when nothing is lost and no partition was named.
absl::StatusOr<Effect> ResetTable(const v1::ResetTableRequest& request, ViewEditor* view,
                                  v1::ResetTableResponse* response);

// All changes or, after an error, none. Changes that need a newer ticket than the request has are
// skipped. kNone when none could be made. See configurations.h.
absl::StatusOr<Effect> ChangeConfigurations(const v1::ReconfigureRequest& request, int64_t now_ns,
                                            int64_t lease_ns, LearnerBars* bars,
                                            CoordinatorState* state, ViewEditor* view,
                                            v1::ReconfigureResponse* response);

// kNone when the job has these limits.
absl::StatusOr<Effect> ChangeLimits(const v1::SetJobLimitsRequest& request, ViewEditor* view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_COMMANDS_H_
