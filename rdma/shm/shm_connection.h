// One connection of a shm endpoint: its socket, its ring, the peer's ring and exposed memory.
//
//     kCreated -> kConnecting (socket open or being retried; hello sent) -> kEstablished -> kEnded
//     kIncoming (no hello yet) -> kRequested -> kEstablished -> kEnded
//     any -> kEnded: closed by this side, gone or in error. This side unmaps the peer's memory
//     first, then shuts down its half of the socket; the peer then does the same. So the end of the
//     peer's half (or the peer's exit) means that the peer no longer reads or writes: dead().
//     Borrowed memory of the peer stays mapped, and this half open, until it is released.
//
// **Thread safety**: the endpoint's thread.
//
// Invariants:
//  1. The peer's memory is mapped only while kRequested, kConnecting or kEstablished, or borrowed.
//  2. After this half of the socket is shut down, no memory of the peer is mapped.
//  3. Data that the peer can write is validated when it is read, and never read twice.
//  4. Messages for a peer that does not read wait here, at most kMaxRanges: before the hello, the
//     exposed ranges; after it, the revoked keys. Beyond that Expose() refuses temporarily.
//  5. The peer never has more than kMaxRanges ranges of this side.
#ifndef VERBENA_RDMA_SHM_SHM_CONNECTION_H_
#define VERBENA_RDMA_SHM_SHM_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/base/ring_queue.h"
#include "rdma/base/unique_fd.h"
#include "rdma/shm/peer_ranges.h"
#include "rdma/shm/shared_pages.h"
#include "rdma/shm/shm_ring.h"
#include "rdma/shm/shm_socket.h"
#include "rdma/transport.h"

namespace verbena::rdma {

class ShmConnection;

// Entry that Poll() scans: one per established connection, in a dense array.
struct ShmPollSlot {
  const ShmRingEntry* next = nullptr;
  uint32_t expected = 0;
  ShmConnection* connection = nullptr;
};

// State shared by the connections of an endpoint.
struct ShmShared {
  UniqueFd epoll;
  std::unique_ptr<OwnedPages> state;  // a ShmState
  std::vector<ShmPollSlot> poll_slots;
  RingQueue<Completion> completions{256};
  std::deque<ConnectionEvent> events;
  std::vector<ConnectionId> lingering;  // ended connections with borrowed memory of the peer
  std::vector<ConnectionId> starved;    // messages wait for kernel memory; no event reports its
                                        // release
  uint64_t next_key = 1;
};

// epoll data of a connection's eventfd, which only ends a sleep. Above connection ids.
inline constexpr uint64_t kWakeTag = uint64_t{3} << 32;

class ShmConnection {
 public:
  enum class State : uint8_t { kCreated, kConnecting, kIncoming, kRequested, kEstablished, kEnded };

  ShmConnection(ShmShared* shared, ConnectionId id) : shared_(shared), id_(id) {}
  ~ShmConnection();
  ShmConnection(const ShmConnection&) = delete;
  ShmConnection& operator=(const ShmConnection&) = delete;

  // ---- set-up ----
  absl::Status Prepare(const ConnectionLimits& limits);
  absl::StatusOr<RemoteMemory> Expose(std::shared_ptr<MemoryBlock> block, size_t offset,
                                      size_t bytes);
  void Unexpose(const RemoteMemory& memory);
  absl::Status Connect(const std::string& address, std::string_view private_data,
                       int64_t deadline_ns);
  void AdoptSocket(UniqueFd socket, int64_t deadline_ns);  // of a peer that connected to this side
  absl::Status Accept();
  void Reject(std::string_view reason);

  // ---- data path ----
  absl::Status PostReceives(uint32_t count);
  absl::Status PostWrite(const WriteRequest& request);
  void WakePeer(Wakes wakes);
  absl::StatusOr<Borrowed> Borrow(const RemoteMemory& remote, size_t bytes);
  // Takes received entries from the ring. May end the connection.
  size_t TakeReceives(absl::Span<Completion> out);

  // ---- driven by the endpoint ----
  bool OnReadable();             // reads a bounded number of messages; returns whether more may be
                                 // there
  bool SendWaiting();            // sends to a peer that reads again; false: some still wait
  void OnTime(int64_t now_ns);   // handshaking(): retries and deadlines
  void GiveWay();                // ends a kIncoming connection, because another one needs its place
  void OnEstablishedReported();  // from now on Poll() scans the ring
  void OnSendReported() { --sends_unreported_; }
  void OnSlotMoved(size_t index) { slot_index_ = index; }
  bool handshaking() const { return state_ == State::kConnecting || state_ == State::kIncoming; }
  bool retrying() const { return state_ == State::kConnecting && !socket_.valid(); }
  int64_t deadline_ns() const { return deadline_ns_; }
  bool discard() const { return discard_; }  // the owner has never seen it

  // ---- ending ----
  void Close();
  // For a lingering connection: ends its half of the socket when no memory is borrowed. Returns
  // whether it did.
  bool Linger();
  bool dead() const { return state_ == State::kEnded && !socket_.valid(); }
  ConnectionId id() const { return id_; }
  State state() const { return state_; }

 private:
  struct Exposed {
    uint64_t key;
    uint64_t address;
    size_t offset;
    size_t bytes;
    std::shared_ptr<MemoryBlock> block;
  };
  enum class Why : uint8_t { kOwner, kError, kPeer };
  static constexpr size_t kNoSlot = ~size_t{0};
  static constexpr size_t kMaxRanges = PeerRanges::kMost;

  ShmRing* ring() const { return reinterpret_cast<ShmRing*>(ring_pages_->data()); }
  ShmRing* peer_ring() const { return reinterpret_cast<ShmRing*>(peer_ring_pages_->data()); }
  const ShmState* peer_state() const {
    return reinterpret_cast<const ShmState*>(peer_state_pages_->data());
  }

  absl::Status OpenSocket();
  absl::Status SendHello(ShmMessageType type);
  absl::Status SendExpose(const Exposed& exposed);
  absl::Status SendSetUp();  // sends exposed ranges, then the hello; continues after an
                             // interruption
  absl::Status SendUnexposes();
  // Whether messages are sent at once. Before the hello, SendSetUp() sends them.
  bool SendsAtOnce() const {
    return socket_.valid() && (state_ != State::kConnecting || hello_sent_);
  }
  // Call after a message could not be sent: SendWaiting() is called when there is room.
  void AwaitRoom(const absl::Status& status);
  void EndAwaitingRoom();
  void OnMessage(const ShmMessage& message, std::vector<UniqueFd>* fds);
  void OnHello(const ShmMessage& message, std::vector<UniqueFd>* fds);
  absl::Status AdoptPeer(const ShmMessage& message, std::vector<UniqueFd>* fds);
  // Like PeerRanges::Find(), but reads the peer's messages if the range is not known yet.
  absl::StatusOr<PeerRanges::Range*> RangeOf(const RemoteMemory& remote, uint64_t bytes);
  absl::Status CheckWrite(const WriteRequest& request, uint64_t bytes, PeerRanges::Range** range);
  bool HasArrived() const;  // an entry that was not polled
  void Wake(Wakes wakes);
  void FailWrite(const WriteRequest& request, const absl::Status& status);
  void Push(ConnectionEvent::Kind kind, std::string private_data, absl::Status status);
  void UpdateSlot();
  void DropSlot();
  void End(const absl::Status& status, Why why);
  void EndHalf();
  void CloseSocket();

  ShmShared* shared_;
  ConnectionId id_;
  State state_ = State::kCreated;
  bool discard_ = false;
  bool shared_memory_ = false;  // the peer has descriptors: the connection is dead only after the
                                // peer's end
  int64_t deadline_ns_ = 0;
  std::string address_;
  std::string private_data_;
  UniqueFd socket_;

  ConnectionLimits limits_ = {0, 0};
  std::unique_ptr<OwnedPages> ring_pages_;  // null until Prepare()
  UniqueFd wake_in_;                        // an eventfd that the peer writes while this side
                                            // sleeps
  uint32_t ring_mask_ = 0;
  uint64_t posted_ = 0;
  uint64_t consumed_ = 0;
  size_t slot_index_ = kNoSlot;
  std::vector<Exposed> exposed_;
  size_t exposes_sent_ = 0;  // number of entries of exposed_ sent before the hello
  bool hello_sent_ = false;
  std::vector<uint64_t> unexposed_;  // keys whose kUnexpose waits for room in the socket
  bool awaits_room_ = false;         // EPOLLOUT is enabled
  bool starved_ = false;             // the connection is in ShmShared::starved
  bool closed_ = false;              // by its owner

  std::unique_ptr<ForeignPages> peer_ring_pages_;
  std::unique_ptr<ForeignPages> peer_state_pages_;
  UniqueFd wake_out_;
  uint32_t peer_mask_ = 0;
  uint64_t immediates_sent_ = 0;
  uint64_t peer_posted_ = 0;  // last read value
  uint32_t sends_unreported_ = 0;
  PeerRanges ranges_;
  bool peer_gone_ = false;  // the peer's half has ended
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SHM_CONNECTION_H_
