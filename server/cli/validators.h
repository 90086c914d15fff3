// Checks of option values that the command lines of this room share.
//
// **Thread safety**: pure functions. Errors say what was given and what is allowed.
#ifndef VERBENA_SERVER_CLI_VALIDATORS_H_
#define VERBENA_SERVER_CLI_VALIDATORS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena::server {

inline CLI::Validator HostPort(bool port_required) {
  CLI::Validator check;
  check.description("HOST:PORT");
  check.operation([port_required](std::string& text) -> std::string {
    const size_t colon = text.rfind(':');
    uint32_t port = 0;
    const bool has_port =
        colon != std::string::npos && absl::SimpleAtoi(text.substr(colon + 1), &port);
    if (colon == 0 || text.empty() || (port_required && !has_port) || port > 65535) {
      return absl::StrCat("'", text, "' is not HOST:PORT with a port from 0 to 65535");
    }
    return "";
  });
  return check;
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CLI_VALIDATORS_H_
