// Memory that is registered, for a transport or for a lane, while threads use the runtime, free the
// memory, or stop the runtime.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/client/client_runtime_world.h"

namespace verbena::test {
namespace {

enum class For { kTransport, kLane };

// Holds up the registration of one block, in the thread that registers it.
class Held {
 public:
  // Applies to registrations that are started after this.
  Held(World* world, uint64_t block, For purpose = For::kTransport) {
    const auto hold = [this, block](uint64_t id) {
      if (id != block) return;
      std::unique_lock<std::mutex> lock(mutex_);
      reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
      passed_ = true;
    };
    world->runtime.Run([&](ClientCore&) {
      if (purpose == For::kTransport) {
        world->endpoint->before_register = hold;
      } else {
        world->endpoint->exposure_steps = 1;
        world->endpoint->before_exposure_step = hold;
      }
    });
  }
  ~Held() { Release(); }
  void WaitUntilReached() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void Release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  bool passed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return passed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false, released_ = false, passed_ = false;
};

TEST_CASE("while a region is registered, calls of other threads end, and heartbeats go on") {
  World world(true);
  const auto block = World::Ones(), other = World::Ones();
  Held held(&world, block->id());
  std::atomic<int> ended{0}, others{0};
  std::thread thread([&] {
    world.Push(block, &ended);
    world.runtime.WaitUntil([&] { return ended > 0; }, world.runtime.Now() + 30 * kSecond);
  });
  held.WaitUntilReached();
  // More than the lease of 400 ms.
  const int before = world.heartbeats_sent;
  while (world.heartbeats_sent < before + 5) {
    std::atomic<int> mine{0};
    world.Push(other, &mine);
    if (!world.runtime.WaitUntil([&] { return mine == 1; }, world.runtime.Now() + 30 * kSecond))
      break;
    ++others;
  }
  CHECK(world.heartbeats_sent >= before + 5);
  CHECK(others > 0);
  thread.join();  // its own call has gone by way of staging
  CHECK(ended == 1);
  CHECK_FALSE(held.passed());
  held.Release();
  std::atomic<int> last{0};
  world.Push(block, &last);
  CHECK(world.runtime.WaitUntil([&] { return last == 1; }, world.runtime.Now() + 30 * kSecond));
}

TEST_CASE("regression: while a lane registers a region, calls of other threads end") {
  World world(true);
  const auto block = World::Ones(), other = World::Ones();
  Held held(&world, block->id(), For::kLane);
  std::atomic<int> ended{0};
  std::thread thread([&] {
    world.Pull(block, &ended);
    world.runtime.WaitUntil([&] { return ended > 0; }, world.runtime.Now() + 30 * kSecond);
  });
  held.WaitUntilReached();
  std::promise<int> done;
  std::thread others([&] {
    std::atomic<int> mine{0};
    world.Push(other, &mine);
    world.runtime.WaitUntil([&] { return mine == 1; }, world.runtime.Now() + 30 * kSecond);
    world.Pull(other, &mine);
    world.runtime.WaitUntil([&] { return mine == 2; }, world.runtime.Now() + 30 * kSecond);
    done.set_value(mine);
  });
  std::future<int> result = done.get_future();
  const bool in_time = result.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  CHECK(in_time);
  if (in_time) {
    thread.join();  // its own call has gone by way of staging
    CHECK(ended == 1);
    CHECK_FALSE(held.passed());
  }
  held.Release();
  others.join();
  if (thread.joinable()) thread.join();
  CHECK(result.get() == 2);
  // Through the region itself, once it is exposed.
  std::atomic<int> last{0};
  world.Pull(block, &last);
  CHECK(world.runtime.WaitUntil([&] { return last == 1; }, world.runtime.Now() + 30 * kSecond));
}

// Stops the runtime while the registration that `call` needs is in progress. Returns how the call
// ended.
int StopDuring(For use,
               void (*call)(World*, const std::shared_ptr<rdma::MemoryBlock>&, std::atomic<int>*)) {
  World world(true);
  auto block = World::Ones();
  std::weak_ptr<rdma::MemoryBlock> weak = block;
  Held held(&world, block->id(), use);
  std::atomic<int> ended{0};
  call(&world, block, &ended);
  block.reset();
  held.WaitUntilReached();
  std::thread thread([&] {
    // Tickets end first; the step may take its time.
    world.runtime.WaitUntil([&] { return ended > 0; }, world.runtime.Now() + 30 * kSecond);
    held.Release();
  });
  world.runtime.Stop(world.runtime.Now() + kSecond);
  thread.join();
  CHECK(held.passed());
  CHECK(weak.expired());
  return ended;
}

TEST_CASE("a stop while a lane registers a region waits for the step, and leaves no registration") {
  StopDuring(For::kLane, [](World* world, const auto& block, std::atomic<int>* ended) {
    world->Pull(block, ended);
  });
}

TEST_CASE("a call that waits for a region wakes when the region is ready") {
  World world(true);
  const auto block = World::Ones();
  for (int i = 0; i < 20; ++i) {
    const auto fresh = World::Ones();
    std::promise<void> called;
    world.PushThenCall(fresh, &called);
    REQUIRE(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  }
}

TEST_CASE("a region freed during its registration is deregistered before its memory is freed") {
  World world(true);
  std::vector<float> memory(kElements, 1.0f);
  std::weak_ptr<rdma::MemoryBlock> weak;
  std::atomic<int> ended{0};
  {
    auto block = *rdma::MemoryBlock::Register(memory.data(), memory.size() * sizeof(float));
    weak = block;
    Held held(&world, block->id());
    world.Push(block, &ended);
    held.WaitUntilReached();
    std::thread thread([&] {
      // The caller waits for it, which ends only by this.
      world.runtime.WaitUntil([&] { return ended > 0; }, world.runtime.Now() + 30 * kSecond);
      held.Release();
    });
    world.runtime.ReleaseBlock(*block);
    thread.join();
    world.runtime.WaitUntil([&] { return held.passed(); }, world.runtime.Now() + 30 * kSecond);
    world.runtime.Run([&](ClientCore&) { world.endpoint->before_register = nullptr; });
  }
  CHECK(ended == 1000);  // cancelled
  CHECK(world.runtime.WaitUntil([&] { return world.endpoint->live_registrations == 0; },
                                world.runtime.Now() + 30 * kSecond));
  CHECK(
      world.runtime.WaitUntil([&] { return weak.expired(); }, world.runtime.Now() + 30 * kSecond));
}

TEST_CASE("a stop during a registration waits for the step, and leaves no registration") {
  const int ended = StopDuring(
      For::kTransport,
      [](World* world, const auto& block, std::atomic<int>* push) { world->Push(block, push); });
  CHECK(ended == 1000);
}

}  // namespace
}  // namespace verbena::test
