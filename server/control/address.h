// Resolves a host:port text, and explains why an address cannot be listened on.
//
// **Thread safety**: pure functions (they may ask the resolver).
#ifndef VERBENA_SERVER_CONTROL_ADDRESS_H_
#define VERBENA_SERVER_CONTROL_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/host_port.h"

namespace verbena::server {

// The first address of a host, as digits. NOT_FOUND with the resolver's words.
absl::StatusOr<std::string> ResolveNumeric(const std::string& host);

// Every address of HOST:PORT, and those of a wildcard: IPv6 (which takes IPv4, too), then IPv4 for
// a host without IPv6.
absl::StatusOr<std::vector<sockaddr_storage>> ResolveAll(const HostAndPort& address);
absl::StatusOr<std::vector<sockaddr_storage>> WildcardAddresses(uint16_t port);

// strerror(error), to be read inside a sentence: "address already in use".
std::string ErrnoText(int error);

// Binds and releases the address: libraries report that listening failed, but not why. UNAVAILABLE:
// "cannot listen on 127.0.0.1:7000: Address already in use".
absl::Status CheckCanListen(const std::string& address);

// Every address of the host is a loopback one; a host that does not resolve is not.
bool IsLoopback(const std::string& host);
bool IsWildcard(const std::string& host);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_ADDRESS_H_
