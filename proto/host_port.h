// host:port texts.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_HOST_PORT_H_
#define VERBENA_PROTO_HOST_PORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace verbena {

struct HostAndPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "host:port" or "[v6]:port". INVALID_ARGUMENT naming the text, and what is wrong with it.
absl::StatusOr<HostAndPort> SplitHostPort(const std::string& address);
// "v6" of "[v6]"; other texts as they are.
std::string WithoutBrackets(const std::string& host);
// With brackets around a host that has a colon.
std::string JoinHostPort(const std::string& host, uint16_t port);

}  // namespace verbena

#endif  // VERBENA_PROTO_HOST_PORT_H_
