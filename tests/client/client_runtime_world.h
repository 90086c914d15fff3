// A runtime that has joined over shm, with a fake server in a thread of its own.
//
// **Thread safety**: the runtime's; other members as stated at each.
#ifndef VERBENA_TESTS_CLIENT_CLIENT_RUNTIME_WORLD_H_
#define VERBENA_TESTS_CLIENT_CLIENT_RUNTIME_WORLD_H_

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client/client_runtime.h"
#include "proto/spec/table_spec.h"
#include "rdma/shm/shm_endpoint.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {

using client::ClientCore;
using client::OperationId;

inline constexpr uint32_t kTable = 1;  // odd: async (fake_cluster.h)
inline constexpr uint32_t kSyncTable = 2;
inline constexpr uint64_t kElements = 8 * 1024;

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

// Registers memory when the test lets it. The condition is set before the first registration.
class SlowEndpoint final : public rdma::ForwardingEndpoint {
 public:
  using ForwardingEndpoint::ForwardingEndpoint;
  absl::Status Register(const std::shared_ptr<rdma::MemoryBlock>& block) override {
    if (before_register) before_register(block->id());
    return ForwardingEndpoint::Register(block);
  }
  bool Arm(rdma::SleepUntil until) override {
    const bool armed = ForwardingEndpoint::Arm(until);
    if (armed && until == rdma::SleepUntil::kLastAnswer) ++patient_sleeps;
    return armed;
  }
  std::function<void(uint64_t block)> before_register;
  std::atomic<int> patient_sleeps{0};
};

// A runtime that has joined, and the server thread.
class World {
 public:
  explicit World(bool background)
      : runtime(background),
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
    runtime.Stop(runtime.Now() + kSecond);
    stop_ = true;
    server_thread_.join();
  }

  // Pushes the whole table, all elements 1. `ended` counts successes.
  OperationId Push(const std::shared_ptr<rdma::MemoryBlock>& block, std::atomic<int>* ended) {
    OperationId id = 0;
    runtime.Run([&](ClientCore& core) {
      id = *core.Push(kTable, {block, 0, 0, kElements}, runtime.Now() + 30 * kSecond,
                      [ended](absl::Status status) { *ended += status.ok() ? 1 : 1000; });
    });
    return id;
  }
  // Pulls all of it.
  OperationId Pull(const std::shared_ptr<rdma::MemoryBlock>& block, std::atomic<int>* ended) {
    OperationId id = 0;
    runtime.Run([&](ClientCore& core) {
      id = *core.Pull(kTable, {block, 0, 0, kElements}, std::nullopt, runtime.Now() + 30 * kSecond,
                      [ended](absl::Status status) { *ended += status.ok() ? 1 : 1000; });
    });
    return id;
  }
  // Pushes, and a callback without the lock when it has ended.
  void PushThenCall(const std::shared_ptr<rdma::MemoryBlock>& block, std::promise<void>* called) {
    runtime.Run([&](ClientCore& core) {
      (void)*core.Push(kTable, {block, 0, 0, kElements}, runtime.Now() + 30 * kSecond,
                       [this, called](absl::Status status) {
                         runtime.AddCallback([called](absl::Status) { called->set_value(); },
                                             status);
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

  ClientRuntime runtime;
  std::atomic<int> heartbeats{0};       // answered
  std::atomic<int> heartbeats_sent{0};  // by whichever thread
  SlowEndpoint* endpoint = nullptr;     // the runtime's

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
    AddTable(kTable, "weights", v1::CONSISTENCY_ASYNC, kElements);
    AddTable(kSyncTable, "steps", v1::CONSISTENCY_SYNC, 1024);
  }
  void AddTable(uint32_t id, const std::string& name, v1::Consistency consistency,
                uint64_t elements) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_job("job");
    spec.add_shape(elements);
    spec.set_consistency(consistency);
    spec.set_chunk_bytes(4096);
    v1::Table* table = view_.add_tables();
    table->set_id(id);
    *table->mutable_spec() = *NormalizeTableSpec(spec);
  }
  void Start() {
    ClientRuntime::Parts parts;
    auto slow = std::make_unique<SlowEndpoint>(*rdma::NewShmEndpoint());
    slow->name = "shm";
    endpoint = slow.get();
    parts.endpoints.push_back(std::move(slow));
    parts.control.reset(shared_control_);
    client::CoreOptions options;
    options.cluster = "coordinator:1";
    options.job = "job";
    options.transports.push_back({parts.endpoints[0].get(), rdma::ShmHostIdentity()});
    options.clock = &runtime.clock();
    options.control = shared_control_;
    parts.core = std::make_unique<ClientCore>(std::move(options));
    REQUIRE(runtime.Start(std::move(parts)).ok());
    bool joined = false;
    runtime.Run([&](ClientCore& core) {
      core.Join(runtime.Now() + 10 * kSecond, [&](absl::Status status) { joined = status.ok(); });
    });
    REQUIRE(runtime.WaitUntil([&] { return joined; }, runtime.Now() + 10 * kSecond));
  }

  MonotonicClock clock_;
  v1::ClusterView view_;
  std::mutex server_mutex_;
  FakeServer server_;
  SharedControl* shared_control_;  // the runtime's
  FakeControl* control_;           // its
  std::atomic<bool> stop_{false};
  std::thread server_thread_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_CLIENT_RUNTIME_WORLD_H_
