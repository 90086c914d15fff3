// What operations end with: statuses that name the table, the server and what was waited for.
//
// **Thread safety**: pure functions of the state they are given.
#ifndef VERBENA_CLIENT_CORE_ERRORS_H_
#define VERBENA_CLIENT_CORE_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/core/entry.h"
#include "client/core/lane_set.h"
#include "client/core/session.h"
#include "client/core/table_state.h"

namespace verbena::client {

// "server 'ps-0' (incarnation 3, 127.0.0.1:7001) shard 1"
std::string DescribeServer(const Session& session, const Stream& stream);
// "push of chunk 3 of table 'w' in step 7"
std::string DescribeEntry(const Entry& entry);

// A final refusal of a record.
absl::Status RefusalStatus(const Entry& entry, ReplyStatus status);
// Rows of `part` were not made: kMemoryLimit, kJobMemoryLimit, kCopyMemoryLimit.
absl::Status MemoryLimitStatus(const Session& session, const Entry& entry, uint32_t part,
                               ReplyStatus status, uint32_t detail);
absl::Status DataLossStatus(const Session& session, const TableState& table, uint32_t part);
// The operation's deadline has passed: what it was still waiting for. UNAVAILABLE: a server does
// not answer; RESOURCE_EXHAUSTED: no slot became free, or it grants no lane; DEADLINE_EXCEEDED:
// another worker. Where the transport refused the memory of its records, its error.
absl::Status DeadlineStatus(const Session& session, const Operation& operation, int64_t now);

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_ERRORS_H_
