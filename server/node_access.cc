#include "server/node_access.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/security/token.h"
#include "server/access/peer_log.h"
#include "server/control/address.h"

namespace verbena::server {

absl::StatusOr<std::shared_ptr<TlsFiles>> OpenNodeTls(const NodeOptions& options) {
  absl::StatusOr<std::shared_ptr<TlsFiles>> opened =
      TlsFiles::Open(options.tls, [wrong = Bounded([](const std::string& text) {
                                     spdlog::warn("{}. The files before stay in use", text);
                                   })](const absl::Status& status) {
        if (!status.ok()) return wrong(std::string(status.message()));
        // Once each time that an operator replaces them.
        spdlog::info("TLS: the files were replaced; new connections use the new ones");
      });
  if (!opened.ok()) return opened.status();
  std::shared_ptr<TlsFiles> tls = *std::move(opened);
  absl::StatusOr<HostAndPort> listen = SplitHostPort(options.listen);
  if (!listen.ok()) return listen.status();
  if (IsLoopback(listen->host)) return tls;
  // A typing error must not be answered by advice to do without TLS.
  if (const auto resolved = ResolveNumeric(WithoutBrackets(listen->host)); !resolved.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", options.listen, ": ", resolved.status().message()));
  }
  if (tls == nullptr && !options.insecure) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--listen ", options.listen,
        " is beyond loopback and there is no TLS: any host that reaches it could read and change "
        "every "
        "table. Give --tls-cert, --tls-key and --tls-ca; or, inside a network where every host is "
        "trusted, --insecure"));
  }
  if (tls == nullptr) {
    // Once a process life.
    spdlog::warn(
        "listening on {}, beyond loopback, without TLS (--insecure): any host that reaches it "
        "can read and change every table",
        options.listen);
  }
  return tls;
}

absl::StatusOr<NodeTokens> OpenNodeTokens(const NodeOptions& options) {
  NodeTokens tokens;
  const std::string& own = options.operator_token_file;
  if (!own.empty()) {
    absl::StatusOr<NewToken> made = MakeToken();
    if (!made.ok()) return made.status();
    const absl::Status written = WriteToken(own, made->text);
    // Once a process life.
    if (written.ok()) spdlog::info("made the operator's token, in {}", own);
    if (!written.ok() && !absl::IsAlreadyExists(written)) return written;
    absl::StatusOr<std::string> text = ReadToken(own);
    if (!text.ok()) return text.status();
    v1::Token& token = tokens.operator_token.emplace();
    token.set_id(*TokenId(*text));
    token.set_role(v1::ROLE_OPERATOR);
    token.set_note("the coordinator's --operator-token-file");
    token.set_hash(HashToken(*text));
  }
  absl::StatusOr<std::shared_ptr<TokenFile>> file =
      TokenFile::Open(options.token_file.empty() ? own : options.token_file);
  if (!file.ok()) return file.status();
  tokens.own = *std::move(file);
  return tokens;
}

absl::StatusOr<std::unique_ptr<AuditLog>> OpenNodeAudit(const NodeOptions& options) {
  return AuditLog::Open(options.audit_log,
                        // Bounded by the audit log itself: budgets audited-calls, audit-refusals.
                        [](const std::string& line) { spdlog::info("{}", line); });
}

}  // namespace verbena::server
