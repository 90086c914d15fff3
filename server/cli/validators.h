// Checks of option values that the command lines share.
//
// **Thread safety**: pure functions. Errors have the given text and the allowed values.
#ifndef VERBENA_SERVER_CLI_VALIDATORS_H_
#define VERBENA_SERVER_CLI_VALIDATORS_H_

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/host_port.h"
#include "proto/base/number_values.h"

namespace verbena::server {

using ::verbena::InRange;

inline CLI::Validator HostPort(bool port_required) {
  CLI::Validator check;
  check.description("HOST:PORT");
  check.operation([port_required](std::string& text) -> std::string {
    const absl::StatusOr<HostAndPort> parsed = SplitHostPort(text);
    if (parsed.ok()) return "";
    // A host alone: a name or an IPv4 address, or an IPv6 address, in brackets or not.
    const std::string host = WithoutBrackets(text);
    const bool name = !host.empty() && host.find(':') == std::string::npos;
    in6_addr ignored;
    if (!port_required && (name || inet_pton(AF_INET6, host.c_str(), &ignored) == 1)) return "";
    return std::string(parsed.status().message());
  });
  return check;
}

// One or several: "HOST:PORT,HOST:PORT".
inline CLI::Validator HostPorts() {
  CLI::Validator check;
  check.description("HOST:PORT[,...]");
  check.operation([](std::string& text) -> std::string {
    return std::string(SplitAddresses(text).status().message());
  });
  return check;
}

inline CLI::Validator NotEmpty(const char* allowed) {
  CLI::Validator check;
  check.description("");
  check.operation([allowed](std::string& text) -> std::string {
    return text.empty() ? absl::StrCat("'' is not allowed: ", allowed) : "";
  });
  return check;
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CLI_VALIDATORS_H_
