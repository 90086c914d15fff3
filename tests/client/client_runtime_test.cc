// The runtime: many threads, one core. Lanes over shm, a fake server in a thread of its own.
#include "client/client_runtime.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/core/failpoints.h"
#include "rdma/sim/sim_network.h"
#include "tests/client/client_runtime_world.h"

namespace verbena::test {
namespace {

TEST_CASE("threads that push and wait at the same time all get their answers") {
  World world(true);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      auto block = World::Ones();
      for (int i = 0; i < 25; ++i) {
        std::atomic<int> mine{0};
        world.Push(block, &mine);
        world.runtime.WaitUntil([&] { return mine > 0; }, world.runtime.Now() + 30 * kSecond);
        ended += mine;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 100);
  CHECK(world.applied(7) == 100.0f);
}

TEST_CASE("with no waiting caller, the background thread finishes started calls") {
  World world(true);
  auto block = World::Ones();
  for (int round = 0; round < 3; ++round) {
    std::promise<void> called;
    world.PushThenCall(block, &called);
    REQUIRE(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    // In between a caller drives, so that the thread has to give way and come back.
    std::atomic<int> ended{0};
    world.Push(block, &ended);
    REQUIRE(
        world.runtime.WaitUntil([&] { return ended == 1; }, world.runtime.Now() + 30 * kSecond));
  }
  CHECK(world.applied(0) == 6.0f);
}

// Voluntary switches of all threads of this process but the calling one.
uint64_t SleepsOfOthers() {
  uint64_t sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      const std::string name = "voluntary_ctxt_switches:";
      if (line.starts_with(name)) sleeps += std::stoull(line.substr(name.size()));
    }
  }
  return sleeps;
}

TEST_CASE("callers that wait for all they start leave the background thread asleep") {
  World world(true);
  auto block = World::Ones();
  // The server's thread never sleeps. One in 16 ms at most, where it was one in 2 ms.
  uint64_t sleeps = UINT64_MAX;
  for (int tries = 0; sleeps > 40; ++tries) {
    INFO(sleeps << " sleeps in 320 ms");
    REQUIRE(tries < 60);
    const uint64_t before = SleepsOfOthers();
    const int64_t end = world.runtime.Now() + 320 * kMilli;
    while (world.runtime.Now() < end) {
      std::atomic<int> ended{0};
      world.Push(block, &ended);
      REQUIRE(
          world.runtime.WaitUntil([&] { return ended == 1; }, world.runtime.Now() + 30 * kSecond));
    }
    sleeps = SleepsOfOthers() - before;
  }
  // Calls that no caller waits for end as well.
  std::promise<void> called;
  world.PushThenCall(block, &called);
  CHECK(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
}

TEST_CASE("a callback may start operations and wait for them") {
  World world(true);
  auto block = World::Ones();
  std::promise<bool> done;
  world.runtime.Run([&](ClientCore& core) {
    (void)*core.Push(kTable, {block, 0, 0, kElements}, world.runtime.Now() + 30 * kSecond,
                     [&](absl::Status status) {
                       world.runtime.AddCallback(
                           [&](absl::Status) {
                             std::atomic<int> ended{0};
                             world.Push(block, &ended);
                             done.set_value(world.runtime.WaitUntil(
                                 [&] { return ended == 1; }, world.runtime.Now() + 30 * kSecond));
                           },
                           status);
                     });
  });
  auto future = done.get_future();
  REQUIRE(future.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(future.get());
}

// A wake-up that is lost is made up for by the next timer, a heartbeat. So ten callbacks in a row
// that come without one in between were woken by their answers.
TEST_CASE("a callback comes with its answer while another call sleeps for its last one") {
  const bool planted = GENERATE(false, true);
  client::failpoints().keep_patience = planted;
  int in_a_row = 0;
  {
    World world(true);
    auto block = World::Ones();
    auto waits = *rdma::MemoryBlock::Allocate(1024 * sizeof(float), "test-region");
    world.runtime.Run([&](ClientCore& core) {  // answered when a step is committed, which none is
      (void)*core.Pull(kSyncTable, {waits, 0, 0, 1024}, 1, world.runtime.Now() + 3600 * kSecond,
                       [](const absl::Status&) {});
    });
    const int rounds = planted ? 20 : 1000;
    for (int round = 0; in_a_row < 10 && round < rounds; ++round) {
      const int sleeps = world.endpoint->patient_sleeps;
      while (world.endpoint->patient_sleeps == sleeps) std::this_thread::yield();
      const int before = world.heartbeats_sent;
      std::promise<void> called;
      world.runtime.Run([&](ClientCore& core) {
        world.runtime.ExpectCallback();
        (void)*core.Pull(kTable, {block, 0, 0, 1024}, {}, world.runtime.Now() + 30 * kSecond,
                         [&](const absl::Status& status) {
                           world.runtime.EndExpectCallback();
                           world.runtime.AddCallback([&](absl::Status) { called.set_value(); },
                                                     status);
                         });
      });
      REQUIRE(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
      in_a_row = world.heartbeats_sent == before ? in_a_row + 1 : 0;
    }
  }
  client::failpoints() = {};
  CHECK((in_a_row == 10) == !planted);
}

TEST_CASE("without a background thread the lease is kept, and only waiting makes progress") {
  World world(false);
  auto block = World::Ones();
  std::atomic<int> ended{0};
  world.Push(block, &ended);
  const int beats = world.heartbeats;
  while (world.heartbeats < beats + 3) std::this_thread::yield();
  CHECK(ended == 0);
  CHECK(world.runtime.WaitUntil([&] { return ended == 1; }, world.runtime.Now() + 30 * kSecond));
}

TEST_CASE("a wait ends at its time, and a cancel from another thread ends it before") {
  World world(true);
  world.SetSilent(true);
  auto block = World::Ones();
  std::atomic<int> ended{0};
  const OperationId id = world.Push(block, &ended);
  const int64_t start = world.runtime.Now();
  CHECK_FALSE(world.runtime.WaitUntil([&] { return ended > 0; }, start + 50 * kMilli));
  CHECK(world.runtime.Now() - start >= 50 * kMilli);
  std::thread waiter([&] {
    CHECK(world.runtime.WaitUntil([&] { return ended > 0; }, world.runtime.Now() + 30 * kSecond));
  });
  world.runtime.Run([&](ClientCore& core) { core.Cancel(id); });
  waiter.join();
  CHECK(ended == 1000);
  world.runtime.ReleaseBlock(*block);
  world.SetSilent(false);
}

TEST_CASE(
    "stop ends calls in progress and every wait, also a wait for a condition that stays false") {
  for (const bool background : {true, false}) {
    World world(background);
    world.SetSilent(true);
    auto block = World::Ones();
    std::atomic<int> ended{0}, waiting{0}, wrong{0};
    world.Push(block, &ended);
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i) {
      waiters.emplace_back([&, i] {
        bool first = true;
        const bool done = world.runtime.WaitUntil(
            [&] {
              if (std::exchange(first, false)) ++waiting;
              return i % 2 == 0 && ended > 0;
            },
            world.runtime.Now() + 3600 * kSecond);
        if (done != (i % 2 == 0)) ++wrong;
      });
    }
    while (waiting < 4) std::this_thread::yield();
    world.runtime.Stop(world.runtime.Now() + kSecond);
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(wrong == 0);
    CHECK(ended == 1000);
    CHECK_FALSE(world.runtime.Run([](ClientCore&) {}));
    CHECK_FALSE(
        world.runtime.WaitUntil([] { return false; }, world.runtime.Now() + 3600 * kSecond));
  }
}

}  // namespace
}  // namespace verbena::test
