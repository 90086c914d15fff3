// Hostile connections: silent, half spoken, flooded, not read.
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/host_port.h"
#include "rdma/shm/shm_socket.h"
#include "tests/faults/hostile_peer.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

constexpr size_t kMostHeld = 600;

void Write(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t sent =
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

int HostilePeer::Tcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return -1;
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return -1;
  }
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    close(fd);
    fd = -1;
  }
  freeaddrinfo(found);
  pollfd ready{fd, POLLOUT, 0};
  if (fd >= 0) poll(&ready, 1, 200);
  return fd;
}

void HostilePeer::Connect() {
  std::vector<std::string> targets = options_.controls;
  targets.insert(targets.end(), options_.metrics.begin(), options_.metrics.end());
  const std::string target = draw_.Of(targets);
  for (uint64_t i = draw_.Between(1, 200); i > 0; --i) {
    const int fd = Tcp(target);
    if (fd < 0) break;
    held_.push_back(fd);
    if (draw_.OneIn(3)) Write(fd, StrangeText().substr(0, 100));
  }
  Hold(absl::ZeroDuration(), absl::Milliseconds(300));
  if (held_.size() < kMostHeld && draw_.OneIn(2)) return;
  for (const int fd : held_) close(fd);
  held_.clear();
}

void HostilePeer::HalfHttp() {
  const std::string target = draw_.Of(options_.metrics);
  std::vector<int> fds;
  for (uint64_t i = draw_.Between(1, 100); i > 0; --i) {
    const int fd = Tcp(target);
    if (fd < 0) break;
    fds.push_back(fd);
    Write(fd,
          draw_.Of<std::string>({"GET /metr", "GET /healthz HTTP/1.1\r\nHost: x\r\n",
                                 "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                                 "GET /" + std::string(20000, 'a'), "\r\n\r\n", "\x16\x03\x01"}));
  }
  Hold(absl::ZeroDuration(), absl::Milliseconds(500));
  for (const int fd : fds) close(fd);
}

void HostilePeer::SlowScrape() {
  const std::string target = draw_.Of(options_.metrics);
  std::vector<int> fds;
  for (uint64_t i = draw_.Between(1, 60); i > 0; --i) {
    const int fd = Tcp(target);
    if (fd < 0) break;
    const int small = 2048;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    fds.push_back(fd);
    Write(fd, draw_.OneIn(3) ? "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
                             : "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  Hold(absl::ZeroDuration(), absl::Milliseconds(1000));
  for (const int fd : fds) close(fd);
}

void HostilePeer::HalfCalls() {
  const std::string token = AnyToken();
  const std::string bearer = token.empty() || draw_.OneIn(3) ? "" : ReadFile(token).substr(0, 60);
  Http2Peer peer(AnyControl());
  const std::string method = draw_.Of<std::string>(
      {"/verbena.v1.Cluster/JoinWorker", "/verbena.v1.Cluster/CreateTable",
       "/verbena.v1.Shard/OpenLane", "/grpc.health.v1.Health/Check", "/no.such/Method",
       "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"});
  for (uint64_t i = draw_.Between(1, 50); i > 0; --i) {
    peer.Call(method, draw_.Of<uint32_t>({1, 1000, 60 << 20, UINT32_MAX}), bearer);
  }
  peer.Flood(std::chrono::milliseconds(draw_.Between(10, 1500)));
}

void HostilePeer::Garbage() {
  std::vector<int> fds;
  for (uint64_t i = draw_.Between(1, 20); i > 0; --i) {
    const int fd = Tcp(AnyControl());
    if (fd < 0) break;
    fds.push_back(fd);
    std::string bytes = draw_.OneIn(2) ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    if (draw_.OneIn(2)) bytes += std::string("\0\0\0\4\0\0\0\0\0", 9);  // SETTINGS
    for (uint64_t n = draw_.Between(0, 5000); n > 0; --n) {
      bytes += static_cast<char>(draw_.Between(0, 255));
    }
    // A flood of PING, SETTINGS or RST_STREAM frames.
    const char type = draw_.Of<char>({6, 4, 3});
    for (uint64_t n = draw_.Between(0, 3000); n > 0; --n) {
      bytes += std::string("\0\0", 2) + static_cast<char>(type == 6 ? 8 : type == 3 ? 4 : 0) + type;
      bytes += std::string("\0\0\0\0\0", 4) + static_cast<char>(type == 3 ? 1 : 0);
      bytes += std::string(type == 6 ? 8 : type == 3 ? 4 : 0, '\0');
    }
    Write(fd, bytes);
  }
  Hold(absl::ZeroDuration(), absl::Milliseconds(300));
  for (const int fd : fds) close(fd);
}

// Asks for much and reads nothing.
void HostilePeer::SlowReader() {
  const std::string token = AnyToken();
  const std::string bearer = token.empty() ? "" : ReadFile(token).substr(0, 60);
  Http2Peer peer(AnyControl());
  const std::string method =
      draw_.Of<std::string>({"/verbena.v1.Cluster/GetView", "/verbena.v1.Shard/GetStatistics",
                             "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"});
  for (uint64_t i = draw_.Between(1, 400); i > 0; --i) peer.CallWhole(method, bearer);
  Hold(absl::Milliseconds(100), absl::Milliseconds(1500));
}

void HostilePeer::HalfLanes() {
  for (uint64_t i = draw_.Between(1, 10); i > 0 && absl::Now() < end_; --i) {
    v1::OpenLaneResponse lane;
    if (!OpenLane(&lane)) continue;
    Count(absl::StrCat("over ", lane.transport()));
    const std::string hello = draw_.OneIn(2) ? lane.token() + std::string(16, '\1') : RequestId();
    if (lane.transport() == "shm") {
      auto fd = rdma::ShmConnect(lane.address());
      if (!fd.ok()) continue;
      rdma::ShmMessage message;
      message.type = static_cast<rdma::ShmMessageType>(draw_.Between(0, 8));
      message.ring_entries = static_cast<uint32_t>(draw_.Between(0, 1 << 17));
      message.set_text(hello);
      const int fds[] = {fd->get(), fd->get(), fd->get()};
      for (uint64_t n = draw_.Between(0, 3); n > 0; --n) {
        (void)rdma::ShmSend(fd->get(), message, absl::MakeSpan(fds, draw_.Between(0, 3)));
      }
      held_.push_back(dup(fd->get()));
      continue;
    }
    for (uint64_t n = draw_.Between(1, 300); n > 0; --n) {
      const int fd = Tcp(lane.address());
      if (fd < 0) break;
      held_.push_back(fd);
      if (draw_.OneIn(2)) Write(fd, draw_.OneIn(2) ? hello : std::string(600, 'x'));
    }
  }
  Hold(absl::ZeroDuration(), absl::Milliseconds(500));
  if (held_.size() < kMostHeld && draw_.OneIn(2)) return;
  for (const int fd : held_) close(fd);
  held_.clear();
}

}  // namespace verbena::test
