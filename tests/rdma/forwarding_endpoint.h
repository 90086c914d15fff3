// An endpoint that behaves like another one, except for its name, its device and failures ordered
// by tests.
//
// **Thread safety**: as the one behind it.
#ifndef VERBENA_TESTS_RDMA_FORWARDING_ENDPOINT_H_
#define VERBENA_TESTS_RDMA_FORWARDING_ENDPOINT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rdma/transport.h"

namespace verbena::rdma {

class ForwardingEndpoint : public Endpoint {
 public:
  explicit ForwardingEndpoint(std::unique_ptr<Endpoint> to) : to_(std::move(to)) {}

  // ---- set by the test ----
  std::string name = "sim";
  std::string device_name;
  absl::Status listen_status, register_status;
  std::optional<MemoryKind> refuse_kind;  // memory that is neither registered nor exposed
  int refusals = 0;                       // so many calls of Register() and Expose() are refused
  uint64_t refuse_block = 0;              // this memory is neither registered nor exposed
  int steps = 1;                          // of registrations that are started
  // Steps of exposures; with 0 they take no time. Otherwise they register memory in that many
  // steps, in StartExposure() or, each before_exposure_step() once, in Expose(). Set before the
  // first of them.
  int exposure_steps = 0;
  std::function<void(uint64_t block)> before_exposure_step;
  bool never_dead = false;  // closed connections stay closing as long as this is true
  // ---- observed by the endpoint ----
  uint64_t last_domain = 0;  // of Create() or Prepare()
  int registrations = 0;     // calls of Register()
  int allocations = 0;
  std::atomic<int> live_registrations{0};         // of StartRegistration() and StartExposure()
  int exposures = 0;                              // calls of Expose() and FinishExposure()
  SleepUntil last_until = SleepUntil::kAnything;  // of Arm()
  std::vector<Wakes> woken;                       // of WakePeer()

  Endpoint* to() const { return to_.get(); }

  std::string_view transport() const override { return name; }
  std::string device() const override { return device_name; }
  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes,
                                                        std::string_view label) override {
    ++allocations;
    return to_->Allocate(bytes, label);
  }
  absl::Status Register(const std::shared_ptr<MemoryBlock>& block) override {
    ++registrations;
    if (Refuses(*block)) return absl::UnavailableError("not now");
    if (block->kind() == refuse_kind) return absl::ResourceExhaustedError("this kind is refused");
    return register_status.ok() ? to_->Register(block) : register_status;
  }
  // `steps`, Register() in the last one; once for each block that it did not refuse.
  absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& block) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (registered_.count(block->id()) > 0 && block->kind() != refuse_kind) return nullptr;
    return std::make_unique<Steps>(this, block, steps);
  }
  DevicePath PathTo(const Device& device) override { return to_->PathTo(device); }
  size_t max_exposure() const override { return to_->max_exposure(); }
  ExposurePieces exposure_pieces() const override { return to_->exposure_pieces(); }
  absl::StatusOr<std::string> Listen() override {
    if (!listen_status.ok()) return listen_status;
    return to_->Listen();
  }
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override {
    last_domain = limits.domain;
    return to_->Create(limits);
  }
  absl::StatusOr<RemoteMemory> Expose(ConnectionId connection, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override {
    if (Refuses(*block)) return absl::UnavailableError("not now");
    if (block->kind() == refuse_kind) return absl::ResourceExhaustedError("this kind is refused");
    if (exposure_steps > 0 && before_exposure_step) before_exposure_step(block->id());
    ++exposures;
    return to_->Expose(connection, std::move(block), offset, bytes);
  }
  absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId connection, const std::shared_ptr<MemoryBlock>& block, size_t offset,
      size_t bytes) override {
    if (exposure_steps == 0) return to_->StartExposure(connection, block, offset, bytes);
    if (Refuses(*block)) return absl::UnavailableError("not now");
    return std::make_unique<ExposureSteps>(this, connection, block, offset, bytes, exposure_steps);
  }
  absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> complete) override {
    if (exposure_steps == 0) return to_->FinishExposure(std::move(complete));
    const auto& started = static_cast<const ExposureSteps&>(*complete);
    ++exposures;
    return to_->Expose(started.connection, started.block, started.offset, started.bytes);
  }
  void Unexpose(ConnectionId connection, const RemoteMemory& memory) override {
    to_->Unexpose(connection, memory);
  }
  absl::Status Connect(ConnectionId connection, const std::string& address,
                       std::string_view private_data) override {
    return to_->Connect(connection, address, private_data);
  }
  absl::Status Prepare(ConnectionId connection, const ConnectionLimits& limits) override {
    last_domain = limits.domain;
    return to_->Prepare(connection, limits);
  }
  absl::Status Accept(ConnectionId connection) override { return to_->Accept(connection); }
  void Reject(ConnectionId connection, std::string_view reason) override {
    to_->Reject(connection, reason);
  }
  absl::Status PostReceives(ConnectionId connection, uint32_t count) override {
    return to_->PostReceives(connection, count);
  }
  absl::Status PostWrite(ConnectionId connection, const WriteRequest& request) override {
    return to_->PostWrite(connection, request);
  }
  bool CanBorrow() const override { return to_->CanBorrow(); }
  absl::StatusOr<Borrowed> Borrow(ConnectionId connection, const RemoteMemory& memory,
                                  size_t bytes) override {
    return to_->Borrow(connection, memory, bytes);
  }
  size_t Poll(absl::Span<Completion> out) override { return to_->Poll(out); }
  size_t PollEvents(absl::Span<ConnectionEvent> out) override { return to_->PollEvents(out); }
  void Close(ConnectionId connection) override { to_->Close(connection); }
  bool Dead(ConnectionId connection) const override { return !never_dead && to_->Dead(connection); }
  void Destroy(ConnectionId connection) override { to_->Destroy(connection); }
  void AppendDescriptors(std::vector<int>* fds) const override { to_->AppendDescriptors(fds); }
  bool Arm(SleepUntil until) override {
    last_until = until;
    return to_->Arm(until);
  }
  bool WakeOnAnything() override {
    last_until = SleepUntil::kAnything;
    return to_->WakeOnAnything();
  }
  void Disarm() override { to_->Disarm(); }
  void WakePeer(ConnectionId connection, Wakes wakes) override {
    woken.push_back(wakes);
    to_->WakePeer(connection, wakes);
  }

 private:
  bool Refuses(const MemoryBlock& block) {
    return block.id() == refuse_block || (refusals > 0 && refusals-- > 0);
  }

  class Steps final : public Registration {
   public:
    Steps(ForwardingEndpoint* endpoint, std::shared_ptr<MemoryBlock> block, int count)
        : endpoint_(endpoint), block_(std::move(block)), count_(count) {
      ++endpoint_->live_registrations;
    }
    ~Steps() override { --endpoint_->live_registrations; }
    absl::Status Step() override {
      if (done_ + 1 < count_) {
        ++done_;
        return absl::OkStatus();
      }
      if (absl::Status s = endpoint_->Register(block_); !s.ok()) return s;
      const std::lock_guard<std::mutex> lock(endpoint_->mutex_);
      endpoint_->registered_.insert(block_->id());
      ++done_;
      return absl::OkStatus();
    }
    bool complete() const override { return done_ == count_; }
    uint64_t registered_bytes() const override {
      return block_->size() * static_cast<uint64_t>(done_) / static_cast<uint64_t>(count_);
    }

   private:
    ForwardingEndpoint* const endpoint_;
    const std::shared_ptr<MemoryBlock> block_;
    const int count_;
    std::atomic<int> done_{0};
  };

  struct ExposureSteps final : Registration {
    ExposureSteps(ForwardingEndpoint* from, ConnectionId of, std::shared_ptr<MemoryBlock> memory,
                  size_t begin, size_t size, int steps_of)
        : endpoint(from),
          connection(of),
          block(std::move(memory)),
          offset(begin),
          bytes(size),
          count(steps_of) {
      ++endpoint->live_registrations;
    }
    ~ExposureSteps() override { --endpoint->live_registrations; }
    absl::Status Step() override {
      if (endpoint->before_exposure_step) endpoint->before_exposure_step(block->id());
      if (done < count) ++done;
      return absl::OkStatus();
    }
    bool complete() const override { return done == count; }
    uint64_t registered_bytes() const override {
      return bytes * static_cast<uint64_t>(done) / static_cast<uint64_t>(count);
    }
    ForwardingEndpoint* const endpoint;
    const ConnectionId connection;
    const std::shared_ptr<MemoryBlock> block;
    const size_t offset, bytes;
    const int count;
    std::atomic<int> done{0};
  };

  std::unique_ptr<Endpoint> to_;
  std::mutex mutex_;
  std::set<uint64_t> registered_;  // blocks; under mutex_
};

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FORWARDING_ENDPOINT_H_
