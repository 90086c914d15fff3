#include "server/access/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/access/peer_log.h"

namespace verbena::server {
namespace {

// From chttp2_server.cc of gRPC 1.51, for connections to this process's port: "Handshaking failed:
// UNKNOWN:Ssl handshake failed: SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not return a
// certificate {created_time: ...}". It does not name the peer. Lines of TLS itself also come from
// this process's own calls, of its coordinator and of etcd.
constexpr char kOfServer[] = "Handshaking failed: ";
constexpr absl::string_view kReason = " handshake failed: ";

// Function pointers are all that gRPC takes, so these are the process's.
std::mutex mutex;
AuditLog* handshake_audit = nullptr;  // guarded by mutex
// Never destroyed: gRPC's threads may outlive static objects.
PeerLog* const lines =
    new PeerLog([](const std::string& line) { spdlog::debug("grpc: {}", line); });

void OnLine(gpr_log_func_args* args) {
  // Most error lines of gRPC are about a peer that is not up yet, which the calling code reports.
  if (args->severity >= GPR_LOG_SEVERITY_ERROR) lines->Write(args->message);
  absl::string_view said = args->message;
  if (!absl::ConsumePrefix(&said, kOfServer)) return;
  // Without a reason of TLS the peer has only closed the connection.
  const size_t reason = said.find(kReason);
  if (reason == absl::string_view::npos) return;
  said.remove_prefix(reason + kReason.size());
  said = said.substr(0, said.find(" {"));
  const std::lock_guard<std::mutex> lock(mutex);
  if (handshake_audit == nullptr) return;
  handshake_audit->Write({.method = "TLS handshake", .status = absl::UnauthenticatedError(said)});
}

}  // namespace

void InstallGrpcLog() {
  gpr_set_log_function(OnLine);
  // That of kOfServer.
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
}

void SetHandshakeAudit(AuditLog* audit) {
  const std::lock_guard<std::mutex> lock(mutex);
  handshake_audit = audit;
}

}  // namespace verbena::server
