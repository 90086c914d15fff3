// Set-up and end of a connection; its data path is in ofi_connection_data.cc.
#include "rdma/ofi/ofi_connection.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/ofi/ofi_provider.h"

namespace verbena::rdma {
namespace {

constexpr size_t kDoorbellBytes = 64;
constexpr uint32_t kMaxDepth = 1 << 16;
constexpr int kKeyTries = 8;

constexpr char kHint[] = "; each lane takes about ten descriptors (ulimit -n)";

absl::Status Ended() { return absl::FailedPreconditionError("ofi: the connection has ended"); }

absl::Status RandomBytes(void* to, size_t bytes) {
  if (getrandom(to, bytes, 0) == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ofi: getrandom: errno ", errno));
}

absl::Status SetUpError(std::string_view what, long error) {
  absl::Status status = FabricError(absl::StatusCode::kResourceExhausted, what, error);
  return absl::Status(status.code(), absl::StrCat(status.message(), kHint));
}

}  // namespace

OfiConnection::~OfiConnection() { Close(); }

// ---- the libfabric endpoint ---------------------------------------------------------------------

absl::Status OfiConnection::Prepare(const ConnectionLimits& limits,
                                    std::shared_ptr<OfiDomain> domain) {
  if (ep_ != nullptr || (state_ != State::kCreated && state_ != State::kRequested)) {
    return absl::FailedPreconditionError("ofi: there is nothing to prepare");
  }
  if (limits.send_depth == 0 || limits.send_depth > kMaxDepth || limits.receive_depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("ofi: send depth ", limits.send_depth, " (1..", kMaxDepth, "), receive depth ",
                     limits.receive_depth, " (at most ", kMaxDepth, ")"));
  }
  limits_ = limits;
  domain_ = std::move(domain);
  absl::Status status = RandomBytes(&secret_, sizeof(secret_));
  if (status.ok()) status = OpenEndpoint();
  if (!status.ok()) return status;
  ops_.resize(std::bit_ceil(size_t{limits.send_depth} + 1));  // plus the join
  ops_mask_ = ops_.size() - 1;
  auto doorbell = MemoryBlock::AllocatePrivate(kDoorbellBytes, kSharedPages, "verbena-doorbell");
  if (!doorbell.ok()) return doorbell.status();
  doorbell_ = *std::move(doorbell);
  absl::StatusOr<Exposed> exposed = MakeExposed(doorbell_, 0, kDoorbellBytes);
  if (!exposed.ok()) return exposed.status();
  doorbell_exposed_ = *std::move(exposed);
  return absl::OkStatus();
}

absl::Status OfiConnection::OpenEndpoint() {
  fid_domain* const domain = domain_->domain.get();
  fi_cq_attr queue = {};
  queue.format = FI_CQ_FORMAT_DATA;
  queue.size = size_t{limits_.send_depth} + limits_.receive_depth + 16;
  queue.wait_obj = FI_WAIT_FD;
  fid_cq* cq = nullptr;
  if (const int error = fi_cq_open(domain, &queue, &cq, nullptr); error != 0) {
    return SetUpError("cannot make a completion queue with a descriptor (FI_WAIT_FD)", error);
  }
  cq_.reset(cq);
  if (const int error = fi_control(&cq->fid, FI_GETWAIT, &cq_fd_); error != 0) {
    return SetUpError("the completion queue has no descriptor", error);
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint32_t>(id_);
  if (epoll_ctl(shared_->sleepers.get(), EPOLL_CTL_ADD, cq_fd_, &event) != 0) {
    cq_fd_ = -1;
    return absl::ResourceExhaustedError(absl::StrCat("ofi: epoll_ctl: errno ", errno));
  }
  fi_av_attr addresses = {};
  addresses.type = FI_AV_MAP;
  fid_av* av = nullptr;
  if (const int error = fi_av_open(domain, &addresses, &av, nullptr); error != 0) {
    return SetUpError("fi_av_open", error);
  }
  av_.reset(av);
  fid_ep* ep = nullptr;
  if (const int error = fi_endpoint(domain, shared_->info.get(), &ep, nullptr); error != 0) {
    return SetUpError("fi_endpoint", error);
  }
  ep_.reset(ep);
  int error = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = fi_ep_bind(ep, &av->fid, 0);
  if (error == 0) error = fi_enable(ep);
  if (error != 0) return SetUpError("cannot enable an endpoint", error);
  name_.resize(kOfiNameBytes);
  size_t bytes = name_.size();
  error = fi_getname(&ep->fid, name_.data(), &bytes);
  if (error != 0) return SetUpError("fi_getname", error);
  name_.resize(bytes);
  return absl::OkStatus();
}

// ---- exposing -----------------------------------------------------------------------------------

absl::StatusOr<OfiConnection::Exposed> OfiConnection::MakeExposed(
    std::shared_ptr<MemoryBlock> block, size_t offset, size_t bytes) {
  std::byte* const data = block->data() + offset;
  fid_mr* region = nullptr;
  int error = -FI_ENOKEY;
  for (int i = 0; i < kKeyTries && error == -FI_ENOKEY; ++i) {
    uint64_t key = 0;
    if (absl::Status s = RandomBytes(&key, sizeof(key)); !s.ok()) return s;
    error =
        fi_mr_reg(domain_->domain.get(), data, bytes, FI_REMOTE_WRITE, 0, key, 0, &region, nullptr);
  }
  if (error != 0) {
    return FabricError(
        error == -FI_EAGAIN ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted,
        absl::StrCat("cannot register ", bytes, " bytes"), error);
  }
  FabricMrHandle owned(region);
  if ((shared_->info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    error = fi_mr_bind(region, &ep_->fid, 0);
    if (error == 0) error = fi_mr_enable(region);
    if (error != 0) {
      return FabricError(absl::StatusCode::kResourceExhausted,
                         "cannot bind a registration to its endpoint", error);
    }
  }
  const uint64_t address =
      shared_->virtual_addresses ? reinterpret_cast<uintptr_t>(data) : kOfiOffsetBase;
  return Exposed{{address, fi_mr_key(region)}, std::move(block), std::move(owned)};
}

absl::StatusOr<RemoteMemory> OfiConnection::Expose(std::shared_ptr<MemoryBlock> block,
                                                   size_t offset, size_t bytes) {
  if (closed_) return Ended();
  // Temporary: its kLost or kFailed follows, and the caller's next connection may succeed.
  if (state_ == State::kEnded) return absl::UnavailableError("ofi: the connection has ended");
  if (ep_ == nullptr) return absl::FailedPreconditionError("ofi: the connection is not prepared");
  if (block == nullptr || bytes == 0 || offset > block->size() || bytes > block->size() - offset) {
    return absl::InvalidArgumentError("ofi: the range to expose is not within a block");
  }
  absl::StatusOr<Exposed> exposed = MakeExposed(std::move(block), offset, bytes);
  if (!exposed.ok()) return exposed.status();
  exposed_.push_back(*std::move(exposed));
  return exposed_.back().memory;
}

void OfiConnection::Unexpose(const RemoteMemory& memory) {
  std::erase_if(exposed_, [&](const Exposed& e) { return e.memory.key == memory.key; });
}

// ---- handshake ----------------------------------------------------------------------------------

absl::Status OfiConnection::Watch(int fd) const {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET;
  event.data.u64 = static_cast<uint32_t>(id_);
  if (epoll_ctl(shared_->sockets.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("ofi: epoll_ctl: errno ", errno));
}

absl::Status OfiConnection::Connect(const std::string& address, std::string_view private_data,
                                    int64_t deadline_ns) {
  if (private_data.size() > kMaxPrivateData) {
    return absl::InvalidArgumentError(
        absl::StrCat("private data of ", private_data.size(), " bytes; at most ", kMaxPrivateData));
  }
  if (state_ != State::kCreated || ep_ == nullptr) {
    return absl::FailedPreconditionError("ofi: connecting twice");
  }
  absl::StatusOr<UniqueFd> socket = OfiConnect(address, shared_->ip);
  if (absl::IsInvalidArgument(socket.status())) return socket.status();
  initiator_ = true;
  state_ = State::kConnecting;
  deadline_ns_ = deadline_ns;
  absl::Status status = socket.status();
  if (status.ok()) {
    socket_ = OfiSocket(*std::move(socket));
    WatchForSilence(socket_.fd(), shared_->options.silence);
    status = Watch(socket_.fd());
  }
  if (!status.ok()) {
    End(status, Why::kError);  // reported as an event
    return absl::OkStatus();
  }
  socket_.Send(Introduction(OfiMessageType::kHello, private_data));
  return absl::OkStatus();
}

OfiMessage OfiConnection::Introduction(OfiMessageType type, std::string_view text) const {
  OfiMessage message;
  message.type = type;
  message.secret = secret_;
  message.doorbell = doorbell_exposed_.memory;
  message.name = name_;
  message.provider = shared_->info->fabric_attr->prov_name;
  message.text = std::string(text);
  return message;
}

void OfiConnection::AdoptSocket(UniqueFd socket, int64_t deadline_ns) {
  socket_ = OfiSocket(std::move(socket));
  deadline_ns_ = deadline_ns;
  state_ = State::kIncoming;
  WatchForSilence(socket_.fd(), shared_->options.silence);
  if (absl::Status status = Watch(socket_.fd()); !status.ok()) End(status, Why::kError);
}

// Validates and stores the peer's introduction; its address is used when the endpoint exists.
absl::Status OfiConnection::AdoptPeer(const OfiMessage& message) {
  const std::string ours = shared_->info->fabric_attr->prov_name;
  if (message.provider != ours) {
    return absl::FailedPreconditionError(absl::StrCat("ofi: one side uses libfabric's provider '",
                                                      ours,
                                                      "', the other another; "
                                                      "give both the same --ofi-provider"));
  }
  // Otherwise a peer could make this process connect to any host.
  if (!IsAddressOfPeer(socket_.fd(), message.name)) {
    return absl::FailedPreconditionError(
        "ofi: the peer's endpoint is not at the address that its connection comes from; where "
        "addresses are translated on the way (NAT), this transport cannot be used");
  }
  peer_secret_ = message.secret;
  peer_doorbell_ = message.doorbell;
  peer_name_ = message.name;
  return absl::OkStatus();
}

absl::Status OfiConnection::AddressPeer() {
  if (fi_av_insert(av_.get(), peer_name_.data(), 1, &peer_, 0, nullptr) == 1) {
    return absl::OkStatus();
  }
  return absl::InternalError("ofi: the peer's endpoint cannot be addressed (fi_av_insert)");
}

absl::Status OfiConnection::Accept(int64_t deadline_ns) {
  if (state_ != State::kRequested || ep_ == nullptr) {
    return absl::FailedPreconditionError("ofi: there is no prepared request to accept");
  }
  if (absl::Status status = AddressPeer(); !status.ok()) return status;
  socket_.Send(Introduction(OfiMessageType::kAccept, ""));
  deadline_ns_ = deadline_ns;
  state_ = State::kJoining;
  return absl::OkStatus();
}

void OfiConnection::Reject(std::string_view reason) {
  if (state_ != State::kRequested) return;
  OfiMessage message;
  message.type = OfiMessageType::kReject;
  message.text = std::string(reason);
  socket_.Send(message);
}

void OfiConnection::OnTime(int64_t now_ns) {
  if (!handshaking() || now_ns < deadline_ns_) return;
  const bool joining = state_ == State::kJoining;
  End(absl::DeadlineExceededError(
          joining ? absl::StrCat("ofi: the data connection (", shared_->options.provider,
                                 ") did not come up; its ports are chosen freely: does a firewall "
                                 "between the two hosts let them through?")
                  : "ofi: the peer did not answer"),
      Why::kError);
}

void OfiConnection::OnSocket() {
  OfiMessage message;
  absl::Status why;
  socket_.Flush();
  while (socket_.valid()) {
    switch (socket_.Receive(&message, &why)) {
      case OfiSocket::Received::kNothing:
        return;
      case OfiSocket::Received::kGone:
        return End(why, Why::kPeer);
      case OfiSocket::Received::kMalformed:
        return End(why, Why::kError);
      case OfiSocket::Received::kMessage:
        OnMessage(message);
        break;
    }
  }
}

void OfiConnection::OnMessage(const OfiMessage& message) {
  absl::Status status;
  if (message.type == OfiMessageType::kReject && state_ == State::kConnecting) {
    return End(absl::FailedPreconditionError(absl::StrCat("the peer refused: ", message.text)),
               Why::kPeer);
  }
  if (message.type == OfiMessageType::kError && state_ != State::kIncoming) {
    return End(absl::UnavailableError(absl::StrCat("the peer reports: ", message.text)),
               Why::kPeer);
  }
  if (message.type == OfiMessageType::kHello && state_ == State::kIncoming) {
    status = AdoptPeer(message);
    if (status.ok()) {
      state_ = State::kRequested;
      return Push(ConnectionEvent::Kind::kRequest, message.text, {});
    }
  } else if (message.type == OfiMessageType::kAccept && state_ == State::kConnecting) {
    status = AdoptPeer(message);
    if (status.ok()) status = AddressPeer();
    if (status.ok()) {
      state_ = State::kJoining;
      AppendJoin();
      return Issue();
    }
  } else {
    status = absl::InternalError(
        absl::StrCat("ofi: message ", static_cast<int>(message.type), " out of place"));
  }
  End(status, Why::kError);
}

void OfiConnection::Established() {
  state_ = State::kEstablished;
  Push(ConnectionEvent::Kind::kEstablished, {}, {});
}

void OfiConnection::OnEstablishedReported() {
  if (reported_) return;
  reported_ = true;
  for (const Completion& completion : held_) shared_->completions.push(completion);
  held_.clear();
}

// ---- ending -------------------------------------------------------------------------------------

void OfiConnection::Push(ConnectionEvent::Kind kind, std::string private_data,
                         absl::Status status) {
  shared_->events.push_back({kind, id_, std::move(private_data), std::move(status)});
}

void OfiConnection::End(const absl::Status& status, Why why) {
  if (state_ == State::kEnded) return;
  // Data that arrived before the peer's end is reported.
  if (why == Why::kPeer && state_ == State::kEstablished) {
    while (ReadQueue().ok() && read_ > 0) {
    }
    failed_ = kNone;
  }
  const State was = state_;
  state_ = State::kEnded;
  // The endpoint first: it ends all of libfabric's work for this connection.
  if (cq_fd_ >= 0) epoll_ctl(shared_->sleepers.get(), EPOLL_CTL_DEL, cq_fd_, nullptr);
  cq_fd_ = -1;
  ep_.reset();
  exposed_.clear();
  doorbell_exposed_ = {};
  doorbell_.reset();
  av_.reset();
  cq_.reset();
  domain_.reset();
  FlushWrites();
  for (; consumed_ < posted_; ++consumed_) {
    Report(Completion::Kind::kReceive, false, true, 0, 0);
  }
  if (why == Why::kError && socket_.valid()) {
    OfiMessage message;
    message.type = was == State::kIncoming ? OfiMessageType::kReject : OfiMessageType::kError;
    message.text = std::string(status.message());
    socket_.Send(message);
  }
  CloseSocket();
  if (was == State::kIncoming) discard_ = true;
  if (why == Why::kOwner || was == State::kIncoming || was == State::kCreated) return;
  Push(was == State::kEstablished ? ConnectionEvent::Kind::kLost : ConnectionEvent::Kind::kFailed,
       {}, status);
}

void OfiConnection::Close() {
  closed_ = true;
  End(absl::CancelledError("ofi: closed"), Why::kOwner);
  // Drops the events of a connection that its owner has closed.
  std::erase_if(shared_->events,
                [this](const ConnectionEvent& event) { return event.connection == id_; });
}

void OfiConnection::CloseSocket() {
  if (!socket_.valid()) return;
  // Removed explicitly: a duplicate of the descriptor in a forked child would keep it in the set
  // (epoll(7)), and the connection open.
  epoll_ctl(shared_->sockets.get(), EPOLL_CTL_DEL, socket_.fd(), nullptr);
  shutdown(socket_.fd(), SHUT_RDWR);
  socket_.Close();
}

}  // namespace verbena::rdma
