// The inside of a Coordinator, for the files that make it up: coordinator.cc (start, time, polls),
// coordinator_changes.cc (changes), coordinator_calls.cc (calls).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_COORDINATOR_IMPL_H_
#define VERBENA_SERVER_COORDINATOR_COORDINATOR_IMPL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/configurations.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/leases.h"
#include "server/coordinator/move_results.h"
#include "server/coordinator/store.h"
#include "server/coordinator/turns.h"
#include "server/coordinator/view_changes.h"
#include "server/coordinator/view_editor.h"
#include "server/coordinator/view_polls.h"
#include "server/nanoseconds.h"

namespace verbena::server {

struct Coordinator::Impl {
  // State beside the view that a mutation may change, and that is restored if the mutation fails.
  struct Undo {
    std::optional<v1::AccessRules> access;  // none: the change has not touched the tokens
    uint64_t next_incarnation = 0;
    uint32_t next_table = 0;
    LearnerBars bars;
    uint32_t protocol = 0;  // in force
  };

  // kWhole: it changed something that no record of the editor describes.
  enum class Extent { kRecorded, kWhole };
  // A change that is made, and not in the store yet.
  struct Staged {
    Undo undo;
    ViewEditor::Change change;
    Extent extent;
    bool access;  // tokens are different
    std::optional<CoordinatorState::Answered> answered;
  };

  CoordinatorOptions options;
  const Clock* clock;
  Store* store;
  CoordinatorState state;
  ViewEditor editor{&state.view, &state.ended_generation};  // all changes of the view
  Undo undo;                                                // of the change that has begun
  bool grouping = false;                                    // between BeginGroup() and EndGroup()
  std::deque<Staged> staged;                                // oldest first
  // In their order, with the outcome of `staged`.
  std::vector<absl::AnyInvocable<void(const absl::Status& saved)>> waiting;
  bool answers_change = false;  // see Coordinator::answers_change()
  // The answers of `state`, by request id. The oldest has the number `first_answer`.
  absl::flat_hash_map<std::string, uint64_t> answer_numbers;
  uint64_t first_answer = 0;
  v1::AccessRules access;  // the state's, and the operator's own token
  int64_t next_token_ns = kNever;
  bool ends_unsaved = false;  // tokens have ended here, and not in the store
  Leases leases;
  Leases restores;  // of tables that are being restored, by their ids
  Turns turns;
  LearnerBars bars;
  MoveResults moves;
  std::set<uint64_t> left;            // servers that have announced it; a late heartbeat does not
                                      // revive them
  std::map<uint64_t, int64_t> heard;  // servers, and when the last join or heartbeat was read
  int64_t paused_ns = -1;             // when the last pause of the coordinator was found; -1: none
  ViewChanges changes;
  ViewPolls polls;
  bool unpublished = false;  // there was a change since polls were answered
  uint64_t polls_beyond = 0;
  int64_t in_office_since_ns = 0;
  // Servers, alive in the state that was loaded, of which any may prove it an old one: they have
  // not been heard in this term, and their leases go on.
  std::set<uint64_t> unheard;
  uint32_t first_table = 0;        // the least id of a table that is made in this term
  int64_t next_checkpoint_ns = 0;  // after a failed Save() of changes by time
  absl::Status refusal;            // not OK: a member has proved that this state is an old one

  int64_t Now() const { return clock->NowNanos(); }
  int64_t LeaseNanos() const { return options.lease_ms * kNanosPerMilli; }
  int64_t RestoreLeaseNanos() const {
    return static_cast<int64_t>(RestoreLeaseMillis(options)) * kNanosPerMilli;
  }
  const v1::ClusterView& view() const { return state.view; }

  absl::Status TakeOffice();
  // Replaces options that are 0 by those of the state.
  absl::Status KeepSettings();
  absl::Status BeginTerm();
  // No other start on the state that was loaded gives out the ids that this one does.
  void SkipIds();
  // Whether the operator has named this state as one to go on from, for the first time.
  bool AcceptsState() const;
  // Whether the state continues the one that a member has seen; else the reason for which the
  // member gets no answer. May prove that the state is an old one.
  bool RunEnds(const v1::JoinWorkerRequest& request) const;
  absl::Status CheckSeen(const v1::Seen& seen, bool server, uint64_t incarnation);
  // UNAVAILABLE while the loaded state may be an old one: meanwhile nothing is made, changed or
  // dropped in it that callers would rely on. Exempt are calls that keep partitions available, and
  // calls by which owners end something.
  absl::Status CheckHeard() const;
  template <typename Request>
  absl::Status MayChange(const Request&) const {
    return CheckHeard();
  }
  absl::Status MayChange(const v1::LeaveRequest&) const { return absl::OkStatus(); }
  absl::Status MayChange(const v1::ReconfigureRequest&) const { return absl::OkStatus(); }
  absl::Status MayChange(const v1::RevokeTokenRequest&) const { return absl::OkStatus(); }
  absl::Status MayChange(const v1::JoinServerRequest& request) const;
  absl::Status OtherCluster(const v1::Seen& seen, uint64_t incarnation) const;
  // Every call is refused from now on, those that wait included.
  void Refuse(const v1::Seen& seen, bool server, uint64_t incarnation);
  void BeginChange();
  void KeepAccess() { undo.access = state.access; }  // before tokens are changed
  void UndoChange();
  void UndoBeside(Undo* before);  // all but the view
  // Stages the change, and saves it unless a group is open that may go on.
  absl::Status EndChange(const CoordinatorState::Answered* answered,
                         Extent extent = Extent::kRecorded);
  // Saves all that is staged, or undoes it.
  absl::Status SaveStaged();
  // The same, and runs all that waits for it.
  absl::Status Flush();
  void OnSaved(const Staged& made);
  // Now, or once the staged changes are saved or undone.
  void WhenSaved(absl::AnyInvocable<void(const absl::Status& saved)> then);
  // Runs `call`, which changes nothing, after the staged changes: it would show changes that may be
  // undone.
  void PutOff(absl::AnyInvocable<void()> call);
  void FollowView();
  // The same, by the difference.
  void FollowChange(const ViewEditor::Change& change);
  void GrantLease(uint64_t incarnation);
  // Read half a lease ago at most, and not right after a pause: it had not waited for long.
  bool WasHeard(uint64_t server) const;
  // Whether a server that leaves has a follower that is alive by its lease, but was not heard.
  bool HasUnheardFollower(uint64_t server) const;
  const CoordinatorState::Answered* FindAnswer(const std::string& request_id) const;
  void KeepAnswer(const CoordinatorState::Answered& answered);
  // Answers polls that are due, for a turn: the others are due at once.
  void AnswerPolls();
  v1::GetViewResponse ViewAnswer(uint64_t known, bool takes_changes) const;

  // Runs `apply` (Response* -> StatusOr<Effect>) on the state, once per request id.
  template <typename Request, typename Response, typename Apply>
  void Mutate(const char* method, const Request& request, Reply<Response> reply, Apply apply);
  template <typename Response>
  void Repeat(const CoordinatorState::Answered& before, const std::string& fingerprint,
              Reply<Response> reply);

  // The turn before this one was too long ago: its leases ran on, and must not have.
  void ExtendLeases(int64_t pause_ns, int64_t now);
  bool EndLeases(int64_t now);
  bool EndRestores(int64_t now);
  bool EndBars(int64_t now);
  void LogFullServers();
  bool EndTokens(int64_t now);
  void FollowTokens();
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_COORDINATOR_IMPL_H_
