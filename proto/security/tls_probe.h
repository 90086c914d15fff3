// Diagnoses why a TLS connection fails, because gRPC reports only "failed to connect".
//
// **Thread safety**: pure; blocks for at most `at_most` plus the time of the resolver.
//
// Invariants:
//  1. It only explains. Its result makes no connection succeed or fail.
#ifndef VERBENA_PROTO_SECURITY_TLS_PROBE_H_
#define VERBENA_PROTO_SECURITY_TLS_PROBE_H_

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "proto/security/tls_files.h"

namespace verbena {

// Connects to `address` (host:port) as a client with `material` would (null: without TLS). Returns
// the problem and the fix: a certificate that fails verification or has expired, or a side that
// does not use TLS. Returns "" if it finds no problem, or not enough to decide. `stop` ends the
// probe early.
std::string ExplainTlsFailure(const std::string& address, const TlsMaterial* material,
                              absl::Duration at_most, const std::atomic<bool>& stop);

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_TLS_PROBE_H_
