// Who has a partition: every change of a configuration.
//
//   configuration        | on                                        | to
//   ---------------------+-------------------------------------------+---------------------
//   primary              | another server is alive, `replicas` is 2  | primary + learner
//   primary + learner    | ADMIT                                     | primary + follower
//                        | learner silent or gone, DROP_REPLICA      | primary
//   primary + follower   | follower gone, DROP_REPLICA               | primary
//                        | PROMOTE, primary leaves or is gone        | follower is primary
//   primary, alone       | replaced or removed                       | another primary, data lost
//
// Silence changes no configuration that has data twice: the other copy may hear who is silent here,
// and asks for what it wants when it does not, either.
//
// **Thread safety**: functions without state of their own, on a view; LearnerBars: one owner
// thread.
//
// Invariants:
//  1. A server has at most one copy of a partition; a partition has at most two.
//  2. `epoch` grows exactly when the primary (server or shard) is another; `configuration` with
//     every change.
//  3. Only a follower becomes primary in place of another that has data, or nobody has them any
//     more and the tables are told so.
//  4. Once FollowServers() has run: no copy is on a server that is gone, and no learner on a silent
//     one.
#ifndef VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_
#define VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "server/coordinator/view_editor.h"

namespace verbena::server {

inline constexpr uint32_t kMaxReplicas = 2;

// Where no learner is put for a while: what its primary could not reach a moment ago is not tried
// in a loop.
class LearnerBars {
 public:
  void Add(uint32_t partition, uint64_t server, int64_t until_ns);
  bool Has(uint32_t partition, uint64_t server, int64_t now_ns) const;
  void EndDue(int64_t now_ns);
  int64_t NextDueNanos() const { return next_; }  // INT64_MAX: there is none

 private:
  std::map<std::pair<uint32_t, uint64_t>, int64_t> until_;
  int64_t next_ = INT64_MAX;
};

// Spreads all partitions evenly over the shards of the servers that are alive, each with
// `replicas` copies as far as there are servers. Only for a cluster without tables: nothing
// is copied.
void PlaceAllPartitions(ViewEditor* view);

// `now` has taken the name of `before` and is empty. What had a follower is the follower's; the
// rest is `now`'s, and lost for every table that has chunks in it.
void ReplaceServer(uint64_t before, const v1::Server& now, ViewEditor* view);

// Removes a server that is silent from the view. What had a follower is the follower's; the rest
// goes to servers that are alive and is lost. Returns the names of the tables that lost something.
// FAILED_PRECONDITION: nobody is alive to take it.
absl::StatusOr<std::vector<std::string>> ForgetServer(uint64_t server, ViewEditor* view);

// A server leaves: what has a follower that is alive is the follower's.
void HandOver(uint64_t server, ViewEditor* view);

// What follows from who is alive, silent and gone. Whether anything changed.
bool FollowServers(ViewEditor* view);

// A learner for every partition that has fewer copies than wanted, whose primary is alive, and for
// which there is a server. Whether there was any.
bool AddLearners(const LearnerBars& bars, int64_t now_ns, ViewEditor* view);

// Makes one change that `server`, which is alive, asks for; false: the configuration is another one
// by now. Who is dropped is barred until `bar_until_ns`. INVALID_ARGUMENT names the field.
// FAILED_PRECONDITION: it is not this server's to ask for.
absl::StatusOr<bool> Reconfigure(const v1::ConfigurationChange& change, uint64_t server,
                                 int64_t bar_until_ns, LearnerBars* bars, ViewEditor* view);

// DATA_LOSS when the invariants do not hold.
absl::Status CheckConfigurations(const v1::ClusterView& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_
