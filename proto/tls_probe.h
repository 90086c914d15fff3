// Why a connection cannot be secured, in words: gRPC says "failed to connect" and little more.
//
// **Thread safety**: pure; blocks for at most `at_most` (and the resolver).
//
// Invariants:
//  1. It only finds words. What it finds makes no connection succeed or fail.
#ifndef VERBENA_PROTO_TLS_PROBE_H_
#define VERBENA_PROTO_TLS_PROBE_H_

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "proto/tls_files.h"

namespace verbena {

// Connects to `address` (host:port) as a client with `material` would (null: without TLS), and
// says what is wrong and what to do: whose certificate is not believed or has expired, who does not
// speak TLS. "" when it finds nothing wrong, or nothing at all; `stop` ends it early.
std::string ExplainTlsFailure(const std::string& address, const TlsMaterial* material,
                              absl::Duration at_most, const std::atomic<bool>& stop);

}  // namespace verbena

#endif  // VERBENA_PROTO_TLS_PROBE_H_
