#include "server/control/control_port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"
#include "server/access/audit_log.h"
#include "server/control/address.h"
#include "spdlog/spdlog.h"

namespace verbena::server {
namespace {

constexpr size_t kFewestConnections = 16;
// A turn takes a bounded number, so that connections that have ended are seen.
constexpr int kAcceptsAtOnce = 64;
constexpr int kPauseMs = 10;
// A connection that receives something is looked at once in that time.
constexpr int kLookEveryMs = 10;
constexpr uint32_t kReceives = EPOLLIN | EPOLLONESHOT;
constexpr size_t kMostPayers = 4096;
// Bytes that each connection may always send: enough for a handshake and a small call, however much
// its host has sent.
constexpr uint64_t kFreeBytes = 16'384;
// Tags of epoll: listeners by index, then the wake-up; connections by id from here.
constexpr uint64_t kWakeTag = 64;
constexpr uint64_t kFirstId = 128;

size_t MostByDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewestConnections;
  return std::clamp<size_t>(limit.rlim_cur / kDescriptorsPerConnection, kFewestConnections,
                            kMostControlConnections);
}

// As gRPC writes it: "ipv4:10.0.0.7:51234", "ipv6:%5B::1%5D:51234".
std::string PeerOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(v6.sin6_port));
}

// Listens on one address; no descriptor: errno has the reason.
rdma::UniqueFd ListenOn(const sockaddr* address, socklen_t size, int family) {
  rdma::UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1, zero = 0;
  if (!fd.valid()) return fd;
  // Accepted connections inherit TCP_NODELAY. A wildcard takes both families.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  if (bind(fd.get(), address, size) == 0 && listen(fd.get(), SOMAXCONN) == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

uint16_t PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

bool Watch(int epoll, int fd, uint32_t events, uint64_t tag, int operation = EPOLL_CTL_ADD) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

int64_t NowNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

absl::Status ControlPort::Bind(const std::string& host, uint16_t port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  // One socket for both families, where there are both.
  std::vector<std::string> hosts = {host};
  if (IsWildcard(host)) hosts = {"::", "0.0.0.0"};
  absl::Status status = absl::UnavailableError("no address");
  for (const std::string& name : hosts) {
    if (!listeners_.empty()) break;
    if (const int error = getaddrinfo(name.c_str(), absl::StrCat(port).c_str(), &hints, &found)) {
      status = absl::UnavailableError(gai_strerror(error));
      continue;
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      if (listeners_.size() == kWakeTag) break;
      // All addresses of a name have one port.
      sockaddr_storage address = {};
      std::copy_n(reinterpret_cast<const char*>(info->ai_addr), info->ai_addrlen,
                  reinterpret_cast<char*>(&address));
      in_port_t* at = info->ai_family == AF_INET6
                          ? &reinterpret_cast<sockaddr_in6&>(address).sin6_port
                          : &reinterpret_cast<sockaddr_in&>(address).sin_port;
      if (port_ != 0) *at = htons(port_);
      rdma::UniqueFd fd =
          ListenOn(reinterpret_cast<const sockaddr*>(&address), info->ai_addrlen, info->ai_family);
      if (!fd.valid()) {
        status = absl::UnavailableError(std::system_category().message(errno));
        continue;
      }
      port_ = PortOf(fd.get());
      listeners_.push_back(std::move(fd));
    }
  }
  return listeners_.empty() ? status : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ControlPort>> ControlPort::Listen(
    const std::string& address, const ControlPortOptions& options) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(address);
  if (!parsed.ok()) return parsed.status();
  if (absl::Status status = CheckCanListen(address); !status.ok()) return status;
  std::unique_ptr<ControlPort> port(new ControlPort);
  port->options_ = options;
  port->most_ = options.most != 0 ? options.most : MostByDescriptors();
  if (absl::Status bound = port->Bind(parsed->host, parsed->port); !bound.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", bound.message()));
  }
  port->epoll_ = rdma::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  port->wake_ = rdma::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool watched = port->epoll_.valid() && port->wake_.valid() &&
                 Watch(port->epoll_.get(), port->wake_.get(), EPOLLIN, kWakeTag);
  for (size_t i = 0; watched && i < port->listeners_.size(); ++i) {
    watched = Watch(port->epoll_.get(), port->listeners_[i].get(), EPOLLIN, i);
  }
  if (!watched) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", std::system_category().message(errno)));
  }
  return port;
}

ControlPort::ControlPort()
    : exhausted_log_([](const std::string& line) { spdlog::warn("{}", line); }),
      next_id_(kFirstId) {}
ControlPort::~ControlPort() { Stop(); }

absl::Status ControlPort::Serve(Take take) {
  take_ = std::move(take);
  absl::StatusOr<std::thread> thread = StartThread("that accepts connections", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void ControlPort::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  listeners_.clear();
}

size_t ControlPort::connections() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return connections_.size();
}

void ControlPort::Admitted(const std::string& peer, const std::string& caller) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return;
  Connection& connection = connections_.at(found->second);
  if (std::exchange(connection.admitted, true)) return;
  connection.payer = absl::StrCat("caller ", caller);
  Host& host = hosts_.at(connection.host);
  host.admitted.splice(host.admitted.end(), host.strange, connection.in_host);
}

void ControlPort::Run() {
  pthread_setname_np(pthread_self(), "vb-accept");
  std::array<epoll_event, 64> events = {};
  while (!stop_) {
    const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 active_.empty() ? -1 : kLookEveryMs);
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 < kFirstId) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = connections_.find(event.data.u64);
      if (found == connections_.end()) continue;
      if ((event.events & (EPOLLHUP | EPOLLERR)) != 0) {
        Forget(event.data.u64);
      } else if (Charge(&found->second)) {
        active_.push_back(event.data.u64);
      } else {
        End(event.data.u64, Budget::kControlBytes);
      }
    }
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag < kWakeTag) Accept(listeners_[tag].get());
    }
    Rearm();
  }
}

void ControlPort::Rearm() {
  if (active_.empty()) return;
  const int64_t now = NowNanos();
  if (now - looked_ns_ < int64_t{kLookEveryMs} * 1'000'000) return;
  looked_ns_ = now;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const uint64_t id : std::exchange(active_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    if (!Charge(&found->second)) {
      End(id, Budget::kControlBytes);
    } else {
      Watch(epoll_.get(), found->second.duplicate.get(), kReceives, id, EPOLL_CTL_MOD);
    }
  }
}

bool ControlPort::Charge(Connection* connection) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(connection->duplicate.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
    return true;
  const auto charged = [](uint64_t bytes) { return bytes - std::min(bytes, kFreeBytes); };
  const auto came =
      static_cast<double>(charged(info.tcpi_bytes_received) - charged(connection->received));
  connection->received = info.tcpi_bytes_received;
  const auto most =
      static_cast<double>(connection->admitted ? options_.caller_bytes : options_.strange_bytes);
  const int64_t now = NowNanos();
  if (bytes_.size() >= kMostPayers && !bytes_.contains(connection->payer)) bytes_.clear();
  Bytes& bytes = bytes_.try_emplace(connection->payer, Bytes{most, now}).first->second;
  const double seconds = static_cast<double>(now - bytes.at_ns) / 1e9;
  // A connection that sends too much is ended. A debt beyond a second's bytes would only keep
  // others out for long.
  bytes.left = std::max(std::min(most, bytes.left + seconds * most / 8) - came, -most / 8);
  bytes.at_ns = now;
  // The budget may have been used up by others, and the free bytes are for that.
  return came == 0 || bytes.left >= 0;
}

void ControlPort::Accept(int listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof(from);
    const int fd =
        accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Add(listener, fd, PeerOf(from));
      continue;
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    exhausted_log_.Write(
        absl::StrCat("control port: accept failed: ", std::system_category().message(errno),
                     "; the oldest connections give way (raise nofile: 'ulimit -n')"));
    // The listener stays readable: a connection makes room, once gRPC has seen its end.
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      EndOne();
    }
    poll(nullptr, 0, kPauseMs);
    return;
  }
}

void ControlPort::Add(int listener, int fd, const std::string& peer) {
  rdma::UniqueFd connection(fd);
  rdma::UniqueFd duplicate(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (connections_.size() >= most_ || !duplicate.valid()) {
      exhausted_log_.Write(absl::StrCat("control port: ", connections_.size(),
                                        " connections, at most ", most_,
                                        " by the limit of descriptors; the oldest give way (raise "
                                        "nofile: 'ulimit -n')"));
      EndOne();
    }
    const uint64_t id = next_id_++;
    // Its end is reported whatever is asked for (epoll_ctl(2)).
    if (!duplicate.valid() || !Watch(epoll_.get(), duplicate.get(), kReceives, id)) return;
    const std::string host = HostOf(peer);
    std::list<uint64_t>& of_host = hosts_[host].strange;
    of_host.push_back(id);
    connections_[id] = {.duplicate = std::move(duplicate),
                        .peer = peer,
                        .host = host,
                        .payer = host,
                        .in_host = std::prev(of_host.end())};
    by_peer_[peer] = id;
  }
  take_(listener, connection.release());
}

void ControlPort::Forget(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  // The port of a peer may be another connection's already.
  const auto of_peer = by_peer_.find(connection.peer);
  if (of_peer != by_peer_.end() && of_peer->second == id) by_peer_.erase(of_peer);
  const auto host = hosts_.find(connection.host);
  (connection.admitted ? host->second.admitted : host->second.strange).erase(connection.in_host);
  if (host->second.admitted.empty() && host->second.strange.empty()) hosts_.erase(host);
  connections_.erase(found);
}

void ControlPort::EndOne() {
  const std::list<uint64_t>* largest = nullptr;
  for (const auto of : {&Host::strange, &Host::admitted}) {
    for (const auto& [name, host] : hosts_) {
      const std::list<uint64_t>& ids = host.*of;
      if (!ids.empty() && (largest == nullptr || ids.size() > largest->size())) largest = &ids;
    }
    if (largest != nullptr) break;
  }
  if (largest == nullptr) return;
  End(largest->front(), Budget::kControlConnections);
}

void ControlPort::End(uint64_t id, Budget budget) {
  CountExceeded(budget);
  // gRPC sees the end, and closes its descriptor.
  shutdown(connections_.at(id).duplicate.get(), SHUT_RDWR);
  Forget(id);
}

}  // namespace verbena::server
