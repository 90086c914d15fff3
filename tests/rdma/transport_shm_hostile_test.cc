// shm against a peer that breaks the rules: its connection is refused or lost, nothing else.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "rdma/shm/shared_pages.h"
#include "rdma/shm/shm_endpoint.h"
#include "rdma/shm/shm_ring.h"
#include "rdma/shm/shm_socket.h"
#include "rdma/shm/sigbus_guard.h"
#include "tests/rdma/transport_shm.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd Memfd(size_t bytes, int seals) {
  UniqueFd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

// A peer that speaks the protocol by hand.
struct RawPeer {
  UniqueFd ring = Memfd(4096, kSeals);
  UniqueFd state = Memfd(4096, kSeals);
  UniqueFd wake{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  UniqueFd socket;
  ShmMessage hello;

  explicit RawPeer(const std::string& address) : socket(ShmConnect(address).value()) {
    hello.ring_entries = 8;
  }
  void SayHello() const {
    const int fds[] = {ring.get(), state.get(), wake.get()};
    REQUIRE(ShmSend(socket.get(), hello, fds).ok());
  }
  // The next message, its descriptors in *fds; or how it ended.
  ShmReceived Next(Stage* stage, ShmMessage* message, std::vector<UniqueFd>* fds) const {
    ShmReceived got = ShmReceived::kNothing;
    (void)stage->Until([&] {
      got = ShmReceive(socket.get(), message, fds);
      return got != ShmReceived::kNothing;
    });
    return got;
  }
};

struct Listener {
  Stage stage{Shm()};
  Party& server = stage.Add("server");
  std::string address = server.endpoint->Listen().value();

  void ExpectRefused(const RawPeer& peer, const std::string& why) {
    ShmMessage message;
    std::vector<UniqueFd> fds;
    REQUIRE(peer.Next(&stage, &message, &fds) == ShmReceived::kMessage);
    CHECK(message.type == ShmMessageType::kReject);
    INFO(message.text());
    CHECK(message.text().find(why) != std::string::npos);
    CHECK(peer.Next(&stage, &message, &fds) == ShmReceived::kGone);
    CHECK(server.events.empty());
  }
  // The request is there and accepted; the peer has the server's ring.
  ConnectionId ExpectAccepted(const RawPeer& peer, std::unique_ptr<ForeignPages>* ring) {
    REQUIRE(stage.Until([&] { return server.Find(Kind::kRequest) != nullptr; }));
    const ConnectionId s = server.Find(Kind::kRequest)->connection;
    REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
    REQUIRE(server.endpoint->PostReceives(s, 1).ok());
    REQUIRE(server.endpoint->Accept(s).ok());
    ShmMessage message;
    std::vector<UniqueFd> fds;
    REQUIRE(peer.Next(&stage, &message, &fds) == ShmReceived::kMessage);
    REQUIRE(message.type == ShmMessageType::kAccept);
    REQUIRE(fds.size() == 3);
    // Its state page cannot be mapped writable by anybody else.
    CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1].get(), 0) == MAP_FAILED);
    *ring = ForeignPages::Map(fds[0].get(), 0, 128 + 4 * 8, true, "ring").value();
    return s;
  }
  // A well-behaved pair still works beside it.
  void ExpectHealthy() {
    Party& client = stage.Add("client");
    const ConnectionId c = client.endpoint->Create({4, 4}).value();
    const size_t seen = server.events.size();
    REQUIRE(client.endpoint->Connect(c, address, "well-behaved").ok());
    REQUIRE(stage.Until([&] { return server.events.size() > seen; }));
    const ConnectionId s = server.events[seen].connection;
    REQUIRE(server.endpoint->Prepare(s, {4, 4}).ok());
    REQUIRE(server.endpoint->Accept(s).ok());
    CHECK(stage.Until([&] { return client.Count(Kind::kEstablished, c) == 1; }));
  }
};

TEST_CASE("a memfd that is not sealed is refused, and so is one that is too small") {
  Listener listener;
  RawPeer peer(listener.address);
  SECTION("ring unsealed") {
    peer.ring = Memfd(4096, 0);
    peer.SayHello();
    listener.ExpectRefused(peer, "ring of the peer is not sealed");
  }
  SECTION("ring without the last seal") {
    peer.ring = Memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW);
    peer.SayHello();
    listener.ExpectRefused(peer, "not sealed");
  }
  SECTION("ring too small") {
    peer.hello.ring_entries = 1024;
    peer.SayHello();
    listener.ExpectRefused(peer, "has 4096 bytes");
  }
  SECTION("state page unsealed") {
    peer.state = Memfd(4096, 0);
    peer.SayHello();
    listener.ExpectRefused(peer, "state page");
  }
  SECTION("state page empty") {
    peer.state = Memfd(0, kSeals);
    peer.SayHello();
    listener.ExpectRefused(peer, "state page");
  }
  SECTION("ring is no memfd") {
    peer.ring = UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    peer.SayHello();
    listener.ExpectRefused(peer, "no memfd");
  }
  SECTION("wake-up descriptor is a pipe") {
    int ends[2];
    REQUIRE(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0);
    close(ends[0]);
    peer.wake = UniqueFd(ends[1]);
    peer.SayHello();
    listener.ExpectRefused(peer, "no eventfd");
  }
  SECTION("another version") {
    peer.hello.version = 9;
    peer.SayHello();
    listener.ExpectRefused(peer, "version 9");
  }
  listener.ExpectHealthy();
}

TEST_CASE("exposing memory that could be made to fault ends the connection") {
  Listener listener;
  RawPeer peer(listener.address);
  peer.SayHello();
  std::unique_ptr<ForeignPages> ring;
  const ConnectionId s = listener.ExpectAccepted(peer, &ring);
  ShmMessage expose;
  expose.type = ShmMessageType::kExpose;
  expose.key = 1;
  expose.address = 1 << 20;
  expose.bytes = 8192;
  UniqueFd memory = Memfd(8192, 0);
  SECTION("unsealed") {}
  SECTION("shorter than announced") { memory = Memfd(4096, kSeals); }
  SECTION("offset beyond the end") {
    memory = Memfd(8192, kSeals);
    expose.offset = ~uint64_t{0} - 100;
  }
  SECTION("addresses that overflow") {
    memory = Memfd(8192, kSeals);
    expose.address = ~uint64_t{0} - 100;
  }
  const int fd = memory.get();
  REQUIRE(ShmSend(peer.socket.get(), expose, absl::MakeConstSpan(&fd, 1)).ok());
  CHECK(listener.stage.Until([&] { return listener.server.Count(Kind::kLost, s) == 1; }));
  listener.ExpectHealthy();
}

TEST_CASE("garbage on the listener's socket is dropped without an event") {
  Listener listener;
  const int kind = GENERATE(range(0, 5));
  UniqueFd socket = ShmConnect(listener.address).value();
  const std::string junk(100'000, 'x');
  if (kind == 0) REQUIRE(send(socket.get(), junk.data(), 10, 0) == 10);
  if (kind == 1) REQUIRE(send(socket.get(), junk.data(), sizeof(ShmMessage), 0) > 0);
  if (kind == 2) REQUIRE(send(socket.get(), junk.data(), junk.size(), 0) > 0);
  if (kind == 3) REQUIRE(send(socket.get(), "", 0, 0) == 0);
  if (kind == 4) {
    ShmMessage accept;  // a message that has no place here
    accept.type = ShmMessageType::kAccept;
    REQUIRE(ShmSend(socket.get(), accept, {}).ok());
  }
  // It is hung up on.
  CHECK(listener.stage.Until([&] {
    pollfd p = {socket.get(), POLLRDHUP, 0};
    return poll(&p, 1, 0) == 1;
  }));
  CHECK(listener.server.events.empty());
  listener.ExpectHealthy();
}

TEST_CASE("a peer that connects and sends nothing is dropped") {
  ShmOptions options;
  options.connect_timeout = absl::Milliseconds(10);
  Party server;
  server.endpoint = NewShmEndpoint(options).value();
  UniqueFd socket = ShmConnect(server.endpoint->Listen().value()).value();
  pollfd p = {socket.get(), POLLRDHUP, 0};
  while (poll(&p, 1, 0) == 0) server.PollEvents();
  CHECK(server.events.empty());
}

TEST_CASE("shm: many silent connections do not keep peers out") {
  Listener listener;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(ShmConnect(listener.address).value());
    if (i % 50 == 0) listener.stage.Until([&] { return true; });
  }
  listener.ExpectHealthy();
  int ended = 0;
  for (const UniqueFd& one : silent) {
    pollfd p = {one.get(), POLLRDHUP, 0};
    ended += poll(&p, 1, 0) == 1 ? 1 : 0;
  }
  CHECK(ended > 40);  // of the oldest
  CHECK(ended < 60);
}

TEST_CASE("an entry for a receive that is not posted ends the connection") {
  Listener listener;
  RawPeer peer(listener.address);
  peer.SayHello();
  std::unique_ptr<ForeignPages> pages;
  const ConnectionId s = listener.ExpectAccepted(peer, &pages);
  auto* ring = reinterpret_cast<ShmRing*>(pages->data());
  ring->posted.store(1'000'000, std::memory_order_release);  // its owner ignores it
  for (uint32_t i = 0; i < 4; ++i) {
    ring->entries()[i].store(PackEntry(i + 1, i), std::memory_order_release);
  }
  REQUIRE(listener.stage.Until([&] { return listener.server.Count(Kind::kLost, s) == 1; }));
  CHECK(listener.server.Immediates(s) == std::vector<uint32_t>{0});
  listener.ExpectHealthy();
}

TEST_CASE("entries out of order are ignored") {
  Listener listener;
  RawPeer peer(listener.address);
  peer.SayHello();
  std::unique_ptr<ForeignPages> pages;
  const ConnectionId s = listener.ExpectAccepted(peer, &pages);
  auto* ring = reinterpret_cast<ShmRing*>(pages->data());
  for (uint32_t i = 0; i < 4; ++i) {
    ring->entries()[i].store(PackEntry(i + 2, i), std::memory_order_release);
  }
  listener.stage.Settle();
  CHECK(listener.server.Receives(s).empty());
}

TEST_CASE("invalid messages end an established connection") {
  Listener listener;
  RawPeer peer(listener.address);
  peer.SayHello();
  std::unique_ptr<ForeignPages> ring;
  const ConnectionId s = listener.ExpectAccepted(peer, &ring);
  SECTION("empty") { REQUIRE(send(peer.socket.get(), "", 0, 0) == 0); }
  SECTION("a second hello") { peer.SayHello(); }
  SECTION("of an unknown type") {
    peer.hello.type = static_cast<ShmMessageType>(99);
    REQUIRE(ShmSend(peer.socket.get(), peer.hello, {}).ok());
  }
  REQUIRE(listener.stage.Until([&] { return listener.server.Count(Kind::kLost, s) == 1; }));
  // It has hung up, but the peer has not: its mapping may still be there.
  CHECK_FALSE(listener.server.endpoint->Dead(s));
  peer.socket.reset();
  CHECK(listener.stage.Until([&] { return listener.server.endpoint->Dead(s); }));
}

TEST_CASE("a peer cannot shrink memory that it received, and holes that it punches are harmless") {
  Stage stage(Shm());
  Pair pair(&stage, {.server_receives = 2});
  REQUIRE(pair.established);
  const int fd = dup(pair.server_block->fd());  // the descriptor of a peer
  CHECK(ftruncate(fd, 0) != 0);
  CHECK(errno == EPERM);
  REQUIRE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 65536) == 0);
  close(fd);
  FillPattern(*pair.client_block, 0, 65536, 3);
  REQUIRE(pair.Push(0, 65536, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(HasPattern(*pair.server_block, 0, 65536, 3));
}

TEST_CASE("borrowed memory and its owner's connection stay until the memory is returned") {
  Stage stage(Shm());
  Pair pair(&stage, {.client_receives = 1, .server_receives = 2});
  REQUIRE(pair.established);
  FillPattern(*pair.client_block, 0, 65536, 3);
  REQUIRE(pair.Push(0, 0, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  Borrowed borrowed = pair.server.endpoint->Borrow(pair.s, pair.client_memory, 65536).value();
  CHECK(std::memcmp(borrowed.bytes.data(), pair.client_block->data(), 65536) == 0);
  CHECK_FALSE(pair.server.endpoint->Borrow(pair.s, pair.client_memory, 65537).ok());
  SECTION("its owner closes") { pair.client.endpoint->Close(pair.c); }
  SECTION("the borrower closes") { pair.server.endpoint->Close(pair.s); }
  stage.Settle();
  CHECK_FALSE(pair.client.endpoint->Dead(pair.c));
  CHECK(std::memcmp(borrowed.bytes.data(), pair.client_block->data(), 65536) == 0);
  borrowed = {};
  // Also when the borrower was about to sleep.
  CHECK(stage.Until([&] {
    if (pair.server.endpoint->Arm(SleepUntil::kAnything)) pair.server.endpoint->Disarm();
    pair.server.PollEvents();
    pair.client.PollEvents();
    pair.client.endpoint->Close(pair.c);
    return pair.client.endpoint->Dead(pair.c);
  }));
  CHECK(stage.Until([&] { return pair.server.endpoint->Dead(pair.s); }));
}

TEST_CASE("a fault in a guarded range reads as zeros and marks it") {
  UniqueFd fd = Memfd(8192, 0);
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  void* other = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  REQUIRE(other != MAP_FAILED);
  {
    const SigbusGuard guard(mapped, 8192);
    const SigbusGuard unharmed(other, 8192);
    auto* data = static_cast<volatile char*>(mapped);
    data[5000] = 7;
    CHECK_FALSE(guard.poisoned());
    REQUIRE(ftruncate(fd.get(), 0) == 0);
    errno = 42;
    CHECK(data[5000] == 0);
    CHECK(errno == 42);
    CHECK(guard.poisoned());
    CHECK_FALSE(unharmed.poisoned());
    data[0] = 1;  // and goes on being memory
    CHECK(data[0] == 1);
  }
  // The entry is clean for its next user.
  REQUIRE(ftruncate(fd.get(), 8192) == 0);
  munmap(mapped, 8192);
  const SigbusGuard again(other, 8192);
  CHECK_FALSE(again.poisoned());
  munmap(other, 8192);
}

TEST_CASE("a fault anywhere else still ends the process") {
  UniqueFd fd = Memfd(4096, 0);
  void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  void* guarded = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(guarded != MAP_FAILED);
  const SigbusGuard guard(guarded, 4096);
  REQUIRE(ftruncate(fd.get(), 0) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Not the test framework's own handlers, which would report a failed test.
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    const char value = *static_cast<volatile char*>(mapped);
    _exit(value);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  munmap(mapped, 4096);
  munmap(guarded, 4096);
}

TEST_CASE("a listener without free descriptors drops new connections and uses no processor") {
  Listener listener;
  Party& client = listener.stage.Add("client");
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  std::vector<UniqueFd> all;
  rlimit limit = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  rlimit low = limit;
  low.rlim_cur = 128;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  REQUIRE(client.endpoint->Connect(c, listener.address, "").ok());
  for (;;) {
    UniqueFd fd(dup(STDIN_FILENO));
    if (!fd.valid()) break;
    all.push_back(std::move(fd));
  }
  const bool failed = listener.stage.Until([&] { return client.Count(Kind::kFailed, c) == 1; });
  listener.stage.Settle();
  std::vector<int> fds;
  listener.server.endpoint->AppendDescriptors(&fds);
  pollfd p = {fds[0], POLLIN, 0};
  const int readable = poll(&p, 1, 0);
  all.clear();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(failed);
  CHECK(readable == 0);
  listener.ExpectHealthy();
}

}  // namespace
}  // namespace verbena::rdma
