// The limits of a job on the cluster's resources: set by an operator, kept here, enforced by the
// servers and by CheckLimits().
//
// The coordinator counts tables, and refuses dense ones that cannot fit. Lanes and memory are
// counted by the shards (server/executor/shard_lanes.cc, shard/job_memory.h).
//
// **Thread safety**: pure functions on a view.
#ifndef VERBENA_SERVER_COORDINATOR_JOB_LIMITS_H_
#define VERBENA_SERVER_COORDINATOR_JOB_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// All limits of the job from now on; it is made when it is new, and forgotten when there was
// nothing to it but its limits and it has none any more. False: they were so before.
bool SetLimits(const std::string& job, const v1::JobLimits& limits, ViewEditor* view);

// Whether the job may have `table`, too, which is not in the view yet: RESOURCE_EXHAUSTED names the
// limit, the use, and the fix. Partitions have been placed. `chunk_memory`: as the view's sums
// count.
absl::Status CheckLimits(const v1::Table& table, const ChunkMemory& chunk_memory,
                         const ViewEditor& view);

// Whether the servers have memory for `table` and its replicas beside all other dense tables:
// RESOURCE_EXHAUSTED names the server, the memory needed and the memory it has. Rows are not
// counted: their servers refuse those that do not fit.
absl::Status CheckServerMemory(const v1::Table& table, const ChunkMemory& chunk_memory,
                               const ViewEditor& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_JOB_LIMITS_H_
