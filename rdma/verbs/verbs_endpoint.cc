#include "rdma/verbs/verbs_endpoint.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

constexpr int64_t kOpenAgainNanos = 100'000'000;  // between attempts to open a removed device
// Checking a descriptor is a system call, so during traffic it is done once in this many turns.
constexpr uint32_t kTurnsPerLook = 64;
constexpr size_t kRejectionBytes = 140;  // private data of an IB CM REJ: 148

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

absl::Status VerbsEndpointImpl::OpenDevice() {
  absl::StatusOr<VerbsPort> port = ChooseVerbsPort(options);
  if (!port.ok()) return port.status();
  port_ = *std::move(port);
  if (absl::Status s = OpenChannels(); !s.ok()) return s;
  if (absl::Status s = BindAnchor(); !s.ok()) return s;
  completion_channel.reset(ibv_create_comp_channel(nic->context()));
  if (completion_channel == nullptr) return ErrnoStatus("ibv_create_comp_channel", errno);
  if (absl::Status s = SetNonBlocking(completion_channel->fd, "completion channel"); !s.ok())
    return s;
  if (absl::Status s = memory.Open(port_.numa_node); !s.ok()) return s;
  removed_.clear();
  // After a removal, the same device and address are used again.
  options.device = device();
  options.address = port_.address;
  Log(absl::StrCat("verbs on ", device(), " (", port_.netdev, " ", port_.address, ", ",
                   port_.link_layer, ", NUMA node ", port_.numa_node, "): ",
                   nic->windows() ? "memory windows of type 2B"
                                  : "no memory windows: a protection domain for each job",
                   ", max_qp_wr ", nic->attributes().max_qp_wr, ", max_cqe ",
                   nic->attributes().max_cqe));
  return listening_ ? StartListening() : absl::OkStatus();
}

// Objects that outlive a device: librdmacm's events, and the path of asynchronous events.
absl::Status VerbsEndpointImpl::OpenChannels() {
  if (events_channel != nullptr) return absl::OkStatus();
  EventChannelHandle channel(rdma_create_event_channel());
  if (channel == nullptr) return ErrnoStatus("rdma_create_event_channel", errno);
  if (absl::Status s = SetNonBlocking(channel->fd, "rdma event channel"); !s.ok()) return s;
  wake.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("eventfd", errno);
  inbox = std::make_shared<AsyncInbox>(wake.get());
  events_channel = std::move(channel);
  return absl::OkStatus();
}

absl::Status VerbsEndpointImpl::BindAnchor() {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(events_channel.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  anchor.reset(id);
  absl::StatusOr<SocketAddress> address = ParseVerbsAddress(JoinHostPort(port_.address, 0));
  if (!address.ok()) return address.status();
  if (rdma_bind_addr(id, address->get()) != 0 || id->verbs == nullptr) {
    return ErrnoStatus(absl::StrCat("cannot bind ", port_.address, " on ", port_.device), errno);
  }
  absl::StatusOr<std::shared_ptr<VerbsDevice>> opened = VerbsDevice::Of(id->verbs, options);
  if (!opened.ok()) return opened.status();
  nic = *std::move(opened);
  return absl::OkStatus();
}

absl::Status VerbsEndpointImpl::StartListening() {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(events_channel.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  CmIdHandle made(id);
  absl::StatusOr<SocketAddress> address =
      ParseVerbsAddress(JoinHostPort(port_.address, listen_port_));
  if (!address.ok()) return address.status();
  if (rdma_bind_addr(id, address->get()) != 0 || rdma_listen(id, options.backlog) != 0) {
    return ErrnoStatus(absl::StrCat("cannot listen on ", JoinHostPort(port_.address, listen_port_),
                                    " of RDMA device ", device()),
                       errno);
  }
  listen_port_ = be16toh(rdma_get_src_port(id));
  listener = std::move(made);
  return absl::OkStatus();
}

void VerbsEndpointImpl::CloseDevice(const std::string& reason) {
  removed_ = reason;
  std::vector<VerbsConnection*> all;
  for (auto& [id, connection] : connections) all.push_back(connection.get());
  for (VerbsConnection* connection : all) {
    ends.Lose(connection, absl::UnavailableError(reason));
    connection->DropCmId();
  }
  ends.Abandon();
  listener.reset();
  queues.Close();
  memory.Close();
  completion_channel.reset();
  nic.reset();
  anchor.reset();
}

absl::Status VerbsEndpointImpl::NeedDevice() {
  if (nic != nullptr) return absl::OkStatus();
  const int64_t now = clock.NowNanos();
  if (now < next_open_ns_) return absl::UnavailableError(removed_);
  next_open_ns_ = now + kOpenAgainNanos;
  const std::string reason = removed_;
  absl::Status opened = OpenDevice();
  if (opened.ok()) return opened;
  CloseDevice(reason);
  return absl::UnavailableError(absl::StrCat(reason, "; ", opened.message()));
}

ConnectionId VerbsEndpointImpl::Adopt(CmIdHandle cm_id, State state) {
  const auto id = static_cast<ConnectionId>(next_id_++);
  rdma_cm_id* const raw = cm_id.get();
  auto connection = std::make_unique<VerbsConnection>(id, std::move(cm_id));
  connection->state = state;
  raw->context = connection.get();
  connections.emplace(static_cast<uint32_t>(id), std::move(connection));
  look = true;
  return id;
}

absl::StatusOr<std::string> VerbsEndpointImpl::Listen() {
  if (listening_) return absl::FailedPreconditionError("the endpoint is listening already");
  if (absl::Status s = NeedDevice(); !s.ok()) return s;
  listen_port_ = static_cast<uint16_t>(options.port);  // ValidateVerbsOptions() has checked it
  if (absl::Status s = StartListening(); !s.ok()) return s;
  listening_ = true;
  return JoinHostPort(port_.address, listen_port_);
}

absl::Status VerbsEndpointImpl::StartConnection(VerbsConnection* connection,
                                                const ConnectionLimits& limits) {
  const uint32_t entries = VerbsConnection::CompletionEntries(limits);
  absl::StatusOr<CompletionQueue*> queue = queues.WithRoom(entries);
  if (!queue.ok()) return queue.status();
  absl::StatusOr<std::shared_ptr<DomainView>> view = memory.View(limits.domain);
  if (!view.ok()) return view.status();
  return connection->Start(limits, nic.get(), *std::move(view), *queue, inbox, options);
}

absl::StatusOr<ConnectionId> VerbsEndpointImpl::Create(const ConnectionLimits& limits) {
  if (absl::Status s = NeedDevice(); !s.ok()) return s;
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(events_channel.get(), &raw, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus("rdma_create_id", errno);
  }
  CmIdHandle cm_id(raw);
  absl::StatusOr<SocketAddress> local = ParseVerbsAddress(JoinHostPort(port_.address, 0));
  if (!local.ok()) return local.status();
  // Bound now, so that the device is known and memory can be exposed before connecting.
  if (rdma_bind_addr(raw, local->get()) != 0 || raw->verbs != nic->context()) {
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
  const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(options.connect_timeout));
  if (rdma_resolve_addr(connection->cm_id(), nullptr, peer->get(), timeout_ms) != 0) {
    return ErrnoStatus(absl::StrCat("cannot resolve ", address, " on ", device()), errno);
  }
  connection->state = State::kResolving;
  cm.Add(connection);
  look = true;
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
  if (absl::Status s = connection->MakeReady(options); !s.ok()) return s;
  cm.Add(connection);
  if (!connection->binding()) cm.FinishBinding(connection);
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
  cm.Remove(connection);
  if (before == State::kLost) return;
  ends.Retire(connection);
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
  if (last == connection) last = nullptr;
  const auto it = connections.find(static_cast<uint32_t>(id));
  if (!connection->retired()) {
    connection->DropCmId();
    ends.Keep(std::move(it->second));
  }
  connections.erase(it);
  queues.Forget(id);
  events.RemoveIf([id](const ConnectionEvent& event) { return event.connection == id; });
}

DevicePath VerbsEndpointImpl::PathTo(const Device& target) {
  if (absl::Status s = NeedDevice(); !s.ok()) {
    return {DeviceRoute::kStaging, std::string(s.message())};
  }
  return nic->gpu_direct().PathTo(target);
}

absl::StatusOr<RemoteMemory> VerbsEndpointImpl::Expose(ConnectionId id,
                                                       std::shared_ptr<MemoryBlock> block,
                                                       size_t offset, size_t bytes) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  // Binds are limited. A bind takes the device microseconds, so waiting is simpler than queueing.
  // The wait is limited, because a bind behind writes to an unresponsive peer would delay the other
  // lanes too.
  if (connection->binds_full()) queues.WaitForBinds(connection);
  return connection->Expose(std::move(block), offset, bytes);
}

void VerbsEndpointImpl::Unexpose(ConnectionId id, const RemoteMemory& exposed) {
  if (VerbsConnection* connection = Find(id)) connection->Unexpose(exposed);
}

absl::Status VerbsEndpointImpl::PostReceives(ConnectionId id, uint32_t count) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  last = connection;
  return connection->PostReceives(count);
}

absl::Status VerbsEndpointImpl::PostWrite(ConnectionId id, const WriteRequest& request) {
  VerbsConnection* connection = Find(id);
  if (connection == nullptr) return absl::FailedPreconditionError("no such connection");
  last = connection;
  absl::Status status = connection->PostWrite(request);
  if (connection->failing() && connection->state == State::kEstablished) {
    ends.Fail(id);
  }
  return status;
}

size_t VerbsEndpointImpl::PollEvents(absl::Span<ConnectionEvent> out) {
  if (look || cm.busy() || ++turns_ % kTurnsPerLook == 0) {
    look = false;
    if (nic == nullptr) {
      (void)NeedDevice();
    } else {
      const bool read_all = cm.Poll();
      if (!read_all) look = true;
      PollDeviceEvents();
      cm.CheckTimers(read_all);
    }
    ends.RetryStuck();
    memory.LetGo();
  }
  ends.LoseFailing();
  queues.DropBroken();
  size_t n = 0;
  while (n < out.size() && !events.empty()) {
    out[n] = events.pop();
    if (out[n].kind == ConnectionEvent::Kind::kEstablished) {
      if (VerbsConnection* connection = Find(out[n].connection)) {
        connection->reported = true;
        queues.Release(connection);
      }
    }
    ++n;
  }
  return n;
}

void VerbsEndpointImpl::PollDeviceEvents() {
  if (nic == nullptr) return;
  bool fatal = false;
  for (const std::string& text : nic->PollAsync(&fatal)) Log(text);
  uint64_t count = 0;
  (void)!read(wake.get(), &count, sizeof(count));
  std::vector<AsyncInbox::Event> raised;
  {
    const std::lock_guard<std::mutex> lock(inbox->mutex);
    raised.swap(inbox->events);
  }
  for (const auto& [id, queue, type] : raised) {
    if (type == IBV_EVENT_CQ_ERR) {
      queues.OnError(queue);
      continue;
    }
    VerbsConnection* connection = Find(static_cast<ConnectionId>(id));
    if (connection == nullptr || !connection->has_queue_pair()) continue;
    // A completion of the same failure has more details, so those are read first.
    queues.Drain(connection->queue());
    const PathText path = connection->Path();
    connection->Fail(absl::UnavailableError(absl::StrCat(
        ibv_event_type_str(type), " on ", path.local, ", peer ", path.remote,
        type == IBV_EVENT_QP_ACCESS_ERR
            ? "; the peer wrote to memory that is not exposed to this queue pair (any more)"
            : "")));
    ends.Fail(connection->id());
  }
  if (fatal) CloseDevice(absl::StrCat("RDMA device ", device(), " has failed"));
}

void VerbsEndpointImpl::Report(ConnectionEvent::Kind kind, ConnectionId id, absl::Status status,
                               std::string private_data) {
  events.push({kind, id, std::move(private_data), std::move(status)});
}

void VerbsEndpointImpl::AppendDescriptors(std::vector<int>* fds) const {
  if (events_channel != nullptr) fds->push_back(events_channel->fd);
  if (wake.valid()) fds->push_back(wake.get());
  if (completion_channel != nullptr) fds->push_back(completion_channel->fd);
  if (nic != nullptr) fds->push_back(nic->async_fd());
}

bool VerbsEndpointImpl::Arm(SleepUntil) {
  if (!queues.idle() || !events.empty() || ends.failing()) return false;
  queues.Arm();
  ends.LoseFailing();
  return queues.idle() && events.empty();
}

void VerbsEndpointImpl::Disarm() {
  queues.DrainChannel();
  look = true;
}

}  // namespace verbena::rdma
