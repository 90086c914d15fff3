// The control plane's port, without gRPC behind it.
#include "server/control/control_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/process.h"

namespace verbena::server {
namespace {

using test::Eventually;

// Takes connections as gRPC does: reads them, and closes those that have ended.
class Taker {
 public:
  ControlPort::Take Take() {
    return [this](int, int connection) {
      const std::lock_guard<std::mutex> lock(mutex_);
      taken_.emplace_back(connection);
    };
  }
  void CloseEnded() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(taken_, [](const rdma::UniqueFd& fd) {
      char byte = 0;
      if (recv(fd.get(), &byte, 1, MSG_DONTWAIT) != 0) return false;
      shutdown(fd.get(), SHUT_RDWR);
      return true;
    });
  }
  void Read() {
    const std::lock_guard<std::mutex> lock(mutex_);
    char part[65536];
    for (const rdma::UniqueFd& fd : taken_) {
      while (recv(fd.get(), part, sizeof(part), MSG_DONTWAIT) > 0) {
      }
    }
  }
  size_t taken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<rdma::UniqueFd> taken_;
};

// From an address of this host's, 127.0.0.HOST.
rdma::UniqueFd ConnectFrom(int host, uint16_t port) {
  rdma::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(0x7f000000 + static_cast<uint32_t>(host));
  REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

std::string PeerOf(const rdma::UniqueFd& fd, int host) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return absl::StrCat("ipv4:127.0.0.", host, ":", ntohs(address.sin_port));
}

bool Ended(const rdma::UniqueFd& fd) {
  pollfd p = {fd.get(), POLLRDHUP, 0};
  return poll(&p, 1, 0) == 1;
}

TEST_CASE("a new connection ends the oldest of the host that has most, admitted ones last") {
  Taker taker;
  auto port = ControlPort::Listen("127.0.0.1:0", {.most = 8});
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  std::vector<rdma::UniqueFd> many, few;
  const auto connect = [&](std::vector<rdma::UniqueFd>* to, int host) {
    const size_t before = (*port)->connections();
    to->push_back(ConnectFrom(host, (*port)->port()));
    REQUIRE(Eventually([&] {
      taker.CloseEnded();
      return (*port)->connections() > before || before == 8;
    }));
  };
  for (int i = 0; i < 2; ++i) connect(&few, 2);
  for (int i = 0; i < 6; ++i) connect(&many, 3);
  // The oldest of many is one that calls.
  (*port)->Admitted(PeerOf(many[0], 3), "token a");
  connect(&few, 2);
  CHECK(Eventually([&] { return Ended(many[1]); }));
  CHECK_FALSE(Ended(many[0]));
  CHECK_FALSE(Ended(few[0]));
  // Where all are admitted the oldest of the host that has most gives way all the same.
  for (size_t i = 0; i < many.size(); ++i) (*port)->Admitted(PeerOf(many[i], 3), "token a");
  for (const rdma::UniqueFd& fd : few) (*port)->Admitted(PeerOf(fd, 2), "token b");
  connect(&few, 2);
  CHECK(Eventually([&] { return Ended(many[0]); }));
  CHECK((*port)->connections() == 8);
  // Connections that gRPC closes make room.
  many.clear();
  CHECK(Eventually([&] {
    taker.CloseEnded();
    return (*port)->connections() == 4;
  }));
}

TEST_CASE("the control port goes on accepting after it had no free descriptors") {
  Taker taker;
  auto port = ControlPort::Listen("127.0.0.1:0", {.most = 1000});
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit little = {64, before.rlim_max};
  std::vector<rdma::UniqueFd> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(ConnectFrom(1, (*port)->port()));
  REQUIRE(Eventually([&] { return taker.taken() == 20; }));
  std::vector<rdma::UniqueFd> more;
  for (int i = 0; i < 50; ++i) {
    more.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  // The next connections wait in the backlog: this process has no descriptor to accept them with.
  setrlimit(RLIMIT_NOFILE, &little);
  for (const rdma::UniqueFd& fd : more) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((*port)->port());
    connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  CHECK(Eventually([&] { return Ended(clients[0]); }));  // it has given way
  clients.clear();
  more.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(Eventually([&] {
    taker.CloseEnded();
    return taker.taken() == 0 && (*port)->connections() == 0;
  }));
  clients.push_back(ConnectFrom(1, (*port)->port()));
  CHECK(Eventually([&] { return taker.taken() == 1; }));
}

TEST_CASE("a connection that receives more than its host or caller may is ended") {
  Taker taker;
  auto port =
      ControlPort::Listen("127.0.0.1:0", {.strange_bytes = 1 << 20, .caller_bytes = 4 << 20});
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  // How much is taken until the end.
  const auto flood = [&](const rdma::UniqueFd& fd) {
    const std::string part(65536, 'x');
    size_t sent = 0;
    while (!Ended(fd) && sent < (512 << 20)) {
      const ssize_t wrote = send(fd.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (wrote > 0) sent += static_cast<size_t>(wrote);
      taker.Read();
    }
    return sent;
  };
  const rdma::UniqueFd strange = ConnectFrom(2, (*port)->port());
  const rdma::UniqueFd known = ConnectFrom(3, (*port)->port());
  const rdma::UniqueFd quiet = ConnectFrom(4, (*port)->port());
  REQUIRE(Eventually([&] { return (*port)->connections() == 3; }));
  (*port)->Admitted(PeerOf(known, 3), "token a");
  const size_t by_stranger = flood(strange), by_known = flood(known);
  INFO(by_stranger << " and " << by_known << " bytes");
  CHECK(by_stranger >= size_t{1} << 20);
  CHECK(by_known >= size_t{4} << 20);
  CHECK(by_known < size_t{512} << 20);
  CHECK_FALSE(Ended(quiet));
}

TEST_CASE("regression: excess bytes from a host do not end its other, modest connections") {
  Taker taker;
  auto port = ControlPort::Listen("127.0.0.1:0", {.strange_bytes = 1 << 20});
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  const rdma::UniqueFd before = ConnectFrom(2, (*port)->port());
  const std::string part(65536, 'x');
  for (int i = 0; i < 5; ++i) {
    const rdma::UniqueFd flooding = ConnectFrom(2, (*port)->port());
    REQUIRE(Eventually([&] {
      send(flooding.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      taker.Read();
      return Ended(flooding);
    }));
  }
  const rdma::UniqueFd later = ConnectFrom(2, (*port)->port());
  for (int i = 0; i < 20; ++i) {
    for (const rdma::UniqueFd* fd : {&before, &later}) {
      send(fd->get(), part.data(), 200, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    poll(nullptr, 0, 15);  // each time the port looks
    REQUIRE_FALSE(Ended(before));
    REQUIRE_FALSE(Ended(later));
  }
}

TEST_CASE("regression: a host may connect again soon after it sent excess bytes") {
  Taker taker;
  auto port = ControlPort::Listen("127.0.0.1:0", {.strange_bytes = 1 << 20});
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  const std::string part(65536, 'x');
  // Each sends as much as it can before the port looks.
  for (int i = 0; i < 40; ++i) {
    const rdma::UniqueFd flooding = ConnectFrom(2, (*port)->port());
    REQUIRE(Eventually([&] {
      send(flooding.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      taker.Read();
      return Ended(flooding);
    }));
  }
  poll(nullptr, 0, 2000);
  // More than the bytes that count for nothing.
  const rdma::UniqueFd later = ConnectFrom(2, (*port)->port());
  for (int i = 0; i < 10; ++i) {
    send(later.get(), part.data(), 4096, MSG_NOSIGNAL | MSG_DONTWAIT);
    taker.Read();
    poll(nullptr, 0, 15);
    REQUIRE_FALSE(Ended(later));
  }
}

TEST_CASE("the control port listens on the given address, or gives an error") {
  Taker taker;
  auto port = ControlPort::Listen("0.0.0.0:0");
  REQUIRE(port.ok());
  REQUIRE((*port)->Serve(taker.Take()).ok());
  const rdma::UniqueFd client = ConnectFrom(4, (*port)->port());
  CHECK(Eventually([&] { return taker.taken() == 1; }));
  const absl::Status taken =
      ControlPort::Listen(absl::StrCat("127.0.0.1:", (*port)->port())).status();
  CHECK_THAT(std::string(taken.message()), Catch::Matchers::Contains("address already in use"));
}

}  // namespace
}  // namespace verbena::server
