// What a transport is: connections that carry one-sided writes with immediate data.
//
// An Endpoint is one thread's view of one transport: its connections, their completions (a
// completion queue), their events (an rdma_cm event channel). The semantics are those of a
// reliable-connected queue pair (InfiniBand Architecture Specification vol. 1, 9.7), reduced to
// what every transport can give:
//
//  1. Writes of a connection take effect in order. The content of written memory is undefined
//     until the receive completion of that write, or of a later one on the same connection.
//  2. A write with immediate data consumes one posted receive of the peer. None posted is a
//     connection error on both sides (rnr_retry 0): an accounting bug is loud.
//  3. A send completion means the local memory may be reused. It says nothing about the peer.
//  4. After Close() returns, the peer can no longer write to memory exposed on this connection and
//     nothing more is read from local memory for it ("dead on our side"). Outstanding work ends
//     with flushed completions, which Poll() still reports.
//  5. Ids are never reused within an endpoint.
//  6. A write that cannot be done (unknown key, range outside what the peer exposed, no receive
//     posted) puts the connection in error: PostWrite() has returned OK, its completion is not ok
//     (signaled or not), kLost follows on both sides. Receives posted and not consumed end flushed.
//  7. No receive completion is reported before PollEvents() has returned kEstablished.
//  8. One side may miss that the other has closed (verbs: a disconnect request that an outage
//     swallows is not sent again once its process has let go). It learns so by its next write: an
//     empty one without immediate changes nothing at the peer and fails when it is not there.
//  9. A call with an id that does not exist (any more) does nothing or is FAILED_PRECONDITION.
//
// **Thread safety**: an endpoint and everything of it belongs to one thread, except that the steps
// of a Registration may be taken by another one meanwhile.
#ifndef VERBENA_RDMA_TRANSPORT_H_
#define VERBENA_RDMA_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"

namespace verbena::rdma {

// A connection of an endpoint. 0 is none.
enum class ConnectionId : uint32_t { kNone = 0 };

// Where a peer's exposed memory is.
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t key = 0;
};

// A piece of local memory to gather from; `block` contains it.
struct Segment {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  const MemoryBlock* block = nullptr;
};

inline constexpr int kMaxSegments = 2;

// Whether a segment lies within its block (an empty one always does).
inline bool WithinBlock(const Segment& segment) {
  if (segment.bytes == 0) return true;
  if (segment.block == nullptr) return false;
  // As integers: pointers into different objects do not compare.
  const auto data = reinterpret_cast<uintptr_t>(segment.data);
  const auto begin = reinterpret_cast<uintptr_t>(segment.block->data());
  const size_t size = segment.block->size();
  return data >= begin && data - begin <= size && segment.bytes <= size - (data - begin);
}

// Whether a write with an immediate wakes a peer that sleeps (Endpoint::Arm()). A transport may
// wake it more often. Verbs have the same as solicited events (ibv_req_notify_cq(3)).
enum class Wakes : uint8_t {
  kPeer,
  kPeerAtLast,     // it is the last answer, unless more of the peer's has arrived than was polled
  kImpatientPeer,  // not one that sleeps until the last answer
  kNobody,         // yet: WakePeer() follows at once
};

// What to be woken by. kLastAnswer is a promise about the requests that are in flight when the
// endpoint is armed: nothing depends on their answers before the last one. A request that is posted
// later is not covered; Endpoint::WakeOnAnything() comes before it.
enum class SleepUntil : uint8_t { kAnything, kLastAnswer };

struct WriteRequest {
  uint64_t wr_id = 0;
  absl::Span<const Segment> segments;  // at most kMaxSegments; may be empty
  RemoteMemory remote;
  std::optional<uint32_t> immediate;
  bool signaled = true;  // whether its send completion is reported (errors always are)
  // Another write to this connection is posted right after: the two may go to the device together.
  bool more = false;
  Wakes wakes = Wakes::kPeer;
};

// Memory of a peer's, read where it lies.
struct Borrowed {
  absl::Span<const std::byte> bytes;  // the peer may change them at any time
  std::shared_ptr<const void> hold;   // they are there for as long as this is
};

struct Completion {
  enum class Kind : uint8_t { kSend, kReceive };
  ConnectionId connection = ConnectionId::kNone;
  Kind kind = Kind::kSend;
  bool ok = true;          // false: failed or flushed; the connection is in error
  bool flushed = false;    // true when !ok only because an earlier one failed or Close() was called
  uint64_t wr_id = 0;      // kSend
  uint32_t immediate = 0;  // kReceive
};

struct ConnectionEvent {
  enum class Kind : uint8_t {
    kRequest,      // a peer wants to connect to our listener: Accept() or Reject()
    kEstablished,  // both sides may write
    kFailed,  // connecting, or a request, came to nothing; status says why: refused by the peer
              // FAILED_PRECONDITION, timed out DEADLINE_EXCEEDED, peer gone UNAVAILABLE, too many
              // requests wait at the peer ABORTED (try again). Of a request some transports know it
              // only once it was accepted (verbs)
    kLost,    // an established connection is in error or the peer closed it
  };
  Kind kind;
  ConnectionId connection = ConnectionId::kNone;
  std::string private_data;  // kRequest: what the peer gave to Connect()
  absl::Status status;       // kFailed, kLost
};

struct ConnectionLimits {
  uint32_t send_depth;     // writes that may be outstanding
  uint32_t receive_depth;  // receives that may be posted
  // Connections of different domains cannot reach each other's memory, whatever keys they know. On
  // most transports that holds for any two connections; verbs without memory windows needs it.
  uint64_t domain = 0;
};

inline constexpr size_t kMaxPrivateData = 56;  // rdma_connect(3), RDMA_PS_TCP

// Whether Register(), Create(), Expose() or Connect() refused for now (UNAVAILABLE): the same call
// may succeed later, or on another connection once kLost has ended this one. The caller keeps its
// request and tries again after each sleep, until its own deadline; an endpoint ends a sleep when
// another attempt is worth it. Every other code is final for this argument on this connection.
inline bool IsNotNow(const absl::Status& status) { return absl::IsUnavailable(status); }

// Memory that is being made ready for an endpoint (Endpoint::StartRegistration()) or for one of its
// connections (Endpoint::StartExposure()), in steps.
//
// **Thread safety**: Step() is for one thread at a time, any thread, also while the endpoint's
// owner uses the endpoint; so is the destructor. The others may be called meanwhile. Ends before
// its endpoint does.
class Registration {
 public:
  // One that is not complete is given up: nothing stays registered.
  virtual ~Registration() = default;

  // Registers the next piece: of at most some 256 MiB, where the transport can cut. Errors as
  // Endpoint::Register(), after which nothing stays registered; UNAVAILABLE: the device was closed.
  virtual absl::Status Step() = 0;
  // All pieces are there: Register() and Expose() find them, FinishExposure() may be called.
  virtual bool complete() const = 0;
  virtual uint64_t registered_bytes() const = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual std::string_view transport() const = 0;    // "shm", "verbs", "ofi", "sim"
  virtual std::string device() const { return {}; }  // "mlx5_0:1"; empty: there is none
  // What connections of it travel with ("path MTU 4096, ..."), once there was one; empty: nothing.
  virtual std::string settings() const { return {}; }

  // ---- memory -----------------------------------------------------------------------------------
  // Zeroed host memory for a connection's own use (rings, mailboxes, staging), 64-byte aligned,
  // where this transport reaches it best. verbs: a piece of a slab that is registered already. shm:
  // a sealed memfd of its own, because what is shared with a peer is shared whole.
  virtual absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes,
                                                                std::string_view label) {
    return MemoryBlock::Allocate(bytes, label);
  }
  // Makes `block` ready for segments of writes, so that no write has to wait (or fail) for it.
  // RESOURCE_EXHAUSTED: the system refused; says what limit is in force and what to do.
  virtual absl::Status Register(const std::shared_ptr<MemoryBlock>& /*block*/) {
    return absl::OkStatus();
  }
  // The same where it may take long: the steps that are left. Null: there are none, it is ready.
  virtual absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& /*block*/) {
    return nullptr;
  }

  // How memory of `device` is reached. Where directly, blocks of it may be registered, exposed and
  // gathered from as the host's, unless one is refused (says why); the host touches none of them.
  virtual DevicePath PathTo(const Device& /*device*/) {
    return {DeviceRoute::kStaging, std::string(transport()) + " reaches memory of the host only"};
  }

  // Bytes that one Expose() takes at most; the pieces of a larger block are exposed one by one.
  virtual size_t max_exposure() const { return SIZE_MAX; }
  // How larger blocks are best cut for that: piece i begins at i * stride and has `bytes`, so that
  // any range of up to bytes - stride lies within one.
  struct ExposurePieces {
    size_t bytes = SIZE_MAX;
    size_t stride = SIZE_MAX;
  };
  virtual ExposurePieces exposure_pieces() const { return {max_exposure(), max_exposure() / 2}; }

  // ---- set-up -----------------------------------------------------------------------------------
  // Starts listening; returns the address peers connect to. At most once. Create() goes on working.
  virtual absl::StatusOr<std::string> Listen() = 0;

  // A connection to be opened by this side. Expose memory and post receives on it, then Connect().
  virtual absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) = 0;
  // Lets the peer of `connection` write to [offset, offset + bytes) of `block`. May be called
  // before Connect() or Accept(), and on an established connection: there the peer may use it once
  // it has a write that this side posted afterwards. The block is kept alive until Unexpose() or
  // Destroy(). IsNotNow(): the peer does not read yet, too much is being exposed at once, or the
  // connection has ended by itself (kLost follows). FAILED_PRECONDITION: closed by this side, or
  // shm, which needs an allocated block. RESOURCE_EXHAUSTED: a limit of the system or the
  // transport, which the message names. INVALID_ARGUMENT: not a range of the block.
  virtual absl::StatusOr<RemoteMemory> Expose(ConnectionId connection,
                                              std::shared_ptr<MemoryBlock> block, size_t offset,
                                              size_t bytes) = 0;
  // Where Expose() would have to register memory for this connection alone, which may take long:
  // the step before FinishExposure(). Null: Expose() takes no such time. Errors as Expose().
  virtual absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId /*connection*/, const std::shared_ptr<MemoryBlock>& /*block*/, size_t /*offset*/,
      size_t /*bytes*/) {
    return nullptr;
  }
  // Expose() of the range of a complete registration, which StartExposure() of this endpoint made.
  // UNAVAILABLE also when the device was closed since.
  virtual absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> /*complete*/) {
    return absl::UnimplementedError("this transport registers nothing for one connection");
  }
  // Takes it back. Only when no write to it can be outstanding.
  virtual void Unexpose(ConnectionId connection, const RemoteMemory& memory) = 0;
  // Does not block: kEstablished or kFailed follows. private_data at most kMaxPrivateData bytes.
  virtual absl::Status Connect(ConnectionId connection, const std::string& address,
                               std::string_view private_data) = 0;
  // Answers a kRequest: Prepare(), then Expose() and PostReceives(), then Accept(); kEstablished
  // follows. Reject() also destroys the connection.
  virtual absl::Status Prepare(ConnectionId connection, const ConnectionLimits& limits) = 0;
  virtual absl::Status Accept(ConnectionId connection) = 0;
  virtual void Reject(ConnectionId connection, std::string_view reason) = 0;

  // ---- data path --------------------------------------------------------------------------------
  // RESOURCE_EXHAUSTED beyond receive_depth; FAILED_PRECONDITION once in error or closed.
  virtual absl::Status PostReceives(ConnectionId connection, uint32_t count) = 0;
  // RESOURCE_EXHAUSTED: the send queue is full (an accounting bug above). FAILED_PRECONDITION: the
  // connection is not established or in error. INVALID_ARGUMENT: too many segments, or one outside
  // its block. An unsignaled write holds its place in the send queue until it has been done.
  virtual absl::Status PostWrite(ConnectionId connection, const WriteRequest& request) = 0;
  // Whether Borrow() works: both sides see the same memory.
  virtual bool CanBorrow() const { return false; }
  // What lies at `memory`, which the peer has exposed and told of by a write that has arrived.
  // Until `hold` goes, the connection is not dead on the peer's side, even if it is closed.
  // INTERNAL: outside what the peer exposed; UNIMPLEMENTED: !CanBorrow().
  virtual absl::StatusOr<Borrowed> Borrow(ConnectionId /*connection*/,
                                          const RemoteMemory& /*memory*/, size_t /*bytes*/) {
    return absl::UnimplementedError("this transport reads no memory of a peer's");
  }
  // Fills at most out.size() completions, in order per connection. Returns how many.
  virtual size_t Poll(absl::Span<Completion> out) = 0;
  // Returns how many of at most out.size() events. Also where a transport does its housekeeping
  // (handshakes, closes): whoever calls Poll() calls this too, and always after a sleep.
  virtual size_t PollEvents(absl::Span<ConnectionEvent> out) = 0;

  // ---- ending -----------------------------------------------------------------------------------
  // Invariant 4. Idempotent. No kLost is reported for it.
  virtual void Close(ConnectionId connection) = 0;
  // Whether invariant 4 holds: true at once after Close() for most transports; shm: once the peer
  // is gone or has confirmed. A lane's records may be reissued elsewhere only after this.
  virtual bool Dead(ConnectionId connection) const = 0;
  // Frees it; closes first. Pending completions of it are dropped.
  virtual void Destroy(ConnectionId connection) = 0;

  // ---- sleeping ---------------------------------------------------------------------------------
  // Descriptors to poll for reading, valid until the set of connections changes.
  virtual void AppendDescriptors(std::vector<int>* fds) const = 0;
  // Before sleeping: announces the sleep, then rechecks. False: there is something to poll, do not
  // sleep. True: sleep on the descriptors, then call Disarm().
  virtual bool Arm(SleepUntil until) = 0;
  // While armed: withdraws SleepUntil::kLastAnswer, so that every later write wakes. Called before
  // a request is posted that the sleeping thread did not count, and before one is queued; then the
  // answer to that request wakes, because the peer sees the withdrawal before the request. False:
  // something arrived without a wake-up; wake the sleeping thread. Transports that ignore
  // kLastAnswer (verbs asks for every completion, ofi has one wait object) have nothing to do.
  virtual bool WakeOnAnything() { return true; }
  virtual void Disarm() = 0;
  // Makes up for writes that woke nobody. Not kNobody.
  virtual void WakePeer(ConnectionId /*connection*/, Wakes /*wakes*/) {}
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_TRANSPORT_H_
