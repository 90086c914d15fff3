#include "rdma/verbs/verbs_endpoint.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/host_port.h"
#include "rdma/verbs/verbs_endpoint_impl.h"
#include "rdma/verbs/verbs_errors.h"
#include "rdma/verbs/verbs_ports.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kQueueEntries = 4096;  // size of the first completion queue; each next one
                                          // doubles
constexpr int64_t kOpenAgainNanos = 100'000'000;  // between attempts to open a removed device
constexpr size_t kRejectionBytes = 140;           // private data of an IB CM REJ: 148

absl::Status SetNonBlocking(int fd, std::string_view what) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return absl::OkStatus();
  return ErrnoStatus(what, errno);
}

// Since Linux 5.12 a child of fork() gets copies of pinned pages at once. Before that, the pages
// must be marked, and this call must come first (ibv_fork_init(3)).
void MakeForkSafe() {
  static const bool done = [] {
    if (ibv_is_fork_initialized() == IBV_FORK_DISABLED) (void)ibv_fork_init();
    return true;
  }();
  (void)done;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> NewVerbsEndpoint(const VerbsOptions& options) {
  return VerbsEndpointImpl::Make(options);
}

absl::StatusOr<std::unique_ptr<Endpoint>> VerbsEndpointImpl::Make(const VerbsOptions& options) {
  if (absl::Status s = ValidateVerbsOptions(options); !s.ok()) return s;
  MakeForkSafe();
  auto endpoint = std::unique_ptr<VerbsEndpointImpl>(new VerbsEndpointImpl(options));
  if (absl::Status s = endpoint->OpenDevice(); !s.ok()) return s;
  return endpoint;
}

VerbsEndpointImpl::~VerbsEndpointImpl() { CloseDevice("the endpoint is destroyed"); }

// ---- the device ---------------------------------------------------------------------------------

absl::Status VerbsEndpointImpl::OpenDevice() {
  absl::StatusOr<VerbsPort> port = ChooseVerbsPort(options_);
  if (!port.ok()) return port.status();
  port_ = *std::move(port);
  if (absl::Status s = OpenChannels(); !s.ok()) return s;
  if (absl::Status s = BindAnchor(); !s.ok()) return s;
  channel_.reset(ibv_create_comp_channel(device_->context()));
  if (channel_ == nullptr) return ErrnoStatus("ibv_create_comp_channel", errno);
  if (absl::Status s = SetNonBlocking(channel_->fd, "completion channel"); !s.ok()) return s;
  if (device_->windows()) {
    absl::StatusOr<std::shared_ptr<DomainView>> view = View(0);
    if (!view.ok()) return view.status();
    common_view_ = *std::move(view);
  }
  MakeSlabs();
  removed_.clear();
  // After a removal, the same device and address are used again.
  options_.device = device();
  options_.address = port_.address;
  Log(absl::StrCat("verbs on ", device(), " (", port_.netdev, " ", port_.address, ", ",
                   port_.link_layer, ", NUMA node ", port_.numa_node, "): ",
                   device_->windows() ? "memory windows of type 2B"
                                      : "no memory windows: a protection domain for each job",
                   ", max_qp_wr ", device_->attributes().max_qp_wr, ", max_cqe ",
                   device_->attributes().max_cqe));
  return listening_ ? StartListening() : absl::OkStatus();
}

// Objects that outlive a device: librdmacm's events, and the path of asynchronous events.
absl::Status VerbsEndpointImpl::OpenChannels() {
  if (events_channel_ != nullptr) return absl::OkStatus();
  EventChannelHandle channel(rdma_create_event_channel());
  if (channel == nullptr) return ErrnoStatus("rdma_create_event_channel", errno);
  if (absl::Status s = SetNonBlocking(channel->fd, "rdma event channel"); !s.ok()) return s;
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return ErrnoStatus("eventfd", errno);
  inbox_ = std::make_shared<AsyncInbox>(wake_.get());
  events_channel_ = std::move(channel);
  return absl::OkStatus();
}

absl::Status VerbsEndpointImpl::BindAnchor() {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(events_channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  anchor_.reset(id);
  absl::StatusOr<SocketAddress> address = ParseVerbsAddress(JoinHostPort(port_.address, 0));
  if (!address.ok()) return address.status();
  if (rdma_bind_addr(id, address->get()) != 0 || id->verbs == nullptr) {
    return ErrnoStatus(absl::StrCat("cannot bind ", port_.address, " on ", port_.device), errno);
  }
  absl::StatusOr<std::shared_ptr<VerbsDevice>> opened = VerbsDevice::Of(id->verbs, options_);
  if (!opened.ok()) return opened.status();
  device_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status VerbsEndpointImpl::StartListening() {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(events_channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  CmIdHandle listener(id);
  absl::StatusOr<SocketAddress> address =
      ParseVerbsAddress(JoinHostPort(port_.address, listen_port_));
  if (!address.ok()) return address.status();
  if (rdma_bind_addr(id, address->get()) != 0 || rdma_listen(id, options_.backlog) != 0) {
    return ErrnoStatus(absl::StrCat("cannot listen on ", JoinHostPort(port_.address, listen_port_),
                                    " of RDMA device ", device()),
                       errno);
  }
  listen_port_ = be16toh(rdma_get_src_port(id));
  listener_ = std::move(listener);
  return absl::OkStatus();
}

void VerbsEndpointImpl::CloseDevice(const std::string& reason) {
  removed_ = reason;
  std::vector<VerbsConnection*> all;
  for (auto& [id, connection] : connections_) all.push_back(connection.get());
  for (VerbsConnection* connection : all) {
    Lose(connection, absl::UnavailableError(reason));
    connection->DropCmId();
  }
  failing_.clear();
  std::erase_if(stuck_, [this](VerbsConnection* connection) { return TryRetire(connection); });
  if (!stuck_.empty()) {
    Log(absl::StrCat("verbs on ", device(), ": ", stuck_.size(),
                     " queue pairs could not be taken down before the device was closed; their "
                     "memory is kept until this process ends; restart it"));
    for (VerbsConnection* connection : stuck_) connection->Abandon();
    stuck_.clear();
  }
  listener_.reset();
  for (const auto& queue : queues_) {
    if (device_ != nullptr) device_->Unwatch(queue->cq.get());
  }
  queues_.clear();
  stepped_.clear();  // waits for the steps in progress
  common_view_.reset();
  views_.clear();
  slabs_.reset();
  channel_.reset();
  device_.reset();
  anchor_.reset();
}

absl::Status VerbsEndpointImpl::NeedDevice() {
  if (device_ != nullptr) return absl::OkStatus();
  const int64_t now = clock_.NowNanos();
  if (now < next_open_ns_) return absl::UnavailableError(removed_);
  next_open_ns_ = now + kOpenAgainNanos;
  const std::string reason = removed_;
  absl::Status opened = OpenDevice();
  if (opened.ok()) return opened;
  CloseDevice(reason);
  return absl::UnavailableError(absl::StrCat(reason, "; ", opened.message()));
}

absl::StatusOr<CompletionQueue*> VerbsEndpointImpl::QueueWithRoom(uint32_t entries) {
  for (const auto& queue : queues_) {
    if (!queue->broken && queue->capacity - queue->used >= entries) return queue.get();
  }
  const uint32_t most = static_cast<uint32_t>(std::max(0, device_->attributes().max_cqe));
  if (entries > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a connection needs a completion queue of ", entries, " entries; device ", device_->name(),
        " has at most ", most, " (max_cqe): use fewer slots or operations for each lane"));
  }
  auto queue = std::make_unique<CompletionQueue>();
  // Few queues to poll with many lanes, and little memory with few lanes.
  const uint64_t usual = uint64_t{kQueueEntries} << std::min<size_t>(queues_.size(), 20);
  auto size = static_cast<uint32_t>(std::min<uint64_t>(most, std::max<uint64_t>(entries, usual)));
  while (true) {
    queue->cq.reset(
        ibv_create_cq(device_->context(), static_cast<int>(size), queue.get(), channel_.get(), 0));
    if (queue->cq != nullptr) break;
    // Queues are locked memory: a device may refuse sizes below max_cqe.
    if (errno != ENOMEM || size == entries) {
      return ErrnoStatus(
          absl::StrCat("cannot make a completion queue of ", size, " entries on ", device_->name()),
          errno);
    }
    size = std::max(entries, size / 2);
  }
  device_->Watch(queue->cq.get(), {inbox_, 0});
  queue->capacity = static_cast<uint32_t>(queue->cq->cqe);
  queues_.push_back(std::move(queue));
  return queues_.back().get();
}

// ---- connections --------------------------------------------------------------------------------

VerbsConnection* VerbsEndpointImpl::Find(ConnectionId id) const {
  if (last_ != nullptr && last_->id() == id) return last_;
  const auto it = connections_.find(static_cast<uint32_t>(id));
  return it == connections_.end() ? nullptr : it->second.get();
}

ConnectionId VerbsEndpointImpl::Adopt(CmIdHandle cm_id, State state) {
  const auto id = static_cast<ConnectionId>(next_id_++);
  rdma_cm_id* const raw = cm_id.get();
  auto connection = std::make_unique<VerbsConnection>(id, std::move(cm_id));
  connection->state = state;
  raw->context = connection.get();
  connections_.emplace(static_cast<uint32_t>(id), std::move(connection));
  look_ = true;
  return id;
}

absl::StatusOr<std::string> VerbsEndpointImpl::Listen() {
  if (listening_) return absl::FailedPreconditionError("the endpoint is listening already");
  if (absl::Status s = NeedDevice(); !s.ok()) return s;
  listen_port_ = static_cast<uint16_t>(options_.port);  // ValidateVerbsOptions() has checked it
  if (absl::Status s = StartListening(); !s.ok()) return s;
  listening_ = true;
  return JoinHostPort(port_.address, listen_port_);
}

absl::Status VerbsEndpointImpl::StartConnection(VerbsConnection* connection,
                                                const ConnectionLimits& limits) {
  const uint32_t entries = VerbsConnection::CompletionEntries(limits);
  absl::StatusOr<CompletionQueue*> queue = QueueWithRoom(entries);
  if (!queue.ok()) return queue.status();
  absl::StatusOr<std::shared_ptr<DomainView>> view = View(limits.domain);
  if (!view.ok()) return view.status();
  return connection->Start(limits, device_.get(), *std::move(view), *queue, inbox_, options_);
}

absl::StatusOr<ConnectionId> VerbsEndpointImpl::Create(const ConnectionLimits& limits) {
  if (absl::Status s = NeedDevice(); !s.ok()) return s;
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(events_channel_.get(), &raw, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  CmIdHandle cm_id(raw);
  absl::StatusOr<SocketAddress> local = ParseVerbsAddress(JoinHostPort(port_.address, 0));
  if (!local.ok()) return local.status();
  // Bound now, so that the device is known and memory can be exposed before connecting.
  if (rdma_bind_addr(raw, local->get()) != 0 || raw->verbs != device_->context()) {
    return ErrnoStatus(absl::StrCat("cannot bind ", port_.address, " on ", device()), errno);
  }
  const ConnectionId id = Adopt(std::move(cm_id), State::kIdle);
  if (absl::Status s = StartConnection(Find(id), limits); !s.ok()) {
    Destroy(id);
    return s;
  }
  return id;
}

absl::Status VerbsEndpointImpl::Connect(ConnectionId id, const std::string& address,
                                        std::string_view private_data) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr || connection->state != State::kIdle) {
    return absl::FailedPreconditionError("the connection is not one to connect");
  }
  if (private_data.size() > kMaxPrivateData) {
    return absl::InvalidArgumentError(
        absl::StrCat(private_data.size(), " bytes of private data; allowed: ", kMaxPrivateData));
  }
  absl::StatusOr<SocketAddress> peer = ParseVerbsAddress(address);
  if (!peer.ok()) return peer.status();
  connection->initiator = true;
  connection->private_data = std::string(private_data);
  const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(options_.connect_timeout));
  if (rdma_resolve_addr(connection->cm_id(), nullptr, peer->get(), timeout_ms) != 0) {
    return ErrnoStatus(absl::StrCat("cannot resolve ", address, " on ", device()), errno);
  }
  connection->state = State::kResolving;
  connection->deadline_ns = DeadlineFromNow();
  connecting_.push_back(connection);
  look_ = true;
  return absl::OkStatus();
}

absl::Status VerbsEndpointImpl::Prepare(ConnectionId id, const ConnectionLimits& limits) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr || connection->state != State::kRequested ||
      connection->has_queue_pair()) {
    return absl::FailedPreconditionError("the connection is not a request to prepare");
  }
  return StartConnection(connection, limits);
}

absl::Status VerbsEndpointImpl::Accept(ConnectionId id) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr || connection->state != State::kRequested ||
      !connection->has_queue_pair()) {
    return absl::FailedPreconditionError("the connection is not a prepared request");
  }
  if (absl::Status s = connection->MakeReady(options_); !s.ok()) return s;
  connection->deadline_ns = DeadlineFromNow();
  connecting_.push_back(connection);
  if (!connection->binding()) FinishBinding(connection);
  return absl::OkStatus();
}

void VerbsEndpointImpl::Reject(ConnectionId id, std::string_view reason) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return;
  if (connection->cm_id() != nullptr) {
    const auto bytes = static_cast<uint8_t>(std::min(reason.size(), kRejectionBytes));
    (void)rdma_reject(connection->cm_id(), reason.data(), bytes);
  }
  Destroy(id);
}

void VerbsEndpointImpl::Close(ConnectionId id) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr || connection->state == State::kClosed) return;
  const State before = connection->state;
  connection->state = State::kClosed;
  connecting_.erase(std::remove(connecting_.begin(), connecting_.end(), connection),
                    connecting_.end());
  if (before == State::kLost) return;
  Retire(connection);
  if (connection->cm_id() != nullptr) (void)rdma_disconnect(connection->cm_id());
}

bool VerbsEndpointImpl::Dead(ConnectionId id) const {
  const VerbsConnection* connection = Find(id);
  if (connection == nullptr) return true;
  const bool ended = connection->state == State::kLost || connection->state == State::kClosed;
  return ended && connection->retired();
}

void VerbsEndpointImpl::Destroy(ConnectionId id) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return;
  Close(id);
  if (last_ == connection) last_ = nullptr;
  const auto it = connections_.find(static_cast<uint32_t>(id));
  if (!connection->retired()) {
    connection->DropCmId();
    forgotten_.push_back(std::move(it->second));
  }
  connections_.erase(it);
  ready_.RemoveIf([id](const Completion& completion) { return completion.connection == id; });
  events_.RemoveIf([id](const ConnectionEvent& event) { return event.connection == id; });
}

}  // namespace verbena::rdma
