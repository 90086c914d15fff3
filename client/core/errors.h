// Statuses of ended operations, with the table, the server and the missing event.
//
// **Thread safety**: pure functions of the state they are given.
#ifndef VERBENA_CLIENT_CORE_ERRORS_H_
#define VERBENA_CLIENT_CORE_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/session.h"
#include "client/core/table_state.h"

namespace verbena::client {

// "server 'ps-0' (incarnation 3, 127.0.0.1:7001) shard 1"
std::string DescribeServer(const Session& session, const Stream& stream);
// "push of chunk 3 of table 'w' in step 7"
std::string DescribeRequest(const PendingRequest& entry);

// A final refusal of a record.
absl::Status RefusalStatus(const PendingRequest& entry, ReplyStatus status);
// Rows of `part` were not created: kMemoryLimit, kJobMemoryLimit, kCopyMemoryLimit.
absl::Status MemoryLimitStatus(const Session& session, const PendingRequest& entry, uint32_t part,
                               ReplyStatus status, uint32_t detail);
absl::Status DataLossStatus(const Session& session, const TableState& table, uint32_t part);
// Status for an expired deadline, with the event that the operation still waited for. UNAVAILABLE:
// a server does not respond; RESOURCE_EXHAUSTED: no slot became free, or the server grants no lane;
// DEADLINE_EXCEEDED: another worker. If the transport refused the memory of the records, its error.
absl::Status DeadlineStatus(const Session& session, const Operation& operation, int64_t now);

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_ERRORS_H_
