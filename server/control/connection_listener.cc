#include "server/control/connection_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/host_port.h"
#include "proto/threads.h"
#include "server/control/address.h"

namespace verbena::server {
namespace {

// Of the limit, for everything but control connections: lanes, files, /healthz.
constexpr uint64_t kMostReserved = 64;
// How often room is looked for while there is none.
constexpr int kLookMs = 100;
// Connections accepted before the other listeners have their turn.
constexpr int kPerTurn = 64;

uint64_t DescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur;
}

// New descriptors have the lowest number that is free, so the number says how many are in use.
bool IsReserved(int fd, uint64_t limit) {
  return static_cast<uint64_t>(fd) + std::min(limit / 8, kMostReserved) >= limit;
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetPort(uint16_t port, sockaddr_storage* address) {
  if (address->ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

// `both`: an IPv6 wildcard that takes IPv4, too. Invalid: see errno.
rdma::UniqueFd ListenOn(const sockaddr_storage& address, bool both) {
  const int one = 1, only_v6 = both ? 0 : 1;
  rdma::UniqueFd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const socklen_t size = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const bool listens =
      fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
      (address.ss_family != AF_INET6 ||
       setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6)) == 0) &&
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      listen(fd.get(), SOMAXCONN) == 0;
  if (!listens) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Open(
    const std::string& listen) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(listen);
  if (!parsed.ok()) return parsed.status();
  const bool wildcard = IsWildcard(parsed->host);
  absl::StatusOr<std::vector<sockaddr_storage>> addresses =
      wildcard ? WildcardAddresses(parsed->port) : ResolveAll(*parsed);
  if (!addresses.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, ": ", addresses.status().message()));
  }
  std::unique_ptr<ConnectionListener> result(new ConnectionListener);
  uint16_t port = parsed->port;
  int error = 0;
  for (sockaddr_storage& address : *addresses) {
    SetPort(port, &address);
    rdma::UniqueFd fd = ListenOn(address, wildcard);
    if (!fd.valid()) {
      error = errno;
      // A name may have an IPv6 address where the host has no IPv6.
      if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) continue;
      break;
    }
    socklen_t size = sizeof(address);
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      port = PortOf(address);
    }
    result->listeners_.push_back(std::move(fd));
    error = 0;
    // The IPv6 wildcard serves both.
    if (wildcard) break;
  }
  result->wake_ = rdma::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const bool skipped = error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
  if (result->listeners_.empty() || (error != 0 && !skipped) || !result->wake_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, ": ", ErrnoText(error != 0 ? error : errno)));
  }
  result->address_ = JoinHostPort(parsed->host, port);
  return result;
}

ConnectionListener::~ConnectionListener() { Stop(); }

absl::Status ConnectionListener::Start(Handler handler) {
  handler_ = std::move(handler);
  log_ = std::make_unique<PeerLog>([](const std::string& line) { spdlog::warn("{}", line); });
  absl::StatusOr<std::thread> started = StartThread("of the control port", [this] { Run(); });
  if (!started.ok()) return started.status();
  thread_ = *std::move(started);
  return absl::OkStatus();
}

void ConnectionListener::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  listeners_.clear();
}

absl::Status ConnectionListener::health() const {
  const uint64_t limit = exhausted_limit_.load(std::memory_order_relaxed);
  if (limit == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("control port: new connections are refused (the limit of ", limit,
                   " open descriptors is reached); raise it (ulimit -n, LimitNOFILE= of systemd)"));
}

void ConnectionListener::Run() {
  std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
  for (const rdma::UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
  while (!stopping()) {
    const bool exhausted = exhausted_limit_.load(std::memory_order_relaxed) != 0;
    poll(waits.data(), waits.size(), exhausted ? kLookMs : -1);
    if (exhausted) LookForRoom();
    for (size_t i = 1; i < waits.size() && !stopping(); ++i) {
      if (waits[i].revents != 0) Accept(waits[i].fd);
    }
  }
}

void ConnectionListener::Accept(int listener) {
  for (int i = 0; i < kPerTurn; ++i) {
    rdma::UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const uint64_t limit = DescriptorLimit();
    if (!fd.valid()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        Exhausted(limit);
        // The listener stays readable: without a pause this would be a busy loop.
        pollfd wake = {wake_.get(), POLLIN, 0};
        poll(&wake, 1, kLookMs);
        return;
      }
      continue;  // of the one connection: it has ended already
    }
    if (IsReserved(fd.get(), limit)) {
      Exhausted(limit);
      continue;
    }
    const int one = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    handler_(listener, std::move(fd));
  }
}

void ConnectionListener::Exhausted(uint64_t limit) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  if (exhausted_limit_.exchange(limit, std::memory_order_relaxed) != 0) return;
  log_->Write(std::string(health().message()));
}

void ConnectionListener::LookForRoom() {
  const rdma::UniqueFd probe(dup(wake_.get()));
  if (!probe.valid() || IsReserved(probe.get(), DescriptorLimit())) return;
  exhausted_limit_.store(0, std::memory_order_relaxed);
  log_->Write(absl::StrCat("control port: new connections are accepted again (", refused(),
                           " were refused since the start)"));
}

}  // namespace verbena::server
