#include "server/control/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "rdma/base/unique_fd.h"

namespace verbena::server {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostAndPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("host ", address.host, ": ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

}  // namespace

std::string ErrnoText(int error) {
  std::string text = std::strerror(error);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

absl::StatusOr<std::vector<sockaddr_storage>> ResolveAll(const HostAndPort& address) {
  absl::StatusOr<AddressList> found = Resolve(address);
  if (!found.ok()) return found.status();
  std::vector<sockaddr_storage> all;
  for (const addrinfo* info = found->get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    std::memcpy(&all.emplace_back(), info->ai_addr, info->ai_addrlen);
  }
  return all;
}

absl::StatusOr<std::vector<sockaddr_storage>> WildcardAddresses(uint16_t port) {
  std::vector<sockaddr_storage> all;
  for (const char* host : {"::", "0.0.0.0"}) {
    absl::StatusOr<std::vector<sockaddr_storage>> found = ResolveAll({host, port});
    if (found.ok()) all.insert(all.end(), found->begin(), found->end());
  }
  if (all.empty()) return absl::NotFoundError("this host has neither IPv6 nor IPv4");
  return all;
}

absl::StatusOr<std::string> ResolveNumeric(const std::string& host) {
  absl::StatusOr<AddressList> found = Resolve({host, 0});
  if (!found.ok()) return found.status();
  char text[NI_MAXHOST] = {};
  const int error = getnameinfo((*found)->ai_addr, (*found)->ai_addrlen, text, sizeof(text),
                                nullptr, 0, NI_NUMERICHOST);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("host ", host, ": ", gai_strerror(error)));
  }
  return std::string(text);
}

absl::Status CheckCanListen(const std::string& address) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(address);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<AddressList> found = Resolve(*parsed);
  if (!found.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", found.status().message()));
  }
  const addrinfo* info = found->get();
  const rdma::UniqueFd fd(socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  // As the servers do: connections of an earlier process in TIME_WAIT are no obstacle.
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || listen(fd.get(), 1) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", ErrnoText(errno)));
  }
  return absl::OkStatus();
}

bool IsLoopback(const std::string& host) {
  absl::StatusOr<AddressList> found = Resolve({host, 0});
  if (!found.ok()) return false;
  for (const addrinfo* info = found->get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(info->ai_addr);
      if (ntohl(v4->sin_addr.s_addr) >> 24 != 127) return false;
    } else if (info->ai_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(info->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) return false;
    }
  }
  return true;
}

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::" || host == "*";
}

}  // namespace verbena::server
