#include "proto/host_port.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena {

absl::StatusOr<HostAndPort> SplitHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostAndPort result;
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  }
  result.host = address.substr(0, colon);
  if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  }
  result.port = static_cast<uint16_t>(port);
  return result;
}

std::string JoinHostPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

}  // namespace verbena
