// Configurations of partitions (primary, follower, learner): every change of one.
//
//   configuration        | on                                        | to
//   ---------------------+-------------------------------------------+---------------------
//   fewer than `replicas`| another server is alive, no learner yet   | one more, a learner
//   with a learner       | ADMIT                                     | the learner is a follower
//                        | learner silent or gone, DROP_REPLICA      | without it
//   with followers       | follower gone, DROP_REPLICA               | without it
//                        | PROMOTE, primary leaves or is gone        | a follower is primary
//   primary, alone       | replaced or removed                       | another primary, data lost
//
// A server that had no memory for a replica gets no learner for a pause, which doubles with each
// pause that ends so. Then it gets one learner at a time, until one becomes a follower.
//
// Silence alone changes no configuration that has its data twice. The other replicas may still
// reach the silent server; when they do not, they request a change themselves. After a promotion
// the new primary drops a follower that it cannot bring to its own last record (copy_tails.h); it
// is copied anew.
//
// **Thread safety**: functions without state of their own, on a view.
//
// Invariants:
//  1. A server has at most one replica of a partition; a partition has at most kMaxReplicas, and
//  one
//     more while it is moved. One of them may be a learner.
//  2. `epoch` grows exactly when the primary (server or shard) changes; `configuration` with every
//     change.
//  3. Only a follower replaces a primary that has data. Otherwise the data are lost, and the tables
//     record the lost partitions.
//  4. After FollowServers(), no replica is on a server that is gone, and no learner on a silent
//     one.
#ifndef VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_
#define VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/learner_bars.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr uint32_t kMaxReplicas = 3;
// Partitions of planned moves that are copied at one time.
inline constexpr int kMovesAtOnce = 8;

// Spreads all partitions evenly over the shards of the servers that are alive, each with `replicas`
// replicas as far as there are servers. Only for a cluster without tables: no data are copied.
void PlaceAllPartitions(ViewEditor* view);

// `now` has taken the name of `before` and is empty. Partitions with a follower go to the follower.
// The others go to `now`, and are lost for every table that has chunks in them.
void ReplaceServer(uint64_t before, const v1::Server& now, ViewEditor* view);

// Removes a silent server from the view. Partitions with a follower go to the follower. The others
// go to servers that are alive, and are lost. Returns the names of the tables that lost partitions.
// FAILED_PRECONDITION: no server is alive to take them.
absl::StatusOr<std::vector<std::string>> ForgetServer(uint64_t server, ViewEditor* view);

// A server leaves: partitions with a follower that is alive go to the follower.
void HandOver(uint64_t server, ViewEditor* view);

// Applies the consequences of the servers' states (alive, silent, gone). Returns whether anything
// changed.
bool FollowServers(ViewEditor* view);

// Adds a learner for every partition that has too few replicas, whose primary is alive, and for
// which there is a server. Returns whether there was any. While the servers of other zones are
// barred, the learner goes to the primary's zone and stays there: a replica now is worth more than
// a better placed one that may be refused again.
bool AddLearners(const LearnerBars& bars, int64_t now_ns, ViewEditor* view);

// Makes one change that the live server `server` requests; false: the configuration is another one
// by now. A dropped replica's server is barred for a lease, or as one without memory.
// INVALID_ARGUMENT names the field. FAILED_PRECONDITION: this server may not request it.
absl::StatusOr<bool> Reconfigure(const v1::ConfigurationChange& change, uint64_t server,
                                 int64_t now_ns, int64_t lease_ns, LearnerBars* bars,
                                 ViewEditor* view);

// DATA_LOSS when the invariants do not hold.
absl::Status CheckConfigurations(const v1::ClusterView& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_CONFIGURATIONS_H_
