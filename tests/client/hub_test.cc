// The hub: many threads, one core. Lanes over shm, a fake server in a thread of its own.
#include "client/hub.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/table_spec.h"
#include "rdma/shm/shm_endpoint.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using client::ClientCore;
using client::OperationId;

constexpr uint32_t kTable = 1;  // odd: async (fake_cluster.h)
constexpr uint64_t kElements = 8 * 1024;

// A FakeControl that any thread may call, which counts heartbeats as they are sent.
class SharedControl final : public ControlChannel {
 public:
  SharedControl(const Clock* clock, std::atomic<int>* sent) : to(clock), sent_(sent) {}
  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (method == "/verbena.v1.Cluster/Heartbeat") ++*sent_;
    to.Unary(address, method, request, std::move(response), timeout, std::move(done));
  }
  bool RunOnce() override {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return to.RunOnce();
  }
  bool any_thread() const override { return true; }
  int wake_fd() const override { return -1; }

  FakeControl to;

 private:
  std::recursive_mutex mutex_;  // a callback may start a call
  std::atomic<int>* const sent_;
};

// Registers memory when the test lets it. What that is, is set before the first registration.
class SlowEndpoint final : public rdma::ForwardingEndpoint {
 public:
  using ForwardingEndpoint::ForwardingEndpoint;
  absl::Status Register(const std::shared_ptr<rdma::MemoryBlock>& block) override {
    if (before_register) before_register(block->id());
    return ForwardingEndpoint::Register(block);
  }
  std::function<void(uint64_t block)> before_register;
};

// A hub that has joined, and the server thread.
class World {
 public:
  explicit World(bool background)
      : hub(background),
        server_(*rdma::NewShmEndpoint(), &clock_, 10, "server0"),
        shared_control_(new SharedControl(&clock_, &heartbeats_sent)),
        control_(&shared_control_->to) {
    MakeView();
    control_->Serve("JoinWorker", [this](auto&, auto&, auto* response, int64_t) {
      auto* join = static_cast<v1::JoinWorkerResponse*>(response);
      join->set_incarnation(100);
      join->set_lease_ms(400);
      *join->mutable_view() = view_;
      return absl::OkStatus();
    });
    control_->Serve("Heartbeat", [this](auto&, auto&, auto*, int64_t) {
      ++heartbeats;
      return absl::OkStatus();
    });
    control_->Serve("Leave", [](auto&, auto&, auto*, int64_t) { return absl::OkStatus(); });
    control_->Serve("OpenLane", [this](auto&, const std::string& bytes, auto* response, int64_t) {
      v1::OpenLaneRequest request;
      request.ParseFromString(bytes);
      const std::lock_guard<std::mutex> lock(server_mutex_);
      auto opened = server_.OpenLane(request);
      if (opened.ok()) *static_cast<v1::OpenLaneResponse*>(response) = *opened;
      return opened.status();
    });
    server_thread_ = std::thread([this] {
      while (!stop_) {
        const std::lock_guard<std::mutex> lock(server_mutex_);
        if (!server_.RunOnce()) std::this_thread::yield();
      }
    });
    Start();
  }
  ~World() {
    hub.Stop(hub.Now() + kSecond);
    stop_ = true;
    server_thread_.join();
  }

  // Pushes the whole table, all elements 1. `ended` counts successes.
  OperationId Push(const std::shared_ptr<rdma::MemoryBlock>& block, std::atomic<int>* ended) {
    OperationId id = 0;
    hub.Run([&](ClientCore& core) {
      id = *core.Push(kTable, {block, 0, 0, kElements}, hub.Now() + 30 * kSecond,
                      [ended](absl::Status status) { *ended += status.ok() ? 1 : 1000; });
    });
    return id;
  }
  // The same, and a callback without the lock when it has ended.
  void PushThenCall(const std::shared_ptr<rdma::MemoryBlock>& block, std::promise<void>* called) {
    hub.Run([&](ClientCore& core) {
      (void)*core.Push(kTable, {block, 0, 0, kElements}, hub.Now() + 30 * kSecond,
                       [this, called](absl::Status status) {
                         hub.AddCallback([called](absl::Status) { called->set_value(); }, status);
                       });
    });
  }
  float applied(uint32_t chunk) {
    const std::lock_guard<std::mutex> lock(server_mutex_);
    return server_.applied[{kTable, chunk}];
  }
  void SetSilent(bool silent) {
    const std::lock_guard<std::mutex> lock(server_mutex_);
    server_.silent = silent;
  }
  static std::shared_ptr<rdma::MemoryBlock> Ones() {
    auto block = *rdma::MemoryBlock::Allocate(kElements * sizeof(float), "test-region");
    std::fill_n(reinterpret_cast<float*>(block->data()), kElements, 1.0f);
    return block;
  }

  Hub hub;
  std::atomic<int> heartbeats{0};       // answered
  std::atomic<int> heartbeats_sent{0};  // by whichever thread
  SlowEndpoint* endpoint = nullptr;     // the hub's

 private:
  void MakeView() {
    view_.set_revision(1);
    v1::Server* server = view_.add_servers();
    server->set_incarnation(10);
    server->set_name("ps-0");
    server->set_address(server_.address());
    server->set_state(v1::Server::ALIVE);
    v1::Partition* partition = view_.add_partitions();
    partition->set_epoch(1);
    partition->set_primary(10);
    v1::Job* job = view_.add_jobs();
    job->set_name("job");
    job->add_members()->set_incarnation(100);
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.set_job("job");
    spec.add_shape(kElements);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.set_chunk_bytes(4096);
    v1::Table* table = view_.add_tables();
    table->set_id(kTable);
    *table->mutable_spec() = *NormalizeTableSpec(spec);
  }
  void Start() {
    Hub::Parts parts;
    auto slow = std::make_unique<SlowEndpoint>(*rdma::NewShmEndpoint());
    slow->name = "shm";
    endpoint = slow.get();
    parts.endpoints.push_back(std::move(slow));
    parts.control.reset(shared_control_);
    client::CoreOptions options;
    options.cluster = "coordinator:1";
    options.job = "job";
    options.transports.push_back({parts.endpoints[0].get(), rdma::ShmHostIdentity()});
    options.clock = &hub.clock();
    options.control = shared_control_;
    parts.core = std::make_unique<ClientCore>(std::move(options));
    REQUIRE(hub.Start(std::move(parts)).ok());
    bool joined = false;
    hub.Run([&](ClientCore& core) {
      core.Join(hub.Now() + 10 * kSecond, [&](absl::Status status) { joined = status.ok(); });
    });
    REQUIRE(hub.WaitUntil([&] { return joined; }, hub.Now() + 10 * kSecond));
  }

  MonotonicClock clock_;
  v1::ClusterView view_;
  std::mutex server_mutex_;
  FakeServer server_;
  SharedControl* shared_control_;  // the hub's
  FakeControl* control_;           // its
  std::atomic<bool> stop_{false};
  std::thread server_thread_;
};

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
        world.hub.WaitUntil([&] { return mine > 0; }, world.hub.Now() + 30 * kSecond);
        ended += mine;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ended == 100);
  CHECK(world.applied(7) == 100.0f);
}

TEST_CASE("with nobody waiting, the background thread finishes what was started") {
  World world(true);
  auto block = World::Ones();
  for (int round = 0; round < 3; ++round) {
    std::promise<void> called;
    world.PushThenCall(block, &called);
    REQUIRE(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    // In between a caller drives, so that the thread has to give way and come back.
    std::atomic<int> ended{0};
    world.Push(block, &ended);
    REQUIRE(world.hub.WaitUntil([&] { return ended == 1; }, world.hub.Now() + 30 * kSecond));
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
    const int64_t end = world.hub.Now() + 320 * kMilli;
    while (world.hub.Now() < end) {
      std::atomic<int> ended{0};
      world.Push(block, &ended);
      REQUIRE(world.hub.WaitUntil([&] { return ended == 1; }, world.hub.Now() + 30 * kSecond));
    }
    sleeps = SleepsOfOthers() - before;
  }
  // What nobody waits for is done all the same.
  std::promise<void> called;
  world.PushThenCall(block, &called);
  CHECK(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
}

TEST_CASE("a callback may start operations and wait for them") {
  World world(true);
  auto block = World::Ones();
  std::promise<bool> done;
  world.hub.Run([&](ClientCore& core) {
    (void)*core.Push(kTable, {block, 0, 0, kElements}, world.hub.Now() + 30 * kSecond,
                     [&](absl::Status status) {
                       world.hub.AddCallback(
                           [&](absl::Status) {
                             std::atomic<int> ended{0};
                             world.Push(block, &ended);
                             done.set_value(world.hub.WaitUntil([&] { return ended == 1; },
                                                                world.hub.Now() + 30 * kSecond));
                           },
                           status);
                     });
  });
  auto future = done.get_future();
  REQUIRE(future.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(future.get());
}

TEST_CASE("without a background thread the lease is kept, and only waiting makes progress") {
  World world(false);
  auto block = World::Ones();
  std::atomic<int> ended{0};
  world.Push(block, &ended);
  const int beats = world.heartbeats;
  while (world.heartbeats < beats + 3) std::this_thread::yield();
  CHECK(ended == 0);
  CHECK(world.hub.WaitUntil([&] { return ended == 1; }, world.hub.Now() + 30 * kSecond));
}

// Holds up the registration of one block, in the thread that registers it.
class Held {
 public:
  // Of what is started after this.
  Held(World* world, uint64_t block) : world_(world) {
    world_->hub.Run([&](ClientCore&) {
      world_->endpoint->before_register = [this, block](uint64_t id) {
        if (id != block) return;
        std::unique_lock<std::mutex> lock(mutex_);
        reached_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return released_; });
        passed_ = true;
      };
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
  World* const world_;
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
    world.hub.WaitUntil([&] { return ended > 0; }, world.hub.Now() + 30 * kSecond);
  });
  held.WaitUntilReached();
  // More than the lease of 400 ms.
  const int before = world.heartbeats_sent;
  while (world.heartbeats_sent < before + 5) {
    std::atomic<int> mine{0};
    world.Push(other, &mine);
    if (!world.hub.WaitUntil([&] { return mine == 1; }, world.hub.Now() + 30 * kSecond)) break;
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
  CHECK(world.hub.WaitUntil([&] { return last == 1; }, world.hub.Now() + 30 * kSecond));
}

TEST_CASE("who waits for a region is woken when it is ready") {
  World world(true);
  const auto block = World::Ones();
  for (int i = 0; i < 20; ++i) {
    const auto fresh = World::Ones();
    std::promise<void> called;
    world.PushThenCall(fresh, &called);
    REQUIRE(called.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  }
}

TEST_CASE("a region that is freed while it is registered is let go of before its memory goes") {
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
      world.hub.WaitUntil([&] { return ended > 0; }, world.hub.Now() + 30 * kSecond);
      held.Release();
    });
    world.hub.ReleaseBlock(*block);
    thread.join();
    world.hub.WaitUntil([&] { return held.passed(); }, world.hub.Now() + 30 * kSecond);
    world.hub.Run([&](ClientCore&) { world.endpoint->before_register = nullptr; });
  }
  CHECK(ended == 1000);  // cancelled
  CHECK(world.hub.WaitUntil([&] { return world.endpoint->live_registrations == 0; },
                            world.hub.Now() + 30 * kSecond));
  CHECK(world.hub.WaitUntil([&] { return weak.expired(); }, world.hub.Now() + 30 * kSecond));
}

TEST_CASE("a stop while a region is registered waits for the step, and leaves nothing of it") {
  World world(true);
  auto block = World::Ones();
  std::weak_ptr<rdma::MemoryBlock> weak = block;
  Held held(&world, block->id());
  std::atomic<int> ended{0};
  world.Push(block, &ended);
  block.reset();
  held.WaitUntilReached();
  std::thread thread([&] {
    // Tickets end first; the step may take its time.
    world.hub.WaitUntil([&] { return ended > 0; }, world.hub.Now() + 30 * kSecond);
    held.Release();
  });
  world.hub.Stop(world.hub.Now() + kSecond);
  thread.join();
  CHECK(held.passed());
  CHECK(ended == 1000);
  CHECK(weak.expired());
}

TEST_CASE("a wait ends at its time, and a cancel from another thread ends it before") {
  World world(true);
  world.SetSilent(true);
  auto block = World::Ones();
  std::atomic<int> ended{0};
  const OperationId id = world.Push(block, &ended);
  const int64_t start = world.hub.Now();
  CHECK_FALSE(world.hub.WaitUntil([&] { return ended > 0; }, start + 50 * kMilli));
  CHECK(world.hub.Now() - start >= 50 * kMilli);
  std::thread waiter([&] {
    CHECK(world.hub.WaitUntil([&] { return ended > 0; }, world.hub.Now() + 30 * kSecond));
  });
  world.hub.Run([&](ClientCore& core) { core.Cancel(id); });
  waiter.join();
  CHECK(ended == 1000);
  world.hub.ReleaseBlock(*block);
  world.SetSilent(false);
}

TEST_CASE("a stop ends what is under way and every wait, also one for what will never be") {
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
        const bool done = world.hub.WaitUntil(
            [&] {
              if (std::exchange(first, false)) ++waiting;
              return i % 2 == 0 && ended > 0;
            },
            world.hub.Now() + 3600 * kSecond);
        if (done != (i % 2 == 0)) ++wrong;
      });
    }
    while (waiting < 4) std::this_thread::yield();
    world.hub.Stop(world.hub.Now() + kSecond);
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(wrong == 0);
    CHECK(ended == 1000);
    CHECK_FALSE(world.hub.Run([](ClientCore&) {}));
    CHECK_FALSE(world.hub.WaitUntil([] { return false; }, world.hub.Now() + 3600 * kSecond));
  }
}

}  // namespace
}  // namespace verbena::test
