#include "rdma/ofi/ofi_endpoint.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rdma/base/clock.h"
#include "rdma/base/exposure_pieces.h"
#include "rdma/ofi/ofi_connection.h"
#include "rdma/ofi/ofi_provider.h"

namespace verbena::rdma {
namespace {

// PollEvents() checks the sockets once in this many calls (and always during a handshake and after
// a sleep).
constexpr uint32_t kCallsPerService = 64;
constexpr int kEventsAtOnce = 64;
// Maximum number of connected peers without a hello. A new one ends the oldest of the host with the
// most, so that no host exhausts the descriptors or keeps the others out.
constexpr size_t kMostStrangers = 256;
// Interval for checks without a descriptor (a connection in set-up, libfabric without room for a
// write).
constexpr int64_t kLookAgainNs = 1'000'000;

// Checking a queue costs about a system call. Up to this many queues are all checked. With more,
// only those whose descriptor is ready and those that had work last time are checked. All are
// checked once in kTurnsPerSweep turns, because no descriptor shows data that libfabric has read
// ahead.
constexpr size_t kFewQueues = 8;
constexpr uint32_t kTurnsPerSweep = 64;

// epoll data: connection ids, and these tags above them.
constexpr uint64_t kListenerTag = uint64_t{1} << 32;
constexpr uint64_t kTimerTag = uint64_t{2} << 32;

absl::Status Errno(const char* step) {
  const int error = errno;
  return absl::ResourceExhaustedError(
      absl::StrCat("ofi: ", step, ": ", strerror(error), " (errno ", error, ")"));
}

// The bytes of its address, without the port.
std::string HostOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET6) {
    const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
    return std::string(reinterpret_cast<const char*>(&host), sizeof(host));
  }
  const in_addr& host = reinterpret_cast<const sockaddr_in&>(peer).sin_addr;
  return std::string(reinterpret_cast<const char*>(&host), sizeof(host));
}

absl::Status NoConnection(ConnectionId id) {
  return absl::FailedPreconditionError(
      absl::StrCat("ofi: no connection ", static_cast<uint32_t>(id)));
}

absl::Status Add(int set, int fd, uint64_t tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) return Errno("epoll_ctl");
  return absl::OkStatus();
}

class OfiEndpoint final : public Endpoint {
 public:
  explicit OfiEndpoint(const OfiOptions& options) { shared_.options = options; }
  ~OfiEndpoint() override { connections_.clear(); }  // before the members that they share
  absl::Status Init();

  std::string_view transport() const override { return "ofi"; }
  std::string device() const override {
    return absl::StrCat(shared_.options.provider, " at ", shared_.ip);
  }
  std::string settings() const override { return settings_; }
  ExposurePieces exposure_pieces() const override {
    return {kExposedPieceBytes, kExposedPieceStride};
  }

  absl::StatusOr<std::string> Listen() override;
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override;
  absl::StatusOr<RemoteMemory> Expose(ConnectionId id, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override {
    OfiConnection* connection = Find(id);
    if (connection == nullptr) return NoConnection(id);
    return connection->Expose(std::move(block), offset, bytes);
  }
  void Unexpose(ConnectionId id, const RemoteMemory& memory) override {
    if (OfiConnection* connection = Find(id)) connection->Unexpose(memory);
  }
  absl::Status Connect(ConnectionId id, const std::string& address,
                       std::string_view private_data) override;
  absl::Status Prepare(ConnectionId id, const ConnectionLimits& limits) override;
  absl::Status Accept(ConnectionId id) override;
  void Reject(ConnectionId id, std::string_view reason) override {
    if (OfiConnection* connection = Find(id)) connection->Reject(reason);
    Destroy(id);
  }
  absl::Status PostReceives(ConnectionId id, uint32_t count) override {
    OfiConnection* connection = Find(id);
    return connection == nullptr ? NoConnection(id) : connection->PostReceives(count);
  }
  absl::Status PostWrite(ConnectionId id, const WriteRequest& request) override {
    OfiConnection* connection = Find(id);
    return connection == nullptr ? NoConnection(id) : connection->PostWrite(request);
  }
  size_t Poll(absl::Span<Completion> out) override;
  size_t PollEvents(absl::Span<ConnectionEvent> out) override;
  void Close(ConnectionId id) override {
    if (OfiConnection* connection = Find(id)) connection->Close();
  }
  bool Dead(ConnectionId id) const override {
    const auto it = connections_.find(id);
    return it == connections_.end() || it->second->state() == OfiConnection::State::kEnded;
  }
  void Destroy(ConnectionId id) override;
  void AppendDescriptors(std::vector<int>* fds) const override {
    fds->push_back(shared_.sleepers.get());
  }
  bool Arm(SleepUntil until) override;
  void Disarm() override { service_now_ = true; }

 private:
  OfiConnection* Find(ConnectionId id) {
    if (last_ != nullptr && last_->id() == id) return last_;
    const auto it = connections_.find(id);
    if (it != connections_.end()) last_ = it->second.get();
    return it == connections_.end() ? nullptr : last_;
  }
  OfiConnection* AddConnection();
  absl::StatusOr<std::shared_ptr<OfiDomain>> Domain(uint64_t key);
  void DriveAll();
  void DriveReady();
  void DriveOne(ConnectionId id);
  void Service();
  void AcceptSockets();
  void EndOldestStranger();
  void ServiceHandshakes();
  void SetTimer();
  int64_t Deadline() const {
    return clock_.NowNanos() + absl::ToInt64Nanoseconds(shared_.options.connect_timeout);
  }

  MonotonicClock clock_;
  OfiShared shared_;
  std::map<uint64_t, std::weak_ptr<OfiDomain>> domains_;
  UniqueFd timer_;
  UniqueFd spare_;  // closed to accept and drop a peer when no descriptor is left
  UniqueFd listener_;
  std::string settings_;
  uint32_t next_id_ = 1;
  uint32_t calls_ = 0;
  bool service_now_ = false;
  OfiConnection* last_ = nullptr;  // cache of Find(): traffic comes in bursts
  std::vector<ConnectionId> handshaking_;
  struct Stranger {
    ConnectionId id;
    std::string host;
  };
  std::vector<Stranger> strangers_;     // kIncoming connections of handshaking_; the oldest first
  std::vector<OfiConnection*> driven_;  // those that are active()
  std::vector<ConnectionId> busy_;      // those of driven_ that had work last time
  uint32_t turns_ = 0;
  std::vector<ConnectionId> again_;  // used by DriveReady()
  bool sweep_ = false;               // check all of them next time
  std::vector<fid*> queues_;         // queues of driven_, for Arm()
  absl::flat_hash_map<ConnectionId, std::unique_ptr<OfiConnection>> connections_;
};

absl::Status OfiEndpoint::Init() {
  absl::StatusOr<FabricInfo> info = ChooseProvider(shared_.options);
  if (!info.ok()) return info.status();
  shared_.info = *std::move(info);
  shared_.ip = SourceIp(*shared_.info);
  shared_.virtual_addresses = (shared_.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  // libfabric accepts any address, and fails later when connecting.
  std::string unused;
  if (auto probe = OfiListen(shared_.ip, 0, &unused); !probe.ok()) return probe.status();
  fid_fabric* fabric = nullptr;
  if (const int error = Fabric().fabric(shared_.info->fabric_attr, &fabric, nullptr); error != 0) {
    return FabricError(absl::StatusCode::kUnavailable, "fi_fabric", error);
  }
  shared_.fabric.reset(fabric);
  shared_.sockets = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  shared_.sleepers = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!shared_.sockets.valid() || !shared_.sleepers.valid()) return Errno("epoll_create1");
  timer_ = UniqueFd(timerfd_create(MonotonicClock::kId, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return Errno("timerfd_create");
  spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (absl::Status s = Add(shared_.sockets.get(), timer_.get(), kTimerTag); !s.ok()) return s;
  if (absl::Status s = Add(shared_.sleepers.get(), shared_.sockets.get(), 0); !s.ok()) return s;
  const uint32_t version = Fabric().version();
  settings_ = absl::StrCat("libfabric ", FI_MAJOR(version), ".", FI_MINOR(version), ", provider ",
                           shared_.info->fabric_attr->prov_name, ", local address ", shared_.ip);
  if (shared_.options.log) shared_.options.log(absl::StrCat("ofi: ", settings_));
  return absl::OkStatus();
}

// ---- set-up -------------------------------------------------------------------------------------

absl::StatusOr<std::string> OfiEndpoint::Listen() {
  if (listener_.valid()) return absl::FailedPreconditionError("ofi: already listening");
  std::string address;
  absl::StatusOr<UniqueFd> fd = OfiListen(shared_.ip, shared_.options.port, &address);
  if (!fd.ok()) return fd.status();
  if (absl::Status s = Add(shared_.sockets.get(), fd->get(), kListenerTag); !s.ok()) return s;
  listener_ = std::move(*fd);
  return address;
}

OfiConnection* OfiEndpoint::AddConnection() {
  const ConnectionId id{next_id_++};
  auto& connection = connections_[id];
  connection = std::make_unique<OfiConnection>(&shared_, id);
  return connection.get();
}

absl::StatusOr<std::shared_ptr<OfiDomain>> OfiEndpoint::Domain(uint64_t key) {
  std::weak_ptr<OfiDomain>& known = domains_[key];
  if (std::shared_ptr<OfiDomain> domain = known.lock()) return domain;
  std::erase_if(domains_,
                [&](const auto& one) { return one.first != key && one.second.expired(); });
  fid_domain* made = nullptr;
  const int error = fi_domain(shared_.fabric.get(), shared_.info.get(), &made, nullptr);
  if (error != 0) return FabricError(absl::StatusCode::kResourceExhausted, "fi_domain", error);
  auto domain = std::make_shared<OfiDomain>();
  domain->domain.reset(made);
  domains_[key] = domain;
  return domain;
}

absl::StatusOr<ConnectionId> OfiEndpoint::Create(const ConnectionLimits& limits) {
  absl::StatusOr<std::shared_ptr<OfiDomain>> domain = Domain(limits.domain);
  if (!domain.ok()) return domain.status();
  OfiConnection* connection = AddConnection();
  const ConnectionId id = connection->id();
  if (absl::Status s = connection->Prepare(limits, *std::move(domain)); !s.ok()) {
    Destroy(id);
    return s;
  }
  return id;
}

absl::Status OfiEndpoint::Connect(ConnectionId id, const std::string& address,
                                  std::string_view private_data) {
  OfiConnection* connection = Find(id);
  if (connection == nullptr) return NoConnection(id);
  absl::Status status = connection->Connect(address, private_data, Deadline());
  if (status.ok() && connection->handshaking()) handshaking_.push_back(id);
  return status;
}

absl::Status OfiEndpoint::Prepare(ConnectionId id, const ConnectionLimits& limits) {
  OfiConnection* connection = Find(id);
  if (connection == nullptr || connection->state() != OfiConnection::State::kRequested) {
    return NoConnection(id);
  }
  absl::StatusOr<std::shared_ptr<OfiDomain>> domain = Domain(limits.domain);
  if (!domain.ok()) return domain.status();
  return connection->Prepare(limits, *std::move(domain));
}

absl::Status OfiEndpoint::Accept(ConnectionId id) {
  OfiConnection* connection = Find(id);
  if (connection == nullptr) return NoConnection(id);
  absl::Status status = connection->Accept(Deadline());
  if (!status.ok()) return status;
  handshaking_.push_back(id);
  driven_.push_back(connection);
  return status;
}

void OfiEndpoint::Destroy(ConnectionId id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  it->second->Close();
  if (last_ == it->second.get()) last_ = nullptr;
  std::erase(driven_, it->second.get());
  connections_.erase(it);
  shared_.completions.RemoveIf([id](const Completion& c) { return c.connection == id; });
}

// ---- data path ----------------------------------------------------------------------------------

size_t OfiEndpoint::Poll(absl::Span<Completion> out) {
  if (shared_.completions.empty()) {
    if (driven_.size() <= kFewQueues || sweep_ || ++turns_ >= kTurnsPerSweep) {
      DriveAll();
    } else {
      DriveReady();
    }
  }
  size_t count = 0;
  while (count < out.size() && !shared_.completions.empty()) {
    out[count++] = shared_.completions.pop();
  }
  return count;
}

void OfiEndpoint::DriveReady() {
  again_.swap(busy_);
  busy_.clear();
  epoll_event ready[kEventsAtOnce];
  const int count = epoll_wait(shared_.sleepers.get(), ready, kEventsAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == 0) {
      service_now_ = true;  // the sockets
    } else {
      DriveOne(ConnectionId(static_cast<uint32_t>(ready[i].data.u64)));
    }
  }
  for (const ConnectionId id : again_) {
    if (std::find(busy_.begin(), busy_.end(), id) == busy_.end()) DriveOne(id);
  }
}

void OfiEndpoint::DriveOne(ConnectionId id) {
  OfiConnection* connection = Find(id);
  if (connection == nullptr) return;
  const bool worked = connection->Drive();
  if (!connection->active()) {
    std::erase(driven_, connection);
    return;
  }
  // Required after an empty read, so that its descriptor becomes quiet (fi_trywait(3)).
  fid* queue = connection->queue();
  if (worked || fi_trywait(shared_.fabric.get(), &queue, 1) != FI_SUCCESS) busy_.push_back(id);
}

void OfiEndpoint::DriveAll() {
  turns_ = 0;
  sweep_ = false;
  for (size_t i = 0; i < driven_.size();) {
    driven_[i]->Drive();
    if (driven_[i]->active()) {
      ++i;
    } else {
      driven_[i] = driven_.back();
      driven_.pop_back();
    }
  }
}

// ---- sockets ------------------------------------------------------------------------------------

size_t OfiEndpoint::PollEvents(absl::Span<ConnectionEvent> out) {
  if (service_now_ || !handshaking_.empty() || ++calls_ >= kCallsPerService) Service();
  size_t count = 0;
  while (count < out.size() && !shared_.events.empty()) {
    out[count] = std::move(shared_.events.front());
    shared_.events.pop_front();
    if (out[count].kind == ConnectionEvent::Kind::kEstablished) {
      if (OfiConnection* connection = Find(out[count].connection)) {
        connection->OnEstablishedReported();
      }
    }
    ++count;
  }
  return count;
}

void OfiEndpoint::Service() {
  calls_ = 0;
  epoll_event ready[kEventsAtOnce];
  const int count = epoll_wait(shared_.sockets.get(), ready, kEventsAtOnce, 0);
  service_now_ = count == kEventsAtOnce;
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    if (tag == kListenerTag) {
      AcceptSockets();
    } else if (tag == kTimerTag) {
      uint64_t expirations;
      const ssize_t bytes = read(timer_.get(), &expirations, sizeof(expirations));
      (void)bytes;  // EAGAIN: the timer was set again; the clock is checked anyway
    } else if (OfiConnection* connection = Find(ConnectionId(static_cast<uint32_t>(tag)))) {
      const bool was_active = connection->active();
      connection->OnSocket();
      if (!was_active && connection->active()) driven_.push_back(connection);
    }
  }
  if (!handshaking_.empty()) ServiceHandshakes();
}

void OfiEndpoint::AcceptSockets() {
  for (int i = 0; i < kEventsAtOnce; ++i) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    UniqueFd socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno != EMFILE && errno != ENFILE) return;
      // In the backlog it would keep the listener readable and this thread awake, so accept and
      // drop it.
      spare_.reset();
      socket.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const bool dropped = socket.valid();
      socket.reset();
      spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!dropped) return;
      continue;
    }
    if (strangers_.size() >= kMostStrangers) EndOldestStranger();
    OfiConnection* connection = AddConnection();
    connection->AdoptSocket(std::move(socket), Deadline());
    handshaking_.push_back(connection->id());
    strangers_.push_back({connection->id(), HostOf(peer)});
  }
}

void OfiEndpoint::EndOldestStranger() {
  std::erase_if(strangers_, [&](const Stranger& stranger) {
    const OfiConnection* connection = Find(stranger.id);
    return connection == nullptr || connection->state() != OfiConnection::State::kIncoming;
  });
  std::map<std::string_view, size_t> of_host;
  size_t most = 0;
  for (const Stranger& stranger : strangers_) most = std::max(most, ++of_host[stranger.host]);
  const auto oldest = std::find_if(strangers_.begin(), strangers_.end(),
                                   [&](const Stranger& one) { return of_host[one.host] == most; });
  if (strangers_.size() < kMostStrangers || oldest == strangers_.end()) return;
  Find(oldest->id)->Close();  // ServiceHandshakes() destroys it
  strangers_.erase(oldest);
}

void OfiEndpoint::ServiceHandshakes() {
  const int64_t now = clock_.NowNanos();
  std::erase_if(handshaking_, [&](ConnectionId id) {
    OfiConnection* connection = Find(id);
    if (connection == nullptr) return true;
    connection->OnTime(now);
    if (connection->handshaking()) return false;
    if (connection->discard()) Destroy(id);
    return true;
  });
}

// ---- sleeping -----------------------------------------------------------------------------------

// After it has returned true, the descriptor becomes readable when there is work. libfabric's
// queues guarantee this after fi_trywait(3), the sockets are in the set, and the timer covers the
// rest.
bool OfiEndpoint::Arm(SleepUntil) {
  // The last wake-up must be read, or the descriptor stays readable.
  if (service_now_) Service();
  if (service_now_ || !shared_.completions.empty() || !shared_.events.empty()) return false;
  queues_.clear();
  for (const OfiConnection* connection : driven_) {
    if (connection->active()) queues_.push_back(connection->queue());
  }
  if (!queues_.empty() && fi_trywait(shared_.fabric.get(), queues_.data(),
                                     static_cast<int>(queues_.size())) != FI_SUCCESS) {
    sweep_ = true;
    return false;
  }
  SetTimer();
  return true;
}

void OfiEndpoint::SetTimer() {
  int64_t when = INT64_MAX;
  for (ConnectionId id : handshaking_) {
    if (const OfiConnection* connection = Find(id)) {
      when = std::min(when, connection->deadline_ns());
    }
  }
  for (const OfiConnection* connection : driven_) {
    if (connection->waiting()) when = std::min(when, clock_.NowNanos() + kLookAgainNs);
  }
  if (when == INT64_MAX) return;
  when = std::max<int64_t>(when, 1);  // 0 would disarm it
  itimerspec timer = {};
  timer.it_value.tv_sec = when / 1'000'000'000;
  timer.it_value.tv_nsec = when % 1'000'000'000;
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> NewOfiEndpoint(const OfiOptions& options) {
  auto endpoint = std::make_unique<OfiEndpoint>(options);
  if (absl::Status status = endpoint->Init(); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

}  // namespace verbena::rdma
