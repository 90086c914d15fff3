#include "server/access/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>

#include "absl/strings/strip.h"
#include "server/access/peer_log.h"

namespace verbena::server {
namespace {

// ssl_transport_security.cc of gRPC 1.51. Of either end: this process connects to its coordinator,
// too. It does not say who the peer was.
constexpr char kHandshakeFailed[] = "Handshake failed with fatal error ";

// Function pointers are all that gRPC takes, so these are the process's.
std::mutex mutex;
AuditLog* handshake_audit = nullptr;  // guarded by mutex
// Never destroyed: gRPC's threads may outlive static objects.
PeerLog* const lines =
    new PeerLog([](const std::string& line) { spdlog::debug("grpc: {}", line); });

void OnLine(gpr_log_func_args* args) {
  // What gRPC finds worth an error line is mostly a peer that is not there yet, which is reported
  // by whoever called it.
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
