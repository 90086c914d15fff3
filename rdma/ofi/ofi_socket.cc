#include "rdma/ofi/ofi_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/base/host_port.h"
#include "rdma/verbs/verbs_ports.h"

namespace verbena::rdma {
namespace {

absl::Status Errno(absl::StatusCode code, const std::string& what, int error) {
  return absl::Status(code,
                      absl::StrCat("ofi: ", what, ": ", strerror(error), " (errno ", error, ")"));
}

absl::StatusOr<SocketAddress> Parse(const std::string& text) {
  absl::StatusOr<SocketAddress> address = ParseVerbsAddress(text);
  if (address.ok()) return address;
  return absl::InvalidArgumentError(
      absl::StrCat("ofi: an address cannot be used: ", address.status().message()));
}

socklen_t LengthOf(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

absl::StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Errno(absl::StatusCode::kResourceExhausted, "socket", errno);
  return fd;
}

uint16_t Port(const sockaddr_storage& address) {
  // The port has the same offset in both address types.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SetOption(int fd, int level, int name, int64_t value) {
  const int number = static_cast<int>(std::clamp<int64_t>(value, 1, 1'000'000));
  (void)setsockopt(fd, level, name, &number, sizeof(number));
}

}  // namespace

absl::StatusOr<UniqueFd> OfiListen(const std::string& ip, uint16_t port, std::string* address) {
  const std::string wanted = JoinHostPort(ip, port);
  absl::StatusOr<SocketAddress> local = Parse(wanted);
  if (!local.ok()) return local.status();
  absl::StatusOr<UniqueFd> fd = NewSocket(local->storage.ss_family);
  if (!fd.ok()) return fd.status();
  if (port != 0) SetOption(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (bind(fd->get(), local->get(), LengthOf(*local)) != 0 || listen(fd->get(), SOMAXCONN) != 0 ||
      getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return Errno(absl::StatusCode::kUnavailable, absl::StrCat("cannot listen on ", wanted), errno);
  }
  *address = JoinHostPort(ip, Port(bound));
  return fd;
}

absl::StatusOr<UniqueFd> OfiConnect(const std::string& address, const std::string& local_ip) {
  absl::StatusOr<SocketAddress> peer = Parse(address);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<UniqueFd> fd = NewSocket(peer->storage.ss_family);
  if (!fd.ok()) return fd.status();
  SetOption(fd->get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (!local_ip.empty()) {
    absl::StatusOr<SocketAddress> local = Parse(JoinHostPort(local_ip, 0));
    if (!local.ok()) return local.status();
    // The port is selected on connect; bind() would reserve one for each connection.
    SetOption(fd->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(fd->get(), local->get(), LengthOf(*local)) != 0) {
      return Errno(absl::StatusCode::kUnavailable,
                   absl::StrCat("cannot connect from ", local_ip, " to ", address), errno);
    }
  }
  if (connect(fd->get(), peer->get(), LengthOf(*peer)) != 0 && errno != EINPROGRESS) {
    return Errno(absl::StatusCode::kUnavailable, absl::StrCat("connect to ", address), errno);
  }
  return fd;
}

void WatchForSilence(int fd, absl::Duration silence) {
  const int64_t ms = absl::ToInt64Milliseconds(silence);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // Probes start at a third of the time; TCP_USER_TIMEOUT ends them (tcp(7)).
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, ms / 3000);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, ms / 6000);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

absl::StatusOr<std::string> LocalAddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // Any port: connecting a datagram socket only looks up the route.
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("ofi: cannot find the address of ", host, ": ", gai_strerror(error)));
  }
  std::string local;
  for (const addrinfo* one = found; one != nullptr && local.empty(); one = one->ai_next) {
    UniqueFd fd(socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage name = {};
    socklen_t length = sizeof(name);
    if (fd.valid() && connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0) {
      local = IpText(*reinterpret_cast<const sockaddr*>(&name));
    }
  }
  freeaddrinfo(found);
  if (!local.empty()) return local;
  return absl::UnavailableError(absl::StrCat("ofi: there is no route to ", host));
}

bool IsAddressOfPeer(int fd, const std::string& name) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return false;
  if (peer.ss_family == AF_INET && name.size() == sizeof(sockaddr_in)) {
    sockaddr_in theirs;
    std::memcpy(&theirs, name.data(), sizeof(theirs));
    const auto& ours = reinterpret_cast<const sockaddr_in&>(peer);
    return theirs.sin_family == AF_INET && theirs.sin_addr.s_addr == ours.sin_addr.s_addr;
  }
  if (peer.ss_family == AF_INET6 && name.size() == sizeof(sockaddr_in6)) {
    sockaddr_in6 theirs;
    std::memcpy(&theirs, name.data(), sizeof(theirs));
    const auto& ours = reinterpret_cast<const sockaddr_in6&>(peer);
    return theirs.sin6_family == AF_INET6 &&
           std::memcmp(&theirs.sin6_addr, &ours.sin6_addr, sizeof(in6_addr)) == 0;
  }
  return false;
}

void OfiSocket::Send(const OfiMessage& message) {
  const OfiMessageBytes bytes = EncodeOfiMessage(message);
  out_.append(bytes.data(), bytes.size());
  Flush();
}

void OfiSocket::Flush() {
  while (!out_.empty() && fd_.valid()) {
    const ssize_t sent = send(fd_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return;  // not writable, or gone: the next Receive() returns the error
    out_.erase(0, static_cast<size_t>(sent));
  }
}

OfiSocket::Received OfiSocket::Receive(OfiMessage* message, absl::Status* why) {
  while (in_bytes_ < in_.size()) {
    const ssize_t bytes =
        recv(fd_.get(), in_.data() + in_bytes_, in_.size() - in_bytes_, MSG_DONTWAIT);
    if (bytes == 0) {
      *why = absl::UnavailableError("ofi: the peer closed the connection or is gone");
      return Received::kGone;
    }
    if (bytes < 0) {
      // ENOTCONN: still connecting.
      if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN) return Received::kNothing;
      *why = Errno(absl::StatusCode::kUnavailable, "the connection to the peer", errno);
      return Received::kGone;
    }
    in_bytes_ += static_cast<size_t>(bytes);
  }
  in_bytes_ = 0;
  absl::StatusOr<OfiMessage> decoded = DecodeOfiMessage({in_.data(), in_.size()});
  if (!decoded.ok()) {
    *why = decoded.status();
    return Received::kMalformed;
  }
  *message = *std::move(decoded);
  return Received::kMessage;
}

}  // namespace verbena::rdma
