// Transport interface: connections that carry one-sided writes with immediate data.
//
// An Endpoint is one thread's view of one transport: its connections, their completions (a
// completion queue) and their events (an rdma_cm event channel). The semantics are those of a
// reliable-connected queue pair (InfiniBand Architecture Specification vol. 1, 9.7), reduced to the
// properties that every transport has:
//
//  1. Writes of a connection take effect in order. The content of written memory is undefined until
//     the receive completion of that write, or of a later one on the same connection.
//  2. A write with immediate data consumes one posted receive of the peer. If none is posted, both
//     sides get a connection error (rnr_retry 0), so that an accounting bug is visible.
//  3. A send completion means that the local memory may be reused. It implies nothing about the
//     peer.
//  4. After Close() returns, the peer can no longer write to memory exposed on this connection, and
//     the connection reads no more local memory ("dead on our side"). Outstanding work ends with
//     flushed completions, which Poll() still reports.
//  5. Ids are never reused within an endpoint.
//  6. A write that cannot be done (unknown key, range outside the peer's exposed memory, no receive
//     posted) puts the connection in error: PostWrite() has returned OK, its completion is not ok
//     (signaled or not), and kLost follows on both sides. Unconsumed posted receives end flushed.
//  7. No receive completion is reported before PollEvents() has returned kEstablished.
//  8. A side may miss that the peer has closed. (verbs: a disconnect request that an outage drops
//     is not resent after its process has released the connection.) Its next write detects it: an
//     empty write without immediate changes nothing at the peer, and fails if the peer is gone.
//  9. A call with an id that does not exist (any more) does nothing or is FAILED_PRECONDITION.
//
// **Thread safety**: an endpoint and all its objects belong to one thread. As an exception, another
// thread may execute the steps of a Registration concurrently.
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

// A connection of an endpoint; 0 means none.
enum class ConnectionId : uint32_t { kNone = 0 };

// Location of a peer's exposed memory.
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t key = 0;
};

// A piece of local memory that a write gathers from; `block` contains it.
struct Segment {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  const MemoryBlock* block = nullptr;
};

inline constexpr int kMaxSegments = 2;

// Whether a segment lies within its block (true for an empty segment).
inline bool WithinBlock(const Segment& segment) {
  if (segment.bytes == 0) return true;
  if (segment.block == nullptr) return false;
  // Compared as integers, because pointers into different objects are not comparable.
  const auto data = reinterpret_cast<uintptr_t>(segment.data);
  const auto begin = reinterpret_cast<uintptr_t>(segment.block->data());
  const size_t size = segment.block->size();
  return data >= begin && data - begin <= size && segment.bytes <= size - (data - begin);
}

// Whether a write with an immediate wakes a sleeping peer (Endpoint::Arm()). A transport may wake
// it more often. In verbs this corresponds to solicited events (ibv_req_notify_cq(3)).
enum class Wakes : uint8_t {
  kPeer,
  kPeerAtLast,     // the last reply, unless more of the peer's requests have arrived than were
                   // polled
  kImpatientPeer,  // does not wake a peer that sleeps until the last reply
  kNobody,         // no wake-up yet: WakePeer() follows at once
};

// Condition for the wake-up. kLastAnswer is a promise about the requests in flight when the
// endpoint is armed: nothing depends on their replies before the last one. It does not cover later
// requests: call Endpoint::WakeOnAnything() before posting one.
enum class SleepUntil : uint8_t { kAnything, kLastAnswer };

struct WriteRequest {
  uint64_t wr_id = 0;
  absl::Span<const Segment> segments;  // at most kMaxSegments; may be empty
  RemoteMemory remote;
  std::optional<uint32_t> immediate;
  bool signaled = true;  // whether its send completion is reported (errors always are)
  // Another write to this connection follows at once, so both may go to the device together.
  bool more = false;
  Wakes wakes = Wakes::kPeer;
};

// Memory of a peer that is read in place.
struct Borrowed {
  absl::Span<const std::byte> bytes;  // the peer may change them at any time
  std::shared_ptr<const void> hold;   // the bytes are valid as long as this exists
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
    kRequest,      // a peer connects to this side's listener: Accept() or Reject()
    kEstablished,  // both sides may write
    kFailed,  // a connection attempt or request failed. status has the reason: FAILED_PRECONDITION
              // refused by the peer, DEADLINE_EXCEEDED timeout, UNAVAILABLE peer gone, ABORTED too
              // many requests wait at the peer (try again). Some transports (verbs) detect it for a
              // request only after Accept()
    kLost,    // an established connection is in error or the peer closed it
  };
  Kind kind;
  ConnectionId connection = ConnectionId::kNone;
  std::string private_data;  // kRequest: the peer's argument of Connect()
  absl::Status status;       // kFailed, kLost
};

struct ConnectionLimits {
  uint32_t send_depth;     // maximum number of outstanding writes
  uint32_t receive_depth;  // maximum number of posted receives
  // Connections of different domains cannot access each other's memory, even with its key. On most
  // transports this holds for any two connections; verbs without memory windows needs the domain.
  uint64_t domain = 0;
};

inline constexpr size_t kMaxPrivateData = 56;  // rdma_connect(3), RDMA_PS_TCP

// Whether Register(), Create(), Expose() or Connect() failed temporarily (UNAVAILABLE). The same
// call may succeed later, or on another connection after kLost has ended this one. The caller keeps
// its request and retries after each sleep until its own deadline; an endpoint ends a sleep when a
// retry may succeed. Every other code is final for this argument on this connection.
inline bool IsNotNow(const absl::Status& status) { return absl::IsUnavailable(status); }

// Stepwise registration of memory for an endpoint (Endpoint::StartRegistration()) or for one of its
// connections (Endpoint::StartExposure()).
//
// **Thread safety**: any thread may call Step() and the destructor, one at a time, even while the
// endpoint's owner uses the endpoint. The other functions may be called concurrently. A
// registration must end before its endpoint.
class Registration {
 public:
  // Abandons an incomplete registration: nothing stays registered.
  virtual ~Registration() = default;

  // Registers the next piece: at most about 256 MiB, if the transport can split. Errors: those of
  // Endpoint::Register(); UNAVAILABLE: the device was closed. After an error nothing stays
  // registered.
  virtual absl::Status Step() = 0;
  // All pieces are registered: Register() and Expose() use them, and FinishExposure() may be
  // called.
  virtual bool complete() const = 0;
  virtual uint64_t registered_bytes() const = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual std::string_view transport() const = 0;    // "shm", "verbs", "ofi", "sim"
  virtual std::string device() const { return {}; }  // "mlx5_0:1"; empty: none
  // Settings of its connections ("path MTU 4096, ..."), known after the first one; may be empty.
  virtual std::string settings() const { return {}; }

  // ---- memory -----------------------------------------------------------------------------------
  // Zeroed host memory for a connection's own use (rings, mailboxes, staging), 64-byte aligned, in
  // the best location for this transport. verbs: a piece of a registered slab. shm: a sealed memfd
  // of its own, because a memfd is shared with a peer as a whole.
  virtual absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes,
                                                                std::string_view label) {
    return MemoryBlock::Allocate(bytes, label);
  }
  // Prepares `block` for segments of writes, so that no write waits or fails for it.
  // RESOURCE_EXHAUSTED: the system refused; the message has the limit in force and the fix.
  virtual absl::Status Register(const std::shared_ptr<MemoryBlock>& /*block*/) {
    return absl::OkStatus();
  }
  // Starts Register() where it may take long, and returns the remaining steps. Null: the block is
  // ready.
  virtual absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& /*block*/) {
    return nullptr;
  }

  // How the transport accesses memory of `device`. With direct access, its blocks may be
  // registered, exposed and gathered from like host memory, unless a block is refused with a
  // reason. The CPU touches none of them.
  virtual DevicePath PathTo(const Device& /*device*/) {
    return {DeviceRoute::kStaging, std::string(transport()) + " reaches memory of the host only"};
  }

  // Maximum bytes of one Expose(); larger blocks are exposed in pieces.
  virtual size_t max_exposure() const { return SIZE_MAX; }
  // The best division of larger blocks: piece i begins at i * stride and has `bytes`, so that any
  // range of up to bytes - stride lies within one piece.
  struct ExposurePieces {
    size_t bytes = SIZE_MAX;
    size_t stride = SIZE_MAX;
  };
  virtual ExposurePieces exposure_pieces() const { return {max_exposure(), max_exposure() / 2}; }

  // ---- set-up -----------------------------------------------------------------------------------
  // Starts listening and returns the address for peers. At most once. Create() still works.
  virtual absl::StatusOr<std::string> Listen() = 0;

  // Creates a connection that this side opens. Expose memory and post receives on it, then
  // Connect().
  virtual absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) = 0;
  // Lets the peer of `connection` write to [offset, offset + bytes) of `block`. May be called
  // before Connect() or Accept(), and on an established connection. There, the peer may use the
  // memory after it has received a write that this side posted later. The block is kept alive until
  // Unexpose() or Destroy(). IsNotNow(): the peer does not read yet, too many exposures are in
  // progress, or the connection has ended by itself (kLost follows). FAILED_PRECONDITION: closed by
  // this side; or shm, which needs an allocated block. RESOURCE_EXHAUSTED: a limit of the system or
  // the transport; the message has it. INVALID_ARGUMENT: not a range of the block.
  virtual absl::StatusOr<RemoteMemory> Expose(ConnectionId connection,
                                              std::shared_ptr<MemoryBlock> block, size_t offset,
                                              size_t bytes) = 0;
  // Starts an Expose() that must register memory for this connection only, which may take long: the
  // step before FinishExposure(). Null: Expose() is fast. Errors: those of Expose().
  virtual absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId /*connection*/, const std::shared_ptr<MemoryBlock>& /*block*/, size_t /*offset*/,
      size_t /*bytes*/) {
    return nullptr;
  }
  // Completes an exposure with a complete registration from StartExposure() of this endpoint.
  // UNAVAILABLE also if the device was closed since.
  virtual absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> /*complete*/) {
    return absl::UnimplementedError("this transport registers nothing for one connection");
  }
  // Revokes an exposure. Allowed only when no write to it can be outstanding.
  virtual void Unexpose(ConnectionId connection, const RemoteMemory& memory) = 0;
  // Does not block: kEstablished or kFailed follows. private_data has at most kMaxPrivateData
  // bytes.
  virtual absl::Status Connect(ConnectionId connection, const std::string& address,
                               std::string_view private_data) = 0;
  // Answers a kRequest: Prepare(), then Expose() and PostReceives(), then Accept(); kEstablished
  // follows. Reject() also destroys the connection.
  virtual absl::Status Prepare(ConnectionId connection, const ConnectionLimits& limits) = 0;
  virtual absl::Status Accept(ConnectionId connection) = 0;
  virtual void Reject(ConnectionId connection, std::string_view reason) = 0;

  // ---- data path --------------------------------------------------------------------------------
  // RESOURCE_EXHAUSTED: beyond receive_depth. FAILED_PRECONDITION: in error or closed.
  virtual absl::Status PostReceives(ConnectionId connection, uint32_t count) = 0;
  // RESOURCE_EXHAUSTED: the send queue is full (an accounting bug of the caller).
  // FAILED_PRECONDITION: the connection is not established or is in error. INVALID_ARGUMENT: too
  // many segments, or one outside its block. An unsignaled write keeps its place in the send queue
  // until it is done.
  virtual absl::Status PostWrite(ConnectionId connection, const WriteRequest& request) = 0;
  // Whether Borrow() works: both sides share the same memory.
  virtual bool CanBorrow() const { return false; }
  // The bytes at `memory`, which the peer has exposed and announced in a write that has arrived.
  // While `hold` exists the connection is not dead on the peer's side, even if it is closed.
  // INTERNAL: outside the peer's exposed memory; UNIMPLEMENTED: !CanBorrow().
  virtual absl::StatusOr<Borrowed> Borrow(ConnectionId /*connection*/,
                                          const RemoteMemory& /*memory*/, size_t /*bytes*/) {
    return absl::UnimplementedError("this transport reads no memory of a peer's");
  }
  // Fills at most out.size() completions, in order per connection. Returns their number.
  virtual size_t Poll(absl::Span<Completion> out) = 0;
  // Fills at most out.size() events and returns their number. It also does the transport's
  // housekeeping (handshakes, closes): callers of Poll() must call it too, and always after a
  // sleep.
  virtual size_t PollEvents(absl::Span<ConnectionEvent> out) = 0;

  // ---- ending -----------------------------------------------------------------------------------
  // Establishes invariant 4. Idempotent. Reports no kLost for this connection.
  virtual void Close(ConnectionId connection) = 0;
  // Whether invariant 4 holds. For most transports this is true when Close() returns; for shm, when
  // the peer is gone or has confirmed. Only then may a lane's requests be resent elsewhere.
  virtual bool Dead(ConnectionId connection) const = 0;
  // Closes and frees the connection. Its pending completions are dropped.
  virtual void Destroy(ConnectionId connection) = 0;

  // ---- sleeping ---------------------------------------------------------------------------------
  // Descriptors to poll for reading, valid until the set of connections changes.
  virtual void AppendDescriptors(std::vector<int>* fds) const = 0;
  // Call before sleeping: announces the sleep, then rechecks. False: there is something to poll; do
  // not sleep. True: sleep on the descriptors, then call Disarm().
  virtual bool Arm(SleepUntil until) = 0;
  // While armed: withdraws SleepUntil::kLastAnswer, so that every later write wakes. Call it before
  // posting or queueing a request that the sleeping thread did not count. The reply to that request
  // then wakes, because the peer sees the withdrawal before the request. False: something arrived
  // without a wake-up; wake the sleeping thread. Transports that ignore kLastAnswer (verbs requests
  // events for every completion, ofi has one wait object) need no action.
  virtual bool WakeOnAnything() { return true; }
  virtual void Disarm() = 0;
  // Sends the wake-up for earlier writes with Wakes::kNobody. `wakes` is not kNobody.
  virtual void WakePeer(ConnectionId /*connection*/, Wakes /*wakes*/) {}
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_TRANSPORT_H_
