// One connection of a verbs endpoint: its queue pair, outstanding work and exposed memory.
//
// **Thread safety**: the endpoint's thread.
//
// States:
//   kIdle       made by Create(): queue pair in INIT, receives may be posted
//   kRequested  a peer's request; no queue pair before Prepare()
//   kResolving  waiting for address and route
//   kConnecting waiting for the peer's answer (initiator), or for the peer to be ready (acceptor)
//   kBinding    queue pair in RTS; connects once the windows are bound
//   kEstablished, then kLost (in error; kLost or kFailed was reported) and kClosed
//
// Invariants:
//  1. `sends_` holds every work request that was posted and may be incomplete, oldest first. A send
//     completion retires all before it (a send queue completes in order, IBTA vol. 1, 10.8.5).
//  2. After Retire() has returned OK there is no queue pair: the device no longer accesses memory
//     for this connection, and every work request has been reported. Until then retired() is false,
//     and exposed memory is kept alive, if necessary longer than the connection.
#ifndef VERBENA_RDMA_VERBS_VERBS_CONNECTION_H_
#define VERBENA_RDMA_VERBS_VERBS_CONNECTION_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/transport.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

struct CompletionQueue {
  CqHandle cq;
  uint32_t capacity = 0;
  uint32_t used = 0;    // maximum number of entries that its connections need
  bool armed = false;   // ibv_req_notify_cq() was called and no event has been read since
  bool broken = false;  // IBV_EVENT_CQ_ERR: it reports no more completions, and is destroyed with
                        // its connections
};

// A domain, and this endpoint's cache of registrations in it.
struct DomainView {
  std::shared_ptr<VerbsDomain> domain;

  // Finds the registration of `block`'s root block, and registers it if it is not registered.
  absl::StatusOr<const RegisteredMemory*> Find(const MemoryBlock& block);
  // Starts that registration and returns the remaining steps; null: it is registered.
  std::shared_ptr<VerbsDomain::MemorySteps> StepsOf(const MemoryBlock& block) {
    if (known_.contains(block.root().id())) return nullptr;
    return domain->StartRegistration(block);
  }

 private:
  uint64_t last_id_ = 0;
  const RegisteredMemory* last_ = nullptr;
  absl::flat_hash_map<uint64_t, const RegisteredMemory*> known_;  // by root block
};

// Identification of a queue pair for operators.
struct PathText {
  std::string local;   // "rxe0:1 GID ... QPN 17"
  std::string remote;  // "10.0.0.2:7000 GID ... QPN 18"
};

class VerbsConnection {
 public:
  enum class State : uint8_t {
    kIdle,
    kRequested,
    kResolving,
    kConnecting,
    kBinding,
    kEstablished,
    kLost,
    kClosed
  };

  VerbsConnection(ConnectionId id, CmIdHandle cm_id) : id_(id), cm_id_(std::move(cm_id)) {}
  ~VerbsConnection();
  VerbsConnection(const VerbsConnection&) = delete;
  VerbsConnection& operator=(const VerbsConnection&) = delete;

  // Makes the queue pair and moves it to INIT. RESOURCE_EXHAUSTED and INVALID_ARGUMENT have the
  // requested and the available resources.
  absl::Status Start(const ConnectionLimits& limits, VerbsDevice* device,
                     std::shared_ptr<DomainView> view, CompletionQueue* queue,
                     std::shared_ptr<AsyncInbox> inbox, const VerbsOptions& options);
  // Moves from INIT to RTR to RTS; then posts the waiting binds.
  absl::Status MakeReady(const VerbsOptions& options);

  // `own`: a region from StartExposure(); null: registers here if needed.
  absl::StatusOr<RemoteMemory> Expose(std::shared_ptr<MemoryBlock> block, size_t offset,
                                      size_t bytes, MrHandle own = nullptr);
  // Null: the range needs no region of its own.
  absl::StatusOr<std::shared_ptr<VerbsDomain::MemorySteps>> StartExposure(const MemoryBlock& block,
                                                                          size_t offset,
                                                                          size_t bytes) const;
  void Unexpose(const RemoteMemory& memory);

  absl::Status PostReceives(uint32_t count);
  absl::Status PostWrite(const WriteRequest& request);
  // Posts the chain of writes to the device. Not OK: the connection is unusable.
  absl::Status Flush();

  // Appends the completions of a work completion to *out. Binds append nothing. An error, also of a
  // bind, marks the connection as failing.
  void OnWorkCompletion(const ibv_wc& completion, std::vector<Completion>* out);
  // Stops the queue pair. Afterwards, complete work must be polled from the queue.
  void Stop();
  // Destroys the windows, then the queue pair. Outstanding work is appended to *out as flushed. Not
  // OK: the device refused, so the connection is not dead; retry. `device_gone`: the kernel has
  // destroyed all objects of the device, so EIO means that the object is gone too.
  absl::Status Retire(bool device_gone, std::vector<Completion>* out);
  bool retired() const { return retired_; }
  // Gives up on a connection that cannot be retired before its device is closed. It is never dead,
  // and its memory is kept until the process ends.
  void Abandon();

  bool binding() const { return pending_binds_ > 0; }
  bool binds_full() const { return pending_binds_ >= kBinds; }
  bool has_queue_pair() const { return qp_ != nullptr; }
  bool failing() const { return !failure_.ok(); }
  void Fail(absl::Status failure) {
    if (failure_.ok()) failure_ = std::move(failure);
  }
  const absl::Status& failure() const { return failure_; }
  ibv_qp* qp() const { return qp_.get(); }
  PathText Path() const;
  // "path MTU 4096, service level 0, ...": the values in force after MakeReady().
  const std::string& settings() const { return settings_; }

  static uint32_t CompletionEntries(const ConnectionLimits& limits);
  // wr_id: connection | receive | position in the send queue.
  static ConnectionId ConnectionOf(uint64_t wr_id) {
    return static_cast<ConnectionId>(static_cast<uint32_t>(wr_id >> 32));
  }
  static bool IsReceive(uint64_t wr_id) { return (wr_id & kReceiveBit) != 0; }

  State state = State::kIdle;
  int64_t deadline_ns = 0;  // of the current stage of connecting
  // Set if the connection is overdue while events are unread: the number of the last librdmacm
  // event that may belong to it.
  uint64_t last_event = 0;
  bool initiator = false;
  bool binds_stall = false;      // no bind has completed since a wait for binds timed out
  bool reported = false;         // PollEvents() has returned kEstablished
  std::vector<Completion> held;  // receive completions until then
  std::string private_data;      // argument of Connect(), until the route is resolved

  ConnectionId id() const { return id_; }
  rdma_cm_id* cm_id() const { return cm_id_.get(); }
  // librdmacm closes a device's context with its last id.
  void DropCmId() { cm_id_.reset(); }
  CompletionQueue* queue() const { return queue_; }
  // Null after the connection is retired.
  const std::shared_ptr<DomainView>& view() const { return view_; }

 private:
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 31;
  static constexpr uint32_t kPositionMask = 0x7fffffff;
  static constexpr int kChain = 4;
  static constexpr int kMaxSges = 2 * kMaxSegments;  // a segment may straddle two regions
  // Maximum number of binds in flight, in addition to the send depth.
  static constexpr uint32_t kBinds = 16;

  struct Send {
    enum class Kind : uint8_t { kWrite, kBind };
    uint64_t wr_id = 0;
    Kind kind = Kind::kWrite;
    bool signaled = true;  // requested by the caller
  };
  struct Exposure {
    RemoteMemory memory;
    std::shared_ptr<MemoryBlock> block;
    MwHandle window;
    MrHandle region;  // without windows, or of a window for which the block's region is not
                      // suitable
    ibv_mr* bound_to = nullptr;
    size_t bytes = 0;
    bool posted = false;  // its bind was posted
    bool bound = false;
    bool taken_back = false;  // unexposed before it was bound: released after the bind
  };

  uint64_t WrId(uint64_t position) const {
    return static_cast<uint64_t>(static_cast<uint32_t>(id_)) << 32 | (position & kPositionMask);
  }
  absl::Status MakeQueuePair(const ConnectionLimits& limits, const VerbsDevice& device,
                             const VerbsOptions& options);
  absl::Status Modify(ibv_qp_state state, const VerbsOptions& options);
  absl::Status CheckExposure(const MemoryBlock* block, size_t offset, size_t bytes) const;
  // Whether the range needs its own region, as far as can be determined without registration.
  std::optional<VerbsDomain::PartUse> NeedsOwn(const MemoryBlock& block, const std::byte* data,
                                               size_t bytes) const;
  absl::Status PostBind(Exposure* exposure);
  void OnBound();
  absl::Status CheckWrite(const WriteRequest& request) const;
  absl::Status Gather(const WriteRequest& request, ibv_sge* sges, int* count);
  Send& At(uint64_t position) { return sends_[position % sends_.size()]; }

  ConnectionId id_;
  CmIdHandle cm_id_;
  std::shared_ptr<DomainView> view_;
  std::string device_name_;
  CompletionQueue* queue_ = nullptr;
  uint32_t entries_ = 0;           // reserved in queue_
  VerbsDevice* device_ = nullptr;  // the device that watches qp_; null: none
  QpHandle qp_;
  bool retired_ = true;  // no object is left that the device could use
  bool windows_ = false;
  std::vector<Exposure> exposures_;
  uint32_t pending_binds_ = 0;

  ConnectionLimits limits_ = {};
  uint32_t inline_bytes_ = 0;
  uint32_t max_sges_ = kMaxSegments;
  uint64_t max_message_ = 0;
  uint64_t max_window_ = 0;
  uint64_t max_region_ = 0;
  uint32_t receives_ = 0;    // posted and not consumed
  std::vector<Send> sends_;  // ring
  uint64_t first_ = 0;       // oldest that may be incomplete
  uint64_t next_ = 0;
  uint32_t signaled_ = 0;        // signaled ones among them
  uint32_t unsignaled_run_ = 0;  // posted since the last one with a work completion
  uint32_t signal_every_ = 1;

  int chained_ = 0;
  std::array<ibv_send_wr, kChain> chain_ = {};
  std::array<std::array<ibv_sge, kMaxSges>, kChain> sges_ = {};

  absl::Status failure_;
  PathText path_;
  std::string settings_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_CONNECTION_H_
