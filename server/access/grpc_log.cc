#include "server/access/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>

#include "absl/strings/strip.h"
#include "server/access/peer_log.h"

namespace verbena::server {
namespace {

// From ssl_transport_security.cc of gRPC 1.51, for both ends: this process also connects to its
// coordinator. The line does not name the peer.
constexpr char kHandshakeFailed[] = "Handshake failed with fatal error ";

// Function pointers are all that gRPC takes, so these are the process's.
std::mutex mutex;
AuditLog* handshake_audit = nullptr;  // guarded by mutex
// Never destroyed: gRPC's threads may outlive static objects.
PeerLog* const lines =
    new PeerLog([](const std::string& line) { spdlog::debug("grpc: {}", line); });

void OnLine(gpr_log_func_args* args) {
  // Most error lines of gRPC are about a peer that is not up yet, which the calling code reports.
  lines->Write(args->message);
  absl::string_view said = args->message;
  if (!absl::ConsumePrefix(&said, kHandshakeFailed)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (handshake_audit == nullptr) return;
  handshake_audit->Write({.method = "TLS handshake", .status = absl::UnauthenticatedError(said)});
}

}  // namespace

void InstallGrpcLog() { gpr_set_log_function(OnLine); }

void SetHandshakeAudit(AuditLog* audit) {
  const std::lock_guard<std::mutex> lock(mutex);
  handshake_audit = audit;
}

}  // namespace verbena::server
