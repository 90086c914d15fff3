// Redirects gRPC's own log to the daemon's log. Lines about refused connections also go to the
// audit log: only there does gRPC report a failed TLS handshake.
//
// **Thread safety**: every function from any thread.
#ifndef VERBENA_SERVER_ACCESS_GRPC_LOG_H_
#define VERBENA_SERVER_ACCESS_GRPC_LOG_H_

#include "server/access/audit_log.h"

namespace verbena::server {

// From now on.
void InstallGrpcLog();

// Null: none. When it returns, the previous audit log is no longer used.
void SetHandshakeAudit(AuditLog* audit);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_GRPC_LOG_H_
