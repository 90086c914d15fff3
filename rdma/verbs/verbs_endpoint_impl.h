// Implementation of the verbs endpoint. It owns the device and the connections, and has four parts,
// each with one job, which reach each other through it:
//
//     part     job                                                   file
//     memory   registrations, regions for exposures                  verbs_memory.h
//     queues   completion queues                                     verbs_queues.h
//     cm       connecting: the events of librdmacm                   verbs_cm.h
//     ends     connections that fail, are lost, or are retired       verbs_ends.h
//
// **Thread safety**: one owner thread. Any thread may execute the steps of a started registration
// or exposure.
//
// Invariants:
//  1. While `nic` is held, `anchor` is bound to it, so that its context stays open.
#ifndef VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_
#define VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rdma/base/clock.h"
#include "rdma/base/ring_queue.h"
#include "rdma/base/unique_fd.h"
#include "rdma/verbs/verbs_cm.h"
#include "rdma/verbs/verbs_connection.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "rdma/verbs/verbs_ends.h"
#include "rdma/verbs/verbs_handles.h"
#include "rdma/verbs/verbs_memory.h"
#include "rdma/verbs/verbs_queues.h"

namespace verbena::rdma {

class VerbsEndpointImpl final : public Endpoint {
 public:
  using State = VerbsConnection::State;

  static absl::StatusOr<std::unique_ptr<Endpoint>> Make(const VerbsOptions& options);
  ~VerbsEndpointImpl() override;

  std::string_view transport() const override { return "verbs"; }
  std::string device() const override { return absl::StrCat(port_.device, ":", port_.port); }
  std::string settings() const override { return cm.settings(); }
  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes,
                                                        std::string_view label) override {
    return memory.Allocate(bytes, label);
  }
  absl::Status Register(const std::shared_ptr<MemoryBlock>& block) override {
    return memory.Register(block);
  }
  absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& block) override {
    return memory.StartRegistration(block);
  }
  DevicePath PathTo(const Device& target) override;
  size_t max_exposure() const override { return memory.max_exposure(); }
  ExposurePieces exposure_pieces() const override {
    return nic == nullptr ? Endpoint::exposure_pieces() : memory.exposure_pieces();
  }

  absl::StatusOr<std::string> Listen() override;
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override;
  absl::StatusOr<RemoteMemory> Expose(ConnectionId id, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId id, const std::shared_ptr<MemoryBlock>& block, size_t offset,
      size_t bytes) override {
    return memory.StartExposure(id, block, offset, bytes);
  }
  absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> complete) override {
    return memory.FinishExposure(std::move(complete));
  }
  void Unexpose(ConnectionId id, const RemoteMemory& exposed) override;
  absl::Status Connect(ConnectionId id, const std::string& address,
                       std::string_view private_data) override;
  absl::Status Prepare(ConnectionId id, const ConnectionLimits& limits) override;
  absl::Status Accept(ConnectionId id) override;
  void Reject(ConnectionId id, std::string_view reason) override;

  absl::Status PostReceives(ConnectionId id, uint32_t count) override;
  absl::Status PostWrite(ConnectionId id, const WriteRequest& request) override;
  size_t Poll(absl::Span<Completion> out) override { return queues.Poll(out); }
  size_t PollEvents(absl::Span<ConnectionEvent> out) override;

  void Close(ConnectionId id) override;
  bool Dead(ConnectionId id) const override;
  void Destroy(ConnectionId id) override;

  void AppendDescriptors(std::vector<int>* fds) const override;
  bool Arm(SleepUntil until) override;
  void Disarm() override;

  // ---- shared by the parts ----
  absl::Status NeedDevice();  // reopens the device after it was removed and has returned
  void CloseDevice(const std::string& reason);
  VerbsConnection* Find(ConnectionId id) const {
    if (last != nullptr && last->id() == id) return last;
    const auto it = connections.find(static_cast<uint32_t>(id));
    return it == connections.end() ? nullptr : it->second.get();
  }
  ConnectionId Adopt(CmIdHandle cm_id, State state);
  void Report(ConnectionEvent::Kind kind, ConnectionId id, absl::Status status = {},
              std::string private_data = {});
  void Log(const std::string& text) const {
    if (options.log) options.log(text);
  }

  VerbsOptions options;  // after the first opening, device and address are the selected ones
  MonotonicClock clock;
  RingQueue<ConnectionEvent> events;
  bool look = true;  // check the descriptors at the next PollEvents()

  // Members are in reverse order of teardown.
  EventChannelHandle events_channel;
  UniqueFd wake;
  std::shared_ptr<AsyncInbox> inbox;
  CmIdHandle anchor;
  std::shared_ptr<VerbsDevice> nic;
  CompletionChannelHandle completion_channel;
  VerbsMemory memory{this};
  VerbsQueues queues{this};
  CmIdHandle listener;
  absl::flat_hash_map<uint32_t, std::unique_ptr<VerbsConnection>> connections;
  VerbsConnection* last = nullptr;  // cache of Find(): traffic comes in bursts
  VerbsCm cm{this};
  VerbsEnds ends{this};

 private:
  explicit VerbsEndpointImpl(const VerbsOptions& o) : options(o) {}

  absl::Status OpenDevice();
  absl::Status OpenChannels();
  absl::Status BindAnchor();
  absl::Status StartListening();
  absl::Status StartConnection(VerbsConnection* connection, const ConnectionLimits& limits);
  void PollDeviceEvents();

  VerbsPort port_;
  uint16_t listen_port_ = 0;  // of the listener, for listening again
  bool listening_ = false;
  int64_t next_open_ns_ = 0;
  std::string removed_;  // why there is no device; empty: there is one
  uint32_t next_id_ = 1;
  uint32_t turns_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_
