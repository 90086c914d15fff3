// How owners of shm endpoints sleep, and the events that wake them.
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "rdma/shm/shm_endpoint.h"
#include "tests/rdma/transport_shm.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

// One turn of an owner that sleeps when there is nothing to do.
void RunOrSleep(Party* party, const std::function<bool()>& work) {
  party->PollEvents();
  party->Poll();
  if (work()) return;
  if (!party->endpoint->Arm(SleepUntil::kAnything)) return;
  std::vector<int> fds;
  party->endpoint->AppendDescriptors(&fds);
  std::vector<pollfd> polled;
  for (int fd : fds) polled.push_back({fd, POLLIN, 0});
  poll(polled.data(), polled.size(), 20'000);
  party->endpoint->Disarm();
}

// Answers each immediate i with i + 1 until it has seen `last`.
bool Echo(Party* party, ConnectionId id, uint32_t last, bool sleeping) {
  size_t seen = 0;
  bool ok = true;
  while (ok) {
    const auto work = [&] {
      bool any = false;
      for (; seen < party->completions.size(); ++seen) {
        const Completion& c = party->completions[seen];
        if (c.kind != Completion::Kind::kReceive) continue;
        if (!c.ok) return ok = false;
        any = true;
        WriteRequest request;
        request.immediate = c.immediate + 1;
        request.signaled = false;
        ok = ok && party->endpoint->PostReceives(id, 1).ok();
        if (c.immediate != last) ok = ok && party->endpoint->PostWrite(id, request).ok();
      }
      return any;
    };
    if (sleeping) {
      RunOrSleep(party, work);
    } else {
      party->PollEvents();
      party->Poll();
      if (!work()) sched_yield();
    }
    for (const Completion& c : party->completions) {
      if (c.kind == Completion::Kind::kReceive && c.ok && c.immediate + 1 >= last) return ok;
    }
    seen = 0;
    party->completions.clear();
  }
  return false;
}

TEST_CASE("two threads that sleep as often as possible lose no wake-up") {
  const bool client_sleeps = GENERATE(true, false);
  Stage stage(Shm());
  Pair pair(&stage, {.client_receives = 4, .server_receives = 4});
  REQUIRE(pair.established);
  constexpr uint32_t kLast = 3000;
  std::atomic<bool> server_ok{false};
  std::thread server([&] { server_ok = Echo(&pair.server, pair.s, kLast, true); });
  WriteRequest first;
  first.immediate = 0;
  first.signaled = false;
  CHECK(pair.client.endpoint->PostWrite(pair.c, first).ok());
  const bool client_ok = Echo(&pair.client, pair.c, kLast, client_sleeps);
  server.join();
  CHECK(client_ok);
  CHECK(server_ok);
}

TEST_CASE("a sleeper is woken by a connection request, memory and the end of its peer") {
  Stage stage(Shm());
  Party& server = stage.Add("server");
  const std::string address = server.endpoint->Listen().value();
  std::thread other([&address] {
    Stage mine(Shm());
    Party& client = mine.Add("client");
    const ConnectionId c = client.endpoint->Create({4, 4}).value();
    (void)client.endpoint->Connect(c, address, "");
    (void)mine.Until([&] { return client.Count(Kind::kEstablished, c) == 1; });
    WriteRequest request;
    request.immediate = 1;
    (void)client.endpoint->PostWrite(c, request);
  });
  ConnectionId s = ConnectionId::kNone;
  size_t seen = 0;
  while (server.Find(Kind::kLost) == nullptr) {
    RunOrSleep(&server, [&] {
      const bool any = seen < server.events.size();
      for (; seen < server.events.size(); ++seen) {
        if (server.events[seen].kind != Kind::kRequest) continue;
        s = server.events[seen].connection;
        (void)server.endpoint->Prepare(s, {4, 4});
        (void)server.endpoint->PostReceives(s, 1);
        (void)server.endpoint->Accept(s);
      }
      return any;
    });
  }
  other.join();
  CHECK(server.Immediates(s) == std::vector<uint32_t>{1});
}

TEST_CASE("an endpoint with nothing to do stays asleep") {
  Stage stage(Shm());
  Pair pair(&stage, {.server_receives = 2});
  REQUIRE(pair.established);
  std::vector<int> fds;
  pair.server.endpoint->AppendDescriptors(&fds);
  REQUIRE(fds.size() == 1);
  pollfd polled = {fds[0], POLLIN, 0};
  stage.Settle();
  REQUIRE(pair.server.endpoint->Arm(SleepUntil::kAnything));
  CHECK(poll(&polled, 1, 0) == 0);
  REQUIRE(pair.Push(0, 8, 1).ok());
  CHECK(poll(&polled, 1, 0) == 1);
  pair.server.endpoint->Disarm();
  pair.server.PollEvents();
  pair.server.Poll();
  CHECK(pair.server.Immediates(pair.s).size() == 1);
  // One wake-up is one wake-up.
  REQUIRE(pair.server.endpoint->Arm(SleepUntil::kAnything));
  CHECK(poll(&polled, 1, 0) == 0);
  pair.server.endpoint->Disarm();
  // While it is awake, writes cost no system call and leave nothing behind.
  REQUIRE(pair.Push(0, 8, 2).ok());
  CHECK_FALSE(
      pair.server.endpoint->Arm(SleepUntil::kAnything));  // nor is it to go to sleep over them
  pair.server.Poll();
  CHECK(pair.server.Immediates(pair.s).size() == 2);
  pair.server.PollEvents();
  REQUIRE(pair.server.endpoint->Arm(SleepUntil::kAnything));
  CHECK(poll(&polled, 1, 0) == 0);
  pair.server.endpoint->Disarm();
}

TEST_CASE("a peer that sleeps until the last answer is woken by it alone") {
  Stage stage(Shm());
  Pair pair(&stage, {.client_receives = 16, .server_receives = 4});
  REQUIRE(pair.established);
  std::vector<int> fds;
  pair.client.endpoint->AppendDescriptors(&fds);
  pollfd polled = {fds[0], POLLIN, 0};
  uint32_t sent = 0;
  const auto answer = [&](Wakes wakes) {
    WriteRequest request;
    request.immediate = sent++;
    request.signaled = false;
    request.wakes = wakes;
    return pair.server.endpoint->PostWrite(pair.s, request).ok();
  };
  // Awake again, it finds everything.
  const auto look = [&] {
    pair.client.endpoint->Disarm();
    pair.client.PollEvents();
    for (int i = 0; i < 4; ++i) pair.client.Poll();
    return pair.client.Immediates(pair.c).size() == sent;
  };
  stage.Settle();

  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  REQUIRE(answer(Wakes::kImpatientPeer));
  REQUIRE(answer(Wakes::kNobody));
  pair.server.endpoint->WakePeer(pair.s, Wakes::kImpatientPeer);
  CHECK(poll(&polled, 1, 0) == 0);
  REQUIRE(answer(Wakes::kPeerAtLast));
  CHECK(poll(&polled, 1, 0) == 1);
  CHECK(look());
  // It is not the last when the other side has not seen all that was asked.
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  REQUIRE(pair.Push(0, 8, 1).ok());
  REQUIRE(answer(Wakes::kPeerAtLast));
  CHECK(poll(&polled, 1, 0) == 0);
  REQUIRE(answer(Wakes::kPeer));
  CHECK(poll(&polled, 1, 0) == 1);
  CHECK(look());
  // An answer that came before Arm() keeps the endpoint from sleeping.
  REQUIRE(answer(Wakes::kImpatientPeer));
  CHECK_FALSE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  CHECK(look());

  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kAnything));
  REQUIRE(answer(Wakes::kNobody));
  CHECK(poll(&polled, 1, 0) == 0);
  pair.server.endpoint->WakePeer(pair.s, Wakes::kImpatientPeer);
  CHECK(poll(&polled, 1, 0) == 1);
  CHECK(look());
  // Before another request is posted, the sleep until the last answer is withdrawn.
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  REQUIRE(pair.client.endpoint->WakeOnAnything());
  REQUIRE(answer(Wakes::kImpatientPeer));
  CHECK(poll(&polled, 1, 0) == 1);
  CHECK(look());
  // An answer that came before that woke no thread: WakeOnAnything() returns false.
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  REQUIRE(answer(Wakes::kImpatientPeer));
  CHECK(poll(&polled, 1, 0) == 0);
  CHECK_FALSE(pair.client.endpoint->WakeOnAnything());
  CHECK(look());
  // The end of the connection wakes in any case.
  REQUIRE(pair.client.endpoint->Arm(SleepUntil::kLastAnswer));
  pair.server.endpoint->Close(pair.s);
  CHECK(poll(&polled, 1, 1000) == 1);
  pair.client.endpoint->Disarm();
}

TEST_CASE("a stopped peer delays only its own end") {
  // Its listener's backlog takes the request; the deadline ends the wait.
  ShmOptions options;
  options.connect_timeout = absl::Milliseconds(20);
  const auto silent = NewShmEndpoint().value();  // never polled
  Party client;
  client.endpoint = NewShmEndpoint(options).value();
  const ConnectionId c = client.endpoint->Create({1, 1}).value();
  REQUIRE(client.endpoint->Connect(c, silent->Listen().value(), "").ok());
  // Asleep all the while: the descriptors include the timer.
  const auto failed = [&] { return client.Count(Kind::kFailed, c) == 1; };
  while (!failed()) RunOrSleep(&client, failed);
  CHECK(client.Find(Kind::kFailed)->status.code() == absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace verbena::rdma
