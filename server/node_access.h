// Opens the objects that a node needs before it accepts connections: its certificate, its tokens,
// its audit log. A failure here leaves no state behind.
//
// **Thread safety**: free functions, of the thread that starts the node.
#ifndef VERBENA_SERVER_NODE_ACCESS_H_
#define VERBENA_SERVER_NODE_ACCESS_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/security/tls_files.h"
#include "proto/security/token_file.h"
#include "server/access/audit_log.h"
#include "server/node_options.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Null: without TLS, which must be requested explicitly beyond loopback.
absl::StatusOr<std::shared_ptr<TlsFiles>> OpenNodeTls(const NodeOptions& options);

struct NodeTokens {
  std::shared_ptr<TokenFile> own;           // that this server joins with; null: none
  std::optional<v1::Token> operator_token;  // only for a coordinator that requires tokens
};
// Creates the operator's token at the first start.
absl::StatusOr<NodeTokens> OpenNodeTokens(const NodeOptions& options);

// To a file, or to the daemon's log.
absl::StatusOr<std::unique_ptr<AuditLog>> OpenNodeAudit(const NodeOptions& options);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_ACCESS_H_
