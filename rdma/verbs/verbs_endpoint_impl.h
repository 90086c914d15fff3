// Implementation of the verbs endpoint: verbs_endpoint.cc (set-up and end),
// verbs_endpoint_memory.cc (registering and exposing), verbs_endpoint_cm.cc (events of librdmacm
// and the device), verbs_endpoint_data.cc (posting, polling, sleeping).
//
// **Thread safety**: one owner thread. Any thread may execute the steps of a started registration
// or exposure: they use the domain (verbs_domain.h) but not the endpoint.
//
// Invariants:
//  1. While completions are read, a failing connection is only marked. It is retired
//     (LoseFailing()) when none of its completions is unread.
//  2. A connection whose queue pair the device does not destroy is not dead: destruction is
//     retried, its flushed completions are held back, and its memory is kept.
//  3. While device_ is held, anchor_ is bound to it, so that its context stays open.
#ifndef VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_
#define VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rdma/base/clock.h"
#include "rdma/base/ring_queue.h"
#include "rdma/base/unique_fd.h"
#include "rdma/memory/slab_pool.h"
#include "rdma/verbs/verbs_connection.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

class VerbsEndpointImpl final : public Endpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Endpoint>> Make(const VerbsOptions& options);
  ~VerbsEndpointImpl() override;

  std::string_view transport() const override { return "verbs"; }
  std::string device() const override { return absl::StrCat(port_.device, ":", port_.port); }
  std::string settings() const override { return settings_; }
  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes,
                                                        std::string_view label) override;
  absl::Status Register(const std::shared_ptr<MemoryBlock>& block) override;
  absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& block) override;
  DevicePath PathTo(const Device& device) override;
  size_t max_exposure() const override;
  ExposurePieces exposure_pieces() const override;

  absl::StatusOr<std::string> Listen() override;
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override;
  absl::StatusOr<RemoteMemory> Expose(ConnectionId id, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId id, const std::shared_ptr<MemoryBlock>& block, size_t offset,
      size_t bytes) override;
  absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> complete) override;
  void Unexpose(ConnectionId id, const RemoteMemory& memory) override;
  absl::Status Connect(ConnectionId id, const std::string& address,
                       std::string_view private_data) override;
  absl::Status Prepare(ConnectionId id, const ConnectionLimits& limits) override;
  absl::Status Accept(ConnectionId id) override;
  void Reject(ConnectionId id, std::string_view reason) override;

  absl::Status PostReceives(ConnectionId id, uint32_t count) override;
  absl::Status PostWrite(ConnectionId id, const WriteRequest& request) override;
  size_t Poll(absl::Span<Completion> out) override;
  size_t PollEvents(absl::Span<ConnectionEvent> out) override;

  void Close(ConnectionId id) override;
  bool Dead(ConnectionId id) const override;
  void Destroy(ConnectionId id) override;

  void AppendDescriptors(std::vector<int>* fds) const override;
  bool Arm(SleepUntil until) override;
  void Disarm() override;

 private:
  using State = VerbsConnection::State;

  explicit VerbsEndpointImpl(const VerbsOptions& options) : options_(options) {}

  // ---- verbs_endpoint.cc
  absl::Status OpenDevice();
  absl::Status OpenChannels();
  absl::Status BindAnchor();
  absl::Status StartListening();
  void CloseDevice(const std::string& reason);
  absl::Status NeedDevice();  // reopens the device after it was removed and has returned
  absl::StatusOr<CompletionQueue*> QueueWithRoom(uint32_t entries);
  absl::Status StartConnection(VerbsConnection* connection, const ConnectionLimits& limits);
  VerbsConnection* Find(ConnectionId id) const;
  ConnectionId Adopt(CmIdHandle cm_id, State state);
  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  // ---- verbs_endpoint_memory.cc
  void MakeSlabs();
  absl::StatusOr<std::shared_ptr<DomainView>> View(uint64_t key);
  // Keeps the domain as long as the steps exist, because its destructor would wait for a step in
  // progress.
  void Keep(std::shared_ptr<DomainView> view,
            const std::shared_ptr<VerbsDomain::MemorySteps>& steps);
  void LetGo();  // releases the domains of finished steps
  // Waits until there is room for another bind, for a limited time. After a timeout it does not
  // wait again before one of the connection's binds has completed.
  void WaitForBinds(VerbsConnection* connection);

  // ---- verbs_endpoint_cm.cc
  bool PollCm();  // whether it has read every event that was available
  void OnCmEvent(VerbsConnection* connection, rdma_cm_event_type type, int status,
                 const std::string& private_data);
  void OnRequest(rdma_cm_id* id, std::string private_data);
  void NextStage(VerbsConnection* connection);   // restarts connect_timeout
  void Connecting(VerbsConnection* connection);  // its route is resolved
  void OnResponse(VerbsConnection* connection);
  void FinishBinding(VerbsConnection* connection);
  void Established(VerbsConnection* connection);
  void PollDeviceEvents();
  void OnQueueError(const ibv_cq* cq);
  void CheckTimers(bool read_all);
  bool IsLate(VerbsConnection* connection, bool read_all) const;
  int64_t DeadlineFromNow() const;

  // ---- verbs_endpoint_data.cc
  void PollQueue(CompletionQueue* queue, size_t budget);
  void HandleCompletion(const ibv_wc& completion);
  void DrainQueue(CompletionQueue* queue);
  // Ends the connection; reports kLost, or kFailed if it was not established yet.
  void Lose(VerbsConnection* connection, absl::Status reason);
  void LoseFailing();
  void Retire(VerbsConnection* connection);
  bool TryRetire(VerbsConnection* connection);
  void RetryStuck();
  void Report(Completion completion);
  void Report(ConnectionEvent::Kind kind, ConnectionId id, absl::Status status = {},
              std::string private_data = {});
  void DrainChannel();

  VerbsOptions options_;  // after the first opening, device and address are the selected ones
  MonotonicClock clock_;
  VerbsPort port_;
  uint16_t listen_port_ = 0;  // of the listener, for listening again
  bool listening_ = false;
  int64_t next_open_ns_ = 0;
  std::string settings_;  // of the last connection's path, as logged
  std::string removed_;   // why there is no device; empty: there is one

  // Members are in reverse order of teardown.
  EventChannelHandle events_channel_;
  UniqueFd wake_;
  std::shared_ptr<AsyncInbox> inbox_;
  CmIdHandle anchor_;
  std::shared_ptr<VerbsDevice> device_;
  CompletionChannelHandle channel_;
  std::shared_ptr<SlabPool> slabs_;
  std::map<uint64_t, std::weak_ptr<DomainView>> views_;
  std::shared_ptr<DomainView> common_view_;  // with windows: shared by every connection
  struct Stepped {
    std::weak_ptr<VerbsDomain::MemorySteps> steps;
    std::shared_ptr<DomainView> view;
  };
  std::vector<Stepped> stepped_;  // entries of Keep()
  std::vector<std::unique_ptr<CompletionQueue>> queues_;
  CmIdHandle listener_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<VerbsConnection>> connections_;
  uint32_t next_id_ = 1;
  VerbsConnection* last_ = nullptr;           // cache of Find(): traffic comes in bursts
  std::vector<VerbsConnection*> connecting_;  // with a deadline
  std::vector<ConnectionId> failing_;
  std::vector<VerbsConnection*> stuck_;  // the device refused to destroy them: not dead
  std::vector<std::unique_ptr<VerbsConnection>> forgotten_;  // connections of stuck_ after
                                                             // Destroy()
  int64_t next_retry_ns_ = 0;

  RingQueue<Completion> ready_;
  RingQueue<ConnectionEvent> events_;
  std::vector<Completion> scratch_;
  std::vector<Completion> unread_;
  uint64_t cm_events_ = 0;  // number of librdmacm events read so far
  uint32_t turns_ = 0;
  bool look_ = true;  // check the descriptors at the next PollEvents()
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_ENDPOINT_IMPL_H_
