// One process's endpoint in the simulated fabric.
//
// **Thread safety**: the network's thread.
#ifndef VERBENA_RDMA_SIM_SIM_ENDPOINT_H_
#define VERBENA_RDMA_SIM_SIM_ENDPOINT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/sim/sim_core.h"
#include "rdma/transport.h"

namespace verbena::rdma {

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(std::shared_ptr<SimCore> core, std::string host);
  ~SimEndpoint() override;

  std::string_view transport() const override { return "sim"; }
  DevicePath PathTo(const Device& device) override {
    if (!core_->reaches_devices()) return Endpoint::PathTo(device);
    return {DeviceRoute::kPeerMemory, "simulated"};
  }
  absl::StatusOr<std::string> Listen() override;
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override;
  absl::StatusOr<RemoteMemory> Expose(ConnectionId connection, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override;
  void Unexpose(ConnectionId connection, const RemoteMemory& memory) override;
  absl::Status Connect(ConnectionId connection, const std::string& address,
                       std::string_view private_data) override;
  absl::Status Prepare(ConnectionId connection, const ConnectionLimits& limits) override;
  absl::Status Accept(ConnectionId connection) override;
  void Reject(ConnectionId connection, std::string_view reason) override;
  absl::Status PostReceives(ConnectionId connection, uint32_t count) override;
  absl::Status PostWrite(ConnectionId connection, const WriteRequest& request) override;
  size_t Poll(absl::Span<Completion> out) override;
  size_t PollEvents(absl::Span<ConnectionEvent> out) override;
  void Close(ConnectionId connection) override;
  bool Dead(ConnectionId connection) const override;
  void Destroy(ConnectionId connection) override;
  void AppendDescriptors(std::vector<int>*) const override {}
  bool Arm(SleepUntil until) override;
  bool WakeOnAnything() override;
  void Disarm() override { sleep_.reset(); }
  void WakePeer(ConnectionId connection, Wakes wakes) override;
  // Whether a wake-up has arrived since Arm(). A driver that sleeps in virtual time then runs the
  // owner; otherwise it does so at the owner's next timer.
  bool woken() const { return woken_; }
  // Whether a reply has arrived since Arm() without a wake-up, which only SleepUntil::kLastAnswer
  // allows.
  bool slept_through() const { return slept_through_; }
  // Whether there is anything that the owner has not seen. A driver that runs the owner only then,
  // and at its timers, misses nothing.
  bool pending() const { return news_ || !completions_.empty() || !events_.empty(); }

  // For SimCore.
  const std::string& host() const { return host_; }
  bool crashed() const { return crashed_; }
  void MarkCrashed();
  // Adds a connection for an incoming request.
  void AddRequest(std::shared_ptr<SimLink> link, std::string private_data);
  void Push(const Completion& completion, Wakes wakes = Wakes::kPeer) {
    completions_.push_back(completion);
    core_->CountNews();
    // A successful send completion is not a reply.
    const bool sent = completion.kind == Completion::Kind::kSend && completion.ok;
    Wake(sent ? Wakes::kImpatientPeer : wakes);
  }
  void Push(ConnectionEvent event) {
    events_.push_back(std::move(event));
    core_->CountNews();
    Wake(Wakes::kPeer);
  }
  // Reports changes without an event: a connection is dead, or memory may be exposed again.
  void Notify() {
    news_ = true;
    core_->CountNews();
  }
  // Handles the arrival of a write with `wakes`. The rule is that of shm.
  void Wake(Wakes wakes) {
    if (!sleep_.has_value() || wakes == Wakes::kNobody) return;
    if (*sleep_ == SleepUntil::kLastAnswer && wakes == Wakes::kImpatientPeer) {
      slept_through_ = true;
      return;
    }
    woken_ = true;
    Notify();
  }
  // Every link of this endpoint in order of id, with its side.
  struct Entry {
    std::shared_ptr<SimLink> link;
    int side = 0;
    SimSide& mine() const { return link->sides[side]; }
  };
  const std::map<ConnectionId, Entry>& connections() const { return connections_; }

 private:
  Entry* Find(ConnectionId connection);
  // Adjusts `wakes` by the connection's completions that have arrived and were not polled.
  Wakes Weighed(ConnectionId connection, Wakes wakes) const;
  absl::Status CheckSegments(const WriteRequest& request, uint64_t* total) const;

  std::shared_ptr<SimCore> core_;
  std::string host_;
  uint32_t number_;
  std::string address_;
  bool crashed_ = false;
  uint32_t next_id_ = 1;
  std::map<ConnectionId, Entry> connections_;
  std::deque<Completion> completions_;
  std::deque<ConnectionEvent> events_;
  std::optional<SleepUntil> sleep_;  // set while armed
  bool woken_ = false, slept_through_ = false;
  bool news_ = false;  // news since the last Poll()
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SIM_SIM_ENDPOINT_H_
