#include "rdma/shm/shm_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr size_t kMaxReadsForRange = 256;  // calls of OnReadable(): 16,384 messages

absl::Status NotOpen() {
  return absl::FailedPreconditionError("shm: the connection is not established");
}

}  // namespace

ShmConnection::~ShmConnection() {
  Close();
  CloseSocket();
}

// ---- receiving
// ------------------------------------------------------------------------------------

absl::Status ShmConnection::PostReceives(uint32_t count) {
  if (state_ == State::kEnded || ring_pages_ == nullptr) {
    return absl::FailedPreconditionError("shm: the connection takes no receives");
  }
  const uint64_t outstanding = posted_ - consumed_;
  if (outstanding + count > limits_.receive_depth) {
    return absl::ResourceExhaustedError(absl::StrCat("shm: ", outstanding, " receives posted, ",
                                                     count, " more exceed the depth of ",
                                                     limits_.receive_depth));
  }
  posted_ += count;
  // Release: the sender may overwrite the entries of these receives only after this side has read
  // them.
  ring()->posted.store(posted_, std::memory_order_release);
  return absl::OkStatus();
}

void ShmConnection::OnEstablishedReported() {
  if (state_ != State::kEstablished || slot_index_ != kNoSlot) return;
  slot_index_ = shared_->poll_slots.size();
  shared_->poll_slots.push_back({nullptr, 0, this});
  UpdateSlot();
}

void ShmConnection::UpdateSlot() {
  ShmPollSlot& slot = shared_->poll_slots[slot_index_];
  slot.next = ring()->entries() + (consumed_ & ring_mask_);
  slot.expected = static_cast<uint32_t>(consumed_ + 1);
}

void ShmConnection::DropSlot() {
  if (slot_index_ == kNoSlot) return;
  std::vector<ShmPollSlot>& slots = shared_->poll_slots;
  slots[slot_index_] = slots.back();
  slots[slot_index_].connection->OnSlotMoved(slot_index_);
  slots.pop_back();
  slot_index_ = kNoSlot;
}

size_t ShmConnection::TakeReceives(absl::Span<Completion> out) {
  size_t count = 0;
  while (count < out.size()) {
    // Acquire: the payload was written before the entry.
    const uint64_t entry =
        ring()->entries()[consumed_ & ring_mask_].load(std::memory_order_acquire);
    if (EntrySequence(entry) != static_cast<uint32_t>(consumed_ + 1)) break;
    if (consumed_ == posted_) {
      End(absl::InternalError("shm: the peer wrote with no receive posted (receiver not ready)"),
          Why::kError);
      return count;
    }
    ++consumed_;
    Completion& completion = out[count++];
    completion = Completion();
    completion.connection = id_;
    completion.kind = Completion::Kind::kReceive;
    completion.immediate = EntryImmediate(entry);
  }
  if (slot_index_ != kNoSlot) UpdateSlot();
  return count;
}

// ---- writing
// --------------------------------------------------------------------------------------

absl::StatusOr<PeerRanges::Range*> ShmConnection::RangeOf(const RemoteMemory& remote,
                                                          uint64_t bytes) {
  if (PeerRanges::Range* range = ranges_.Find(remote, bytes)) return range;
  // The peer sent kExpose before the write to the range, so the message is in the socket, behind
  // others. The limit applies to a peer that sends faster than this loop reads.
  bool more = true;
  for (size_t i = 0; more && i < kMaxReadsForRange && !ranges_.contains(remote.key); ++i) {
    more = OnReadable();
    if (state_ != State::kEstablished) return NotOpen();
  }
  if (PeerRanges::Range* range = ranges_.Find(remote, bytes)) return range;
  return absl::InternalError(absl::StrCat("shm: ", bytes, " bytes with key ", remote.key,
                                          " are outside the memory the peer exposed"));
}

absl::StatusOr<Borrowed> ShmConnection::Borrow(const RemoteMemory& remote, size_t bytes) {
  if (state_ != State::kEstablished) return NotOpen();
  const absl::StatusOr<PeerRanges::Range*> range = RangeOf(remote, bytes);
  if (!range.ok()) return range.status();
  const std::shared_ptr<ForeignPages>& pages = (*range)->pages;
  if (pages->poisoned()) return absl::InternalError("shm: memory of the peer faulted (SIGBUS)");
  const std::byte* from = pages->data() + (remote.address - (*range)->address);
  return Borrowed{absl::MakeConstSpan(from, bytes), pages};
}

absl::Status ShmConnection::CheckWrite(const WriteRequest& request, uint64_t bytes,
                                       PeerRanges::Range** range) {
  if (bytes > 0) {
    const absl::StatusOr<PeerRanges::Range*> found = RangeOf(request.remote, bytes);
    if (!found.ok()) return found.status();
    *range = *found;
  }
  if (request.immediate.has_value() && immediates_sent_ == peer_posted_) {
    // Acquire: pairs with PostReceives(); the entry to be overwritten has been read.
    peer_posted_ = peer_ring()->posted.load(std::memory_order_acquire);
    if (immediates_sent_ == peer_posted_) {
      return absl::InternalError("shm: the peer has no receive posted (receiver not ready)");
    }
  }
  return absl::OkStatus();
}

absl::Status ShmConnection::PostWrite(const WriteRequest& request) {
  if (state_ != State::kEstablished) return NotOpen();
  if (request.segments.size() > kMaxSegments) {
    return absl::InvalidArgumentError("shm: too many segments");
  }
  if (request.signaled && sends_unreported_ >= limits_.send_depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shm: the send queue of ", limits_.send_depth, " is full"));
  }
  uint64_t bytes = 0;
  for (const Segment& segment : request.segments) {
    if (!WithinBlock(segment)) {
      return absl::InvalidArgumentError("shm: a segment lies outside its block");
    }
    bytes += segment.bytes;
  }
  PeerRanges::Range* range = nullptr;
  if (absl::Status status = CheckWrite(request, bytes, &range); !status.ok()) {
    FailWrite(request, status);
    return absl::OkStatus();
  }
  if (range != nullptr) {
    std::byte* to = range->pages->data() + (request.remote.address - range->address);
    for (const Segment& segment : request.segments) {
      if (segment.bytes == 0) continue;  // data may be null
      std::memcpy(to, segment.data, segment.bytes);
      to += segment.bytes;
    }
  }
  if (request.immediate.has_value()) {
    ShmRingEntry& entry = peer_ring()->entries()[immediates_sent_ & peer_mask_];
    ++immediates_sent_;
    // Release for the payload. seq_cst with the load below: either the peer's recheck before its
    // sleep sees this entry, or this side sees that it sleeps (Dekker).
    entry.store(PackEntry(static_cast<uint32_t>(immediates_sent_), *request.immediate),
                std::memory_order_seq_cst);
    if (request.wakes != Wakes::kNobody) Wake(request.wakes);
  }
  if (peer_ring_pages_->poisoned() || peer_state_pages_->poisoned() ||
      (range != nullptr && range->pages->poisoned())) {
    FailWrite(request, absl::InternalError("shm: memory of the peer faulted (SIGBUS)"));
    return absl::OkStatus();
  }
  if (request.signaled) {
    Completion completion;
    completion.connection = id_;
    completion.wr_id = request.wr_id;
    shared_->completions.push(completion);
    ++sends_unreported_;
  }
  return absl::OkStatus();
}

bool ShmConnection::HasArrived() const {
  if (slot_index_ == kNoSlot) return false;
  const ShmPollSlot& slot = shared_->poll_slots[slot_index_];
  // Relaxed: only the sequence is checked here, not the data.
  return EntrySequence(slot.next->load(std::memory_order_relaxed)) == slot.expected;
}

void ShmConnection::WakePeer(Wakes wakes) {
  if (state_ == State::kEstablished) Wake(wakes);
}

void ShmConnection::Wake(Wakes wakes) {
  // seq_cst: after the entries in the total order (PostWrite()).
  const uint32_t sleeping = peer_state()->sleeping.load(std::memory_order_seq_cst);
  if (sleeping == kAwake) return;
  if (sleeping == kSleepsUntilLastAnswer) {
    if (wakes == Wakes::kImpatientPeer || (wakes == Wakes::kPeerAtLast && HasArrived())) return;
  }
  const uint64_t one = 1;
  // EAGAIN (the counter is full) is fine too: the descriptor is readable then.
  const ssize_t written = write(wake_out_.get(), &one, sizeof(one));
  (void)written;
}

void ShmConnection::FailWrite(const WriteRequest& request, const absl::Status& status) {
  Completion completion;
  completion.connection = id_;
  completion.ok = false;
  completion.flushed = state_ == State::kEnded;  // it ended during the search for the range
  completion.wr_id = request.wr_id;
  shared_->completions.push(completion);
  ++sends_unreported_;
  End(status, Why::kError);
}

// ---- ending
// ---------------------------------------------------------------------------------------

void ShmConnection::Push(ConnectionEvent::Kind kind, std::string private_data,
                         absl::Status status) {
  shared_->events.push_back({kind, id_, std::move(private_data), std::move(status)});
}

void ShmConnection::End(const absl::Status& status, Why why) {
  if (state_ == State::kEnded) return;
  const State was = state_;
  // Data that arrived before the peer's end is reported; after Close() it is not.
  Completion completion;
  if (slot_index_ != kNoSlot && why == Why::kPeer) {
    state_ = State::kEnded;  // TakeReceives() must not end it again
    while (TakeReceives(absl::MakeSpan(&completion, 1)) == 1) {
      shared_->completions.push(completion);
    }
  }
  DropSlot();
  state_ = State::kEnded;
  completion = Completion();
  completion.connection = id_;
  completion.kind = Completion::Kind::kReceive;
  completion.ok = false;
  completion.flushed = true;
  for (; consumed_ < posted_; ++consumed_) shared_->completions.push(completion);

  unexposed_.clear();
  ranges_.UnmapAll();
  peer_ring_pages_.reset();
  peer_state_pages_.reset();
  wake_out_.reset();
  if (socket_.valid()) {
    if (why == Why::kError) {
      ShmMessage message;
      message.type = was == State::kIncoming ? ShmMessageType::kReject : ShmMessageType::kError;
      const auto text = status.message();
      message.set_text(std::string_view(text.data(), text.size()));
      (void)ShmSend(socket_.get(), message, {});  // only explains: the shutdown is the signal
    }
    EndHalf();
  }
  if (was == State::kIncoming) discard_ = true;
  if (why == Why::kOwner || was == State::kIncoming || was == State::kCreated) return;
  Push(was == State::kEstablished ? ConnectionEvent::Kind::kLost : ConnectionEvent::Kind::kFailed,
       {}, status);
}

void ShmConnection::Close() {
  closed_ = true;
  End(absl::CancelledError("shm: closed"), Why::kOwner);
  // Drops the events of a connection that its owner has closed.
  std::erase_if(shared_->events,
                [this](const ConnectionEvent& event) { return event.connection == id_; });
}

void ShmConnection::EndHalf() {
  if (ranges_.AnyBorrowed()) {
    shared_->lingering.push_back(id_);
    return;
  }
  shutdown(socket_.get(), SHUT_WR);
  if (!shared_memory_ || peer_gone_) CloseSocket();
}

bool ShmConnection::Linger() {
  if (ranges_.AnyBorrowed()) return false;
  if (socket_.valid()) EndHalf();
  return true;
}

void ShmConnection::CloseSocket() {
  if (!socket_.valid()) return;
  // Removed explicitly: a duplicate of the descriptor in a forked child would keep it in the set
  // (epoll(7)).
  epoll_ctl(shared_->epoll.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
  socket_.reset();
  if (wake_in_.valid()) epoll_ctl(shared_->epoll.get(), EPOLL_CTL_DEL, wake_in_.get(), nullptr);
  wake_in_.reset();
}

}  // namespace verbena::rdma
