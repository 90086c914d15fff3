// What gRPC says by itself: to the daemon's log, and to the audit log where it says that a
// connection was not let in. gRPC tells nobody else of a TLS handshake that fails.
//
// **Thread safety**: every function from any thread.
#ifndef VERBENA_SERVER_ACCESS_GRPC_LOG_H_
#define VERBENA_SERVER_ACCESS_GRPC_LOG_H_

#include "server/access/audit_log.h"

namespace verbena::server {

// From now on.
void InstallGrpcLog();

// Null: none. When it returns, nobody uses the one before any more.
void SetHandshakeAudit(AuditLog* audit);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_GRPC_LOG_H_
