// One connection of an ofi endpoint: its socket, its libfabric endpoint and outstanding work.
//
//     kCreated -> kConnecting (socket; hello sent) -> kJoining -> kEstablished -> kEnded
//     kIncoming (no hello yet) -> kRequested -> kJoining (accepted) -> kEstablished -> kEnded
//     kJoining: both sides know the peer's endpoint; the first write of each side (the join,
//     without content) is in flight. The acceptor sends its own only after the initiator's has
//     arrived. So libfabric never connects from both sides at once, and an established connection
//     is known to work in both directions. any -> kEnded: closed by this side, gone or in error.
//     The libfabric endpoint and its keys are closed then: no more memory is read or written for
//     this connection.
//
// **Thread safety**: the endpoint's thread.
//
// Invariants:
//  1. The libfabric endpoint exists from Prepare() until kEnded; no key outlives it.
//  2. `ops_` holds every write that was posted and not retired, oldest first: libfabric has
//     [first_, issued_) and had no room yet for [issued_, next_). They are retired in order.
//  3. A write to memory that no write has reached yet is confirmed: it completes when the peer's
//     side has done it, so that its own completion reports a refusal. Other writes complete when
//     they are sent. (Confirming every write would double the packets of small writes.)
//  4. The peer's data is checked when it is read: a write's number, its secret, and that a receive
//     was posted for it.
#ifndef VERBENA_RDMA_OFI_OFI_CONNECTION_H_
#define VERBENA_RDMA_OFI_OFI_CONNECTION_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rdma/base/ring_queue.h"
#include "rdma/base/unique_fd.h"
#include "rdma/ofi/ofi_endpoint.h"
#include "rdma/ofi/ofi_handles.h"
#include "rdma/ofi/ofi_socket.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// Base of exposed addresses when libfabric counts offsets from 0. Lower addresses, including 0, are
// then outside of the memory.
inline constexpr uint64_t kOfiOffsetBase = uint64_t{1} << 32;

// Keys belong to a domain: connections of different domains cannot access each other's memory.
struct OfiDomain {
  FabricDomainHandle domain;
};

// State shared by the connections of an endpoint.
struct OfiShared {
  OfiOptions options;
  FabricInfo info;
  std::string ip;  // local address
  FabricHandle fabric;
  bool virtual_addresses = false;  // FI_MR_VIRT_ADDR: remote addresses are those of the owner
  UniqueFd sockets;                // an epoll set: listener, sockets, timer
  UniqueFd sleepers;               // an epoll set: `sockets`, and the completion queues
  RingQueue<Completion> completions{256};
  std::deque<ConnectionEvent> events;
};

class OfiConnection {
 public:
  enum class State : uint8_t {
    kCreated,
    kConnecting,
    kIncoming,
    kRequested,
    kJoining,
    kEstablished,
    kEnded
  };

  OfiConnection(OfiShared* shared, ConnectionId id) : shared_(shared), id_(id) {}
  ~OfiConnection();
  OfiConnection(const OfiConnection&) = delete;
  OfiConnection& operator=(const OfiConnection&) = delete;

  // ---- set-up ----
  absl::Status Prepare(const ConnectionLimits& limits, std::shared_ptr<OfiDomain> domain);
  absl::StatusOr<RemoteMemory> Expose(std::shared_ptr<MemoryBlock> block, size_t offset,
                                      size_t bytes);
  void Unexpose(const RemoteMemory& memory);
  absl::Status Connect(const std::string& address, std::string_view private_data,
                       int64_t deadline_ns);
  void AdoptSocket(UniqueFd socket, int64_t deadline_ns);  // of a peer that connected to this side
  absl::Status Accept(int64_t deadline_ns);
  void Reject(std::string_view reason);

  // ---- data path ----
  absl::Status PostReceives(uint32_t count);
  absl::Status PostWrite(const WriteRequest& request);
  // Progresses libfabric and takes its completions. May end the connection. False: nothing
  // happened.
  bool Drive();

  // ---- driven by the endpoint ----
  void OnSocket();               // its descriptor is ready
  void OnTime(int64_t now_ns);   // handshaking(): deadlines
  void OnEstablishedReported();  // from now on receives are reported
  bool handshaking() const {
    return state_ == State::kConnecting || state_ == State::kIncoming || state_ == State::kJoining;
  }
  // Drive() has work, now or when its completion queue's descriptor is ready.
  bool active() const { return state_ == State::kJoining || state_ == State::kEstablished; }
  // No descriptor reports progress: the endpoint checks again after a moment.
  bool waiting() const { return state_ == State::kJoining || issued_ != next_; }
  fid* queue() const { return &cq_->fid; }
  int64_t deadline_ns() const { return deadline_ns_; }
  bool discard() const { return discard_; }  // the owner has never seen it

  // ---- ending ----
  void Close();
  ConnectionId id() const { return id_; }
  State state() const { return state_; }

 private:
  struct Op {
    fi_context2 context;  // used by libfabric while it has the write (FI_CONTEXT2)
    std::array<iovec, kMaxSegments> pieces;
    size_t piece_count;
    RemoteMemory remote;
    uint64_t bytes;
    uint64_t data;
    uint64_t wr_id;
    bool has_immediate;
    bool internal;   // the join: not reported
    bool confirmed;  // completes on arrival instead of on sending
    bool signaled;
    bool done;
  };
  struct Exposed {
    RemoteMemory memory;
    std::shared_ptr<MemoryBlock> block;
    FabricMrHandle region;  // ends before the memory
  };
  // Range of the peer's memory under one key, from the lowest to the highest address that a write
  // has reached.
  struct Reached {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  enum class Why : uint8_t { kOwner, kError, kPeer };
  static constexpr uint64_t kNone = ~uint64_t{0};

  absl::Status OpenEndpoint();
  absl::StatusOr<Exposed> MakeExposed(std::shared_ptr<MemoryBlock> block, size_t offset,
                                      size_t bytes);
  OfiMessage Introduction(OfiMessageType type, std::string_view text) const;
  absl::Status AdoptPeer(const OfiMessage& message);
  absl::Status Watch(int fd) const;
  absl::Status AddressPeer();
  void OnMessage(const OfiMessage& message);
  void Established();

  Op& At(uint64_t number) { return ops_[number & ops_mask_]; }
  void Append(Op* op, bool has_immediate, uint32_t immediate);
  void AppendJoin();
  void Issue();
  bool IsReached(const Op& op);
  void AddReached(const Op& op);
  absl::Status ReadQueue();
  absl::Status KnownReason(absl::Status failure);
  absl::Status OnArrived(uint64_t data);
  void OnDone(const void* context);
  absl::Status OnQueueError();
  void Retire();
  void Report(Completion::Kind kind, bool ok, bool flushed, uint64_t wr_id, uint32_t immediate);
  void Push(ConnectionEvent::Kind kind, std::string private_data, absl::Status status);
  void End(const absl::Status& status, Why why);
  void FlushWrites();
  void CloseSocket();

  OfiShared* shared_;
  ConnectionId id_;
  State state_ = State::kCreated;
  bool discard_ = false;
  bool closed_ = false;  // by its owner
  bool initiator_ = false;
  bool reported_ = false;  // PollEvents() has returned kEstablished
  size_t read_ = 0;        // completions of the last ReadQueue()
  int64_t deadline_ns_ = 0;
  OfiSocket socket_;
  ConnectionLimits limits_ = {0, 0};

  // Members are in reverse order of teardown.
  std::shared_ptr<OfiDomain> domain_;
  FabricCqHandle cq_;
  int cq_fd_ = -1;
  FabricAvHandle av_;
  std::vector<Exposed> exposed_;
  std::shared_ptr<MemoryBlock> doorbell_;
  Exposed doorbell_exposed_;
  FabricEpHandle ep_;
  std::string name_;

  uint32_t secret_ = 0;  // required in the peer's writes
  uint32_t peer_secret_ = 0;
  RemoteMemory peer_doorbell_;
  std::string peer_name_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;

  std::vector<Op> ops_;  // the size is a power of two
  uint64_t ops_mask_ = 0;
  uint64_t first_ = 0;
  uint64_t issued_ = 0;
  uint64_t next_ = 0;
  absl::flat_hash_map<uint64_t, Reached> reached_;  // by key
  uint64_t last_key_ = 0;                           // key of last_reached_
  const Reached* last_reached_ = nullptr;
  uint64_t failed_ = kNone;  // the write whose error ended the connection

  uint32_t arrived_ = 0;  // number of the peer's writes, modulo 2^31
  uint64_t posted_ = 0;   // receives
  uint64_t consumed_ = 0;
  std::vector<Completion> held_;  // receives before reported_
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_CONNECTION_H_
