// The coordinator: members, leases, tables, jobs and partition configurations of a cluster.
//
// A state machine: it takes commands and replies through callbacks. Every change is in the store
// before its reply. The caller passes the time. Each decision becomes a new revision of the view.
//
// **Thread safety**: one owner thread (the coordinator executor's).
//
// Invariants:
//  1. Incarnations and table ids increase and are never reused, also across restarts. Each term
//     begins at a random distance from the ids of the loaded state. So two starts from copies of
//     one state give out different ids, even if they never communicate.
//  2. A reply is given only after Store::SaveAll() of the state that it describes has succeeded.
//  3. Taking office (construction on an existing store) raises the term and renews all leases.
//  4. A repeated request_id gets its earlier reply (a view in it is the current one).
//  5. A table's partition is lost only when a new incarnation joins under the name of the server
//     with its only replica, or an operator removes that server.
//  6. A change that cannot be saved has not happened: it is undone and its caller gets the error.
//     The same holds for all changes of a group.
//  7. An expired or revoked token is refused from that moment on, whether or not this can be saved.
//  8. Time in which the coordinator itself did not run (stopped, starved, suspended, in a slow
//     SaveAll()) counts against no lease. RunOnce() is due eight times a lease. A run that is late
//     by a quarter of a lease or more extends all leases by the pause before any ends. A run that
//     is late by a sixteenth or more extends them by its delay (turns.h). If every turn is late,
//     leases still advance by an eighth of a lease each turn.
//  9. A member that has seen a newer state proves that an old state was restored
//     (proto/control/cluster_history.h). From then on nothing is decided and every call is refused.
//     The proof holds after any number of starts: terms are not forgotten. A worker has no data, so
//     its proof only makes it wait for a lease, in which servers may give theirs; then the worker
//     ends.
//  10. No join, creation, change or drop is accepted before every server that the loaded state
//  calls
//      alive has been heard in this term, is replaced from its own address, or has lost its lease.
//      Until then such calls are UNAVAILABLE. Configurations, heartbeats, Leave() and RevokeToken()
//      do not wait; neither does a state without live servers, or an accepted one.
//  11. A table that is being restored has a lease of four leases, which its restorer renews. When
//      it ends the table is dropped. (Invariants 3 and 8 include this lease.)
//  12. The consequences of a change for the partitions' configurations (configurations.h) and for
//      the protocol version in force (protocol_rules.h) are part of it.
//
// Servers                                    | Workers
//   JoinServer        -> ALIVE, lease        |   JoinWorker       -> member, lease
//   lease ends, Leave -> SILENT, keeps       |   lease ends,      -> retired; its rank has departed
//                        partitions without  |   Leave
//                        another replica     |
//   Heartbeat (SILENT)-> ALIVE (not after a  |
//                        Leave)              |
//   JoinServer under its name -> replaced by the new incarnation, which is empty
//   RemoveServer (SILENT) -> forgotten
#ifndef VERBENA_SERVER_COORDINATOR_COORDINATOR_H_
#define VERBENA_SERVER_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/cluster_history.h"
#include "proto/protocol_version.h"
#include "rdma/base/clock.h"
#include "server/coordinator/job_limits.h"
#include "server/coordinator/move_results.h"
#include "server/coordinator/store.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class ViewEditor;

// Seconds since 1970.
int64_t WallClockSeconds();

struct CoordinatorOptions {
  uint32_t partitions = 256;  // of a new cluster; an existing one keeps its number
  uint32_t lease_ms = 5000;
  // Time that a member may need to reach a restarted coordinator. The first leases after a start
  // are longer by that.
  int64_t find_again_ns = 0;
  // The next three: 0 keeps the value of the state, and is 1 in a new cluster.
  uint32_t expected_servers = 1;  // CreateTable() is UNAVAILABLE before so many have joined
  // Replicas of a partition, counting the primary: 1 to 3. Applies to an existing cluster, too:
  // missing replicas are made; surplus ones stay until their server goes.
  uint32_t replicas = 1;
  uint32_t min_replicas = 1;  // with fewer, pushes wait: 1 to replicas
  // Bytes a second that a server sends at most for learners of planned moves; 0: no limit.
  uint64_t move_rate = 0;
  // Whether the servers know the table's optimizer and accept its parameters. Empty: not checked.
  std::function<absl::Status(const v1::TableSpec&)> check_optimizer = {};
  // The values of an optimizer that clients may change. Empty: none.
  std::function<std::vector<v1::OptimizerValue>(const v1::Optimizer&)> changeable_values = {};
  // Names of the state arrays of a dense table (Table.optimizer_state). Null: none.
  std::function<std::vector<std::string>(const v1::TableSpec&)> state_arrays = {};
  // Memory that servers take for a chunk of a dense table. Empty: as much as its parameters.
  ChunkMemory chunk_memory = {};
  std::string cluster_id = {};  // of a new cluster; empty: random
  Protocols protocols = SpokenProtocols();
  std::string version = {};  // of the program, for people
  // How many terms the view lists: 1 to kTermsListed.
  int terms_listed = kTermsListed;
  // Id of a term; 0: none. The operator confirms that the state with this term is an old one and
  // that nothing newer is left, and a new history begins. Members of the other history end; ids
  // that it may have given out are skipped. Without effect if the history has no such term, or has
  // accepted it before: it may be given at every start.
  uint64_t accept_older_state = 0;
  // Whether calls need tokens. The caller of the coordinator checks them with access()
  // (server/access/): here every call is allowed.
  bool tokens = false;
  // The operator's first token: id and hash. Not kept in the store.
  v1::Token operator_token = {};
  // Clock for the expiry of tokens. For tests; nothing else depends on the host's date.
  std::function<int64_t()> wall_clock = WallClockSeconds;
  // Uniform 64-bit numbers, different ones at each start. Empty: the system's. For tests.
  std::function<uint64_t()> random = {};
  // For planned moves that end without effect. Empty: not logged.
  std::function<void(const std::string&)> log = {};
};

class Coordinator {
 public:
  template <typename Response>
  using Reply = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

  // Loads the state; takes office. DATA_LOSS when the store's content makes no sense. `clock` and
  // `store` outlive the coordinator.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             const Clock* clock, Store* store);
  ~Coordinator();

  // Changes of calls until EndGroup() are saved together, in one write: all or, if that fails,
  // none. Once there is a change, all replies wait for it. A change of tokens is saved at once,
  // with those before it. RunOnce() ends the group, too.
  void BeginGroup();
  void EndGroup();
  // In a reply: whether this call made a change.
  bool answers_change() const;

  // Replies run inside these calls or inside EndGroup() or RunOnce(), after the state is consistent
  // again, so they may call the coordinator. Replies that are pending at its destruction are
  // dropped.
  //
  // ALREADY_EXISTS when a server of that name is alive at another address: replacing it would lose
  // its data. At the same address it can only be a restart, faster than the lease.
  void JoinServer(const v1::JoinServerRequest& request, Reply<v1::JoinServerResponse> reply);
  void JoinWorker(const v1::JoinWorkerRequest& request, Reply<v1::JoinWorkerResponse> reply) {
    JoinWorker(request, {}, std::move(reply));
  }
  // `token`: the id of the worker's token.
  void JoinWorker(const v1::JoinWorkerRequest& request, const std::string& token,
                  Reply<v1::JoinWorkerResponse> reply);
  void Heartbeat(const v1::HeartbeatRequest& request, Reply<v1::HeartbeatResponse> reply);
  void Leave(const v1::LeaveRequest& request, Reply<v1::LeaveResponse> reply);
  void CreateTable(const v1::CreateTableRequest& request, Reply<v1::CreateTableResponse> reply);
  void FinishRestore(const v1::FinishRestoreRequest& request,
                     Reply<v1::FinishRestoreResponse> reply);
  void RenewRestore(const v1::RenewRestoreRequest& request, Reply<v1::RenewRestoreResponse> reply);
  void DropTable(const v1::DropTableRequest& request, Reply<v1::DropTableResponse> reply);
  void AdmitMembers(const v1::AdmitMembersRequest& request, Reply<v1::AdmitMembersResponse> reply);
  void ForgetJob(const v1::ForgetJobRequest& request, Reply<v1::ForgetJobResponse> reply);
  void RemoveServer(const v1::RemoveServerRequest& request, Reply<v1::RemoveServerResponse> reply);
  void MovePartitions(const v1::MovePartitionsRequest& request,
                      Reply<v1::MovePartitionsResponse> reply);
  void DrainServer(const v1::DrainServerRequest& request, Reply<v1::DrainServerResponse> reply);
  void ResetTable(const v1::ResetTableRequest& request, Reply<v1::ResetTableResponse> reply);
  void Reconfigure(const v1::ReconfigureRequest& request, Reply<v1::ReconfigureResponse> reply);
  void SetJobLimits(const v1::SetJobLimitsRequest& request, Reply<v1::SetJobLimitsResponse> reply);
  // Held until the view changes or wait_ms has passed, or `caller` (a token's id, or a host; empty:
  // not known) has too many that wait. RESOURCE_EXHAUSTED: those of all callers are too many.
  void GetView(const v1::GetViewRequest& request, const std::string& caller,
               Reply<v1::GetViewResponse> reply);
  void GetView(const v1::GetViewRequest& request, Reply<v1::GetViewResponse> reply) {
    GetView(request, {}, std::move(reply));
  }
  // A change of tokens is a new revision of the view.
  void CreateToken(const v1::CreateTokenRequest& request, Reply<v1::CreateTokenResponse> reply);
  void ListTokens(const v1::ListTokensRequest& request, Reply<v1::ListTokensResponse> reply);
  void RevokeToken(const v1::RevokeTokenRequest& request, Reply<v1::RevokeTokenResponse> reply);

  // Ends leases, restores, tokens, bars of learners and long polls that are due. Returns whether
  // anything happened.
  bool RunOnce();
  // Not OK: FAILED_PRECONDITION, as all calls since a member has proved that the state is an old
  // one.
  const absl::Status& status() const;
  // How often the number of waiting calls of GetView() was at its bound.
  uint64_t polls_beyond() const;
  // Planned moves that have ended in this term.
  const MoveCounters& moves() const;
  // Partitions that want a replica for which a server had no memory.
  size_t partitions_refused() const;
  // When RunOnce() has something to do; INT64_MAX: never.
  int64_t NextTimerNanos() const;

  const v1::ClusterView& view() const;
  // Look-ups in it that do not pass over it.
  const ViewEditor& index() const;
  // Null: calls need no tokens. Valid until the next call.
  const v1::AccessRules* access() const;

 private:
  struct Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_COORDINATOR_H_
