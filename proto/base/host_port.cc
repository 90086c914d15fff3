#include "proto/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena {

absl::StatusOr<HostAndPort> SplitHostPort(const std::string& address) {
  const size_t scheme = address.find("://");
  if (scheme != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT: leave out '",
                                                   address.substr(0, scheme + 3), "'"));
  }
  const size_t colon = address.rfind(':');
  HostAndPort result;
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not HOST:PORT with a port from 0 to 65535"));
  }
  const std::string host = address.substr(0, colon);
  result.host = WithoutBrackets(host);
  // A colon in the host makes the start of the port ambiguous.
  if (result.host.size() == host.size() && host.find(':') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", address,
        "' is not HOST:PORT: an IPv6 address is written in brackets, as in [::1]:7000"));
  }
  result.port = static_cast<uint16_t>(port);
  return result;
}

std::string WithoutBrackets(const std::string& host) {
  if (host.size() <= 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

std::string JoinHostPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

bool OnThisHost(const std::string& address) {
  const absl::StatusOr<HostAndPort> parsed = SplitHostPort(address);
  if (!parsed.ok()) return false;
  if (parsed->host == "localhost" || parsed->host == "::1") return true;
  in_addr ip = {};
  return inet_pton(AF_INET, parsed->host.c_str(), &ip) == 1 && (ntohl(ip.s_addr) >> 24) == 127;
}

absl::StatusOr<std::vector<std::string>> SplitAddresses(const std::string& list) {
  std::vector<std::string> addresses = absl::StrSplit(list, ',');
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (absl::Status parsed = SplitHostPort(addresses[i]).status(); !parsed.ok()) return parsed;
    if (std::find(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(i),
                  addresses[i]) != addresses.begin() + static_cast<std::ptrdiff_t>(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", list, "' names ", addresses[i], " twice; name each address once"));
    }
  }
  return addresses;
}

}  // namespace verbena
