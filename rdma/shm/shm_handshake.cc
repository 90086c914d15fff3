// The socket part of ShmConnection: set-up, exposing memory, the end.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/shm/shm_connection.h"

namespace verbena::rdma {
namespace {

// Maximum number of messages of one connection before other connections are served.
constexpr int kMessagesAtOnce = 64;

constexpr uint32_t kReads = EPOLLIN | EPOLLRDHUP;

absl::Status Watch(int epoll, int fd, uint32_t events, uint64_t tag,
                   int operation = EPOLL_CTL_ADD) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll, operation, fd, &event) != 0) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, "epoll_ctl");
  }
  return absl::OkStatus();
}

// Whether a descriptor from a peer is a nonblocking eventfd. Others could block this process or,
// like a pipe without a reader, end it (SIGPIPE).
bool IsEventFd(int fd) {
  char target[64] = {};
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) return false;
  return std::string_view(target) == "anon_inode:[eventfd]" &&
         (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

std::string DescriptorLimit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? absl::StrCat(limit.rlim_cur) : "unknown";
}

}  // namespace

absl::Status ShmConnection::Prepare(const ConnectionLimits& limits) {
  if (ring_pages_ != nullptr || (state_ != State::kCreated && state_ != State::kRequested)) {
    return absl::FailedPreconditionError("shm: there is nothing to prepare");
  }
  if (limits.receive_depth > kMaxRingEntries || limits.send_depth == 0) {
    return absl::InvalidArgumentError(absl::StrCat("shm: receive depth ", limits.receive_depth,
                                                   " (at most ", kMaxRingEntries, "), send depth ",
                                                   limits.send_depth, " (at least 1)"));
  }
  const uint32_t entries = std::bit_ceil(std::max(limits.receive_depth, 1U));
  auto pages =
      OwnedPages::Create(ShmRing::Bytes(entries), OwnedPages::PeerMay::kWrite, "verbena-shm-ring");
  if (!pages.ok()) return pages.status();
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return ShmErrno(absl::StatusCode::kResourceExhausted, "eventfd");
  // Edge-triggered: it only ends a sleep, so it does not have to be read.
  absl::Status status = Watch(shared_->epoll.get(), wake.get(), EPOLLIN | EPOLLET, kWakeTag);
  if (!status.ok()) return status;
  limits_ = limits;
  ring_pages_ = std::move(*pages);
  ring_mask_ = entries - 1;
  wake_in_ = std::move(wake);
  return absl::OkStatus();
}

// ---- exposing
// -------------------------------------------------------------------------------------

absl::StatusOr<RemoteMemory> ShmConnection::Expose(std::shared_ptr<MemoryBlock> block,
                                                   size_t offset, size_t bytes) {
  if (closed_) return absl::FailedPreconditionError("shm: the connection is closed");
  // Temporary: its kLost or kFailed follows, and the caller's next connection may succeed.
  if (state_ == State::kEnded) return absl::UnavailableError("shm: the connection has ended");
  if (block == nullptr || bytes == 0 || offset > block->size() || bytes > block->size() - offset) {
    return absl::InvalidArgumentError("shm: the range to expose is not within a block");
  }
  if (!block->allocated()) {
    return absl::FailedPreconditionError(
        "shm: memory of the caller's cannot be shared with another process; allocate the region");
  }
  absl::Status status = SendsAtOnce() ? SendUnexposes() : absl::OkStatus();
  if (exposed_.size() >= kMaxRanges) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shm: ", exposed_.size(),
        " pieces of memory are exposed on this connection, the most "
        "that it takes; free regions that are not in use, or make fewer and larger ones"));
  }
  const uint64_t key = shared_->next_key++;
  const uint64_t address = reinterpret_cast<uint64_t>(block->data() + offset);
  Exposed exposed{key, address, offset, bytes, std::move(block)};
  if (status.ok() && exposed_.size() + unexposed_.size() >= kMaxRanges) {
    status = absl::ResourceExhaustedError("keys taken back wait to be sent");
  }
  if (status.ok() && SendsAtOnce()) status = SendExpose(exposed);
  if (!status.ok()) {
    AwaitRoom(status);
    return absl::UnavailableError(absl::StrCat("shm: memory cannot be exposed to the peer now (",
                                               std::string(status.message()),
                                               "); it can once the peer reads again"));
  }
  exposed_.push_back(std::move(exposed));
  return RemoteMemory{address, key};
}

absl::Status ShmConnection::SendExpose(const Exposed& exposed) {
  ShmMessage message;
  message.type = ShmMessageType::kExpose;
  message.key = exposed.key;
  message.address = exposed.address;
  message.offset = exposed.offset;
  message.bytes = exposed.bytes;
  const int fd = exposed.block->fd();
  absl::Status status = ShmSend(socket_.get(), message, absl::MakeConstSpan(&fd, 1));
  if (status.ok()) shared_memory_ = true;
  return status;
}

void ShmConnection::Unexpose(const RemoteMemory& memory) {
  const auto it = std::find_if(exposed_.begin(), exposed_.end(),
                               [&](const Exposed& e) { return e.key == memory.key; });
  if (it == exposed_.end()) return;
  const auto index = static_cast<size_t>(it - exposed_.begin());
  const bool sent = socket_.valid() && (SendsAtOnce() || index < exposes_sent_);
  if (index < exposes_sent_) --exposes_sent_;
  exposed_.erase(it);
  if (!sent || state_ == State::kEnded) return;
  unexposed_.push_back(memory.key);
  if (!SendsAtOnce()) return;
  // A peer that does not read keeps its mapping until it does.
  if (absl::Status status = SendUnexposes(); !status.ok()) AwaitRoom(status);
}

absl::Status ShmConnection::SendUnexposes() {
  while (!unexposed_.empty()) {
    ShmMessage message;
    message.type = ShmMessageType::kUnexpose;
    message.key = unexposed_.back();
    if (absl::Status s = ShmSend(socket_.get(), message, {}); !s.ok()) return s;
    unexposed_.pop_back();
  }
  return absl::OkStatus();
}

absl::Status ShmConnection::SendSetUp() {
  // Before the hello: the peer may accept and write to this memory as soon as it has read the
  // hello.
  for (; exposes_sent_ < exposed_.size(); ++exposes_sent_) {
    if (absl::Status s = SendExpose(exposed_[exposes_sent_]); !s.ok()) return s;
  }
  if (absl::Status s = SendHello(ShmMessageType::kHello); !s.ok()) return s;
  hello_sent_ = true;
  return SendUnexposes();
}

bool ShmConnection::SendWaiting() {
  absl::Status status;
  if (state_ != State::kEnded && socket_.valid()) {
    status = SendsAtOnce() ? SendUnexposes() : SendSetUp();
  }
  // If the peer is gone, OnReadable() detects it.
  const bool waits = absl::IsResourceExhausted(status) || absl::IsAborted(status);
  if (waits) {
    AwaitRoom(status);
  } else {
    EndAwaitingRoom();
  }
  return !waits;
}

void ShmConnection::AwaitRoom(const absl::Status& status) {
  if (absl::IsAborted(status) && !starved_) {
    starved_ = true;
    shared_->starved.push_back(id_);
  } else if (absl::IsResourceExhausted(status) && !awaits_room_ && socket_.valid()) {
    awaits_room_ = Watch(shared_->epoll.get(), socket_.get(), kReads | EPOLLOUT,
                         static_cast<uint32_t>(id_), EPOLL_CTL_MOD)
                       .ok();
  }
}

void ShmConnection::EndAwaitingRoom() {
  starved_ = false;
  if (!awaits_room_) return;
  awaits_room_ = false;
  if (!socket_.valid()) return;
  (void)Watch(shared_->epoll.get(), socket_.get(), kReads, static_cast<uint32_t>(id_),
              EPOLL_CTL_MOD);  // cannot fail: the socket is in the set, and MOD takes no memory
}

// ---- handshake
// ------------------------------------------------------------------------------------

absl::Status ShmConnection::Connect(const std::string& address, std::string_view private_data,
                                    int64_t deadline_ns) {
  if (private_data.size() > kMaxPrivateData) {
    return absl::InvalidArgumentError(
        absl::StrCat("private data of ", private_data.size(), " bytes; at most ", kMaxPrivateData));
  }
  if (state_ != State::kCreated || ring_pages_ == nullptr) {
    return absl::FailedPreconditionError("shm: connecting twice");
  }
  address_ = address;
  private_data_ = std::string(private_data);
  deadline_ns_ = deadline_ns;
  state_ = State::kConnecting;
  absl::Status status = OpenSocket();
  if (absl::IsInvalidArgument(status)) {
    state_ = State::kCreated;
    return status;
  }
  // OnTime() retries after a full backlog; other errors become an event.
  if (!status.ok() && !absl::IsResourceExhausted(status)) End(status, Why::kError);
  return absl::OkStatus();
}

absl::Status ShmConnection::OpenSocket() {
  absl::StatusOr<UniqueFd> socket = ShmConnect(address_);
  if (!socket.ok()) return socket.status();
  absl::Status status = ShmCheckPeer(socket->get());
  if (status.ok()) {
    status = Watch(shared_->epoll.get(), socket->get(), kReads, static_cast<uint32_t>(id_));
  }
  if (!status.ok()) return status;
  socket_ = std::move(*socket);
  status = SendSetUp();
  if (!absl::IsResourceExhausted(status) && !absl::IsAborted(status)) return status;
  AwaitRoom(status);
  return absl::OkStatus();
}

absl::Status ShmConnection::SendHello(ShmMessageType type) {
  ShmMessage message;
  message.type = type;
  message.ring_entries = ring_mask_ + 1;
  message.set_text(private_data_);
  const int fds[] = {ring_pages_->fd(), shared_->state->fd(), wake_in_.get()};
  absl::Status status = ShmSend(socket_.get(), message, fds);
  if (!status.ok()) return status;
  shared_memory_ = true;
  ring_pages_->CloseDescriptor();
  return absl::OkStatus();
}

void ShmConnection::AdoptSocket(UniqueFd socket, int64_t deadline_ns) {
  socket_ = std::move(socket);
  deadline_ns_ = deadline_ns;
  state_ = State::kIncoming;
  absl::Status status = ShmCheckPeer(socket_.get());
  if (status.ok()) {
    status = Watch(shared_->epoll.get(), socket_.get(), kReads, static_cast<uint32_t>(id_));
  }
  if (!status.ok()) End(status, Why::kError);
}

absl::Status ShmConnection::AdoptPeer(const ShmMessage& message, std::vector<UniqueFd>* fds) {
  const uint32_t entries = message.ring_entries;
  if (fds->size() != 3 || !std::has_single_bit(entries) || entries > kMaxRingEntries) {
    return absl::InvalidArgumentError("shm: malformed hello");
  }
  auto ring = ForeignPages::Map((*fds)[0].get(), 0, ShmRing::Bytes(entries), true, "ring");
  if (!ring.ok()) return ring.status();
  auto state = ForeignPages::Map((*fds)[1].get(), 0, sizeof(ShmState), false, "state page");
  if (!state.ok()) return state.status();
  if (!IsEventFd((*fds)[2].get())) {
    return absl::FailedPreconditionError("shm: the peer's wake-up descriptor is no eventfd");
  }
  peer_ring_pages_ = std::move(*ring);
  peer_state_pages_ = std::move(*state);
  wake_out_ = std::move((*fds)[2]);
  peer_mask_ = entries - 1;
  return absl::OkStatus();
}

absl::Status ShmConnection::Accept() {
  if (state_ != State::kRequested || ring_pages_ == nullptr) {
    return absl::FailedPreconditionError("shm: there is no prepared request to accept");
  }
  if (absl::Status status = SendHello(ShmMessageType::kAccept); !status.ok()) return status;
  state_ = State::kEstablished;
  Push(ConnectionEvent::Kind::kEstablished, {}, {});
  return absl::OkStatus();
}

void ShmConnection::Reject(std::string_view reason) {
  if (state_ != State::kRequested) return;
  ShmMessage message;
  message.type = ShmMessageType::kReject;
  message.set_text(reason);
  (void)ShmSend(socket_.get(), message, {});  // without it the peer sees only the end
}

void ShmConnection::GiveWay() {
  End(absl::ResourceExhaustedError("shm: too many peers connect and send nothing"), Why::kError);
}

void ShmConnection::OnTime(int64_t now_ns) {
  if (!handshaking()) return;
  if (now_ns >= deadline_ns_) {
    End(absl::DeadlineExceededError("shm: the peer did not answer"), Why::kError);
  } else if (retrying()) {
    const absl::Status status = OpenSocket();
    if (!status.ok() && !absl::IsResourceExhausted(status)) End(status, Why::kError);
  }
}

// ---- messages
// -------------------------------------------------------------------------------------

bool ShmConnection::OnReadable() {
  ShmMessage message;
  std::vector<UniqueFd> fds;
  for (int i = 0; i < kMessagesAtOnce && socket_.valid(); ++i) {
    switch (ShmReceive(socket_.get(), &message, &fds)) {
      case ShmReceived::kNothing:
        return false;
      case ShmReceived::kGone:
        // The peer has unmapped this side's memory, or has ended.
        peer_gone_ = true;
        End(absl::UnavailableError("shm: the peer closed the connection or is gone"), Why::kPeer);
        if (!ranges_.borrowed()) CloseSocket();
        return false;
      case ShmReceived::kMalformed:
        End(absl::InternalError("shm: malformed message from the peer"), Why::kError);
        break;
      case ShmReceived::kNoDescriptors:
        End(absl::ResourceExhaustedError(
                absl::StrCat("shm: process ", getpid(), " has no file descriptor left for the ",
                             "memory that its peer shares (ulimit -n: ", DescriptorLimit(),
                             "); raise the limit")),
            Why::kError);
        break;
      case ShmReceived::kMessage:
        if (state_ != State::kEnded) OnMessage(message, &fds);
        break;
    }
  }
  return socket_.valid();
}

void ShmConnection::OnMessage(const ShmMessage& message, std::vector<UniqueFd>* fds) {
  absl::Status status;
  if (message.version != kShmVersion) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "shm: the peer speaks version ", message.version, ", this is version ", kShmVersion));
  } else if (message.type == ShmMessageType::kReject && state_ == State::kConnecting) {
    End(absl::FailedPreconditionError(absl::StrCat("the peer refused: ", message.text())),
        Why::kPeer);
  } else if (message.type == ShmMessageType::kError && state_ != State::kIncoming) {
    End(absl::UnavailableError(absl::StrCat("the peer reports: ", message.text())), Why::kPeer);
  } else if (message.type == ShmMessageType::kHello && state_ == State::kIncoming) {
    status = AdoptPeer(message, fds);
    if (status.ok()) {
      state_ = State::kRequested;
      Push(ConnectionEvent::Kind::kRequest, message.text(), {});
    }
  } else if (message.type == ShmMessageType::kAccept && state_ == State::kConnecting) {
    status = AdoptPeer(message, fds);
    if (status.ok()) {
      state_ = State::kEstablished;
      Push(ConnectionEvent::Kind::kEstablished, {}, {});
    }
  } else if (message.type == ShmMessageType::kExpose) {
    status = ranges_.Map(message, fds);
  } else if (message.type == ShmMessageType::kUnexpose && state_ != State::kIncoming) {
    ranges_.Unmap(message.key);
  } else {
    status = absl::InternalError(
        absl::StrCat("shm: message ", static_cast<int>(message.type), " out of place"));
  }
  if (!status.ok()) End(status, Why::kError);
}

}  // namespace verbena::rdma
