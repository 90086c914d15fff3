// Parses and formats host:port texts.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BASE_HOST_PORT_H_
#define VERBENA_PROTO_BASE_HOST_PORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena {

struct HostAndPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// Parses "host:port" or "[v6]:port". INVALID_ARGUMENT has the text and the problem.
absl::StatusOr<HostAndPort> SplitHostPort(const std::string& address);
// Returns "v6" for "[v6]", and other texts unchanged.
std::string WithoutBrackets(const std::string& host);
// Puts brackets around a host that contains a colon.
std::string JoinHostPort(const std::string& host, uint16_t port);
// Whether no packet to this address leaves the host: "127.0.0.1:7000", "localhost:7000",
// "[::1]:7000".
bool OnThisHost(const std::string& address);
// The addresses of a list "host:port,host:port". INVALID_ARGUMENT: one is wrong, or is named twice.
absl::StatusOr<std::vector<std::string>> SplitAddresses(const std::string& list);

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_HOST_PORT_H_
