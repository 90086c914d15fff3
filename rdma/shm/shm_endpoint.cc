#include "rdma/shm/shm_endpoint.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rdma/base/clock.h"
#include "rdma/shm/shm_connection.h"

namespace verbena::rdma {
namespace {

// PollEvents() looks at the sockets once in so many calls (always during a handshake and after a
// sleep): an epoll_wait costs some 200 ns, so 3 ns a call.
constexpr uint32_t kCallsPerService = 64;
// Of a connection in one Poll(): what a quiet one has to wait behind for each busy one.
constexpr size_t kReceivesAtOnce = 2;
constexpr int kEventsAtOnce = 64;
// With one more the oldest of those that have sent no hello gives way: nobody can use up our
// descriptors, nor keep out others by being silent.
constexpr size_t kMaxHandshakes = 256;
constexpr int64_t kRetryNs = 1'000'000;
constexpr int64_t kStarvedRetryNs = 10'000'000;  // 100 wake-ups a second, for a kernel out of room

// epoll data: connection ids, and above them these, and kWakeTag.
constexpr uint64_t kListenerTag = uint64_t{1} << 32;
constexpr uint64_t kTimerTag = uint64_t{2} << 32;

absl::Status NoConnection(ConnectionId id) {
  return absl::FailedPreconditionError(
      absl::StrCat("shm: no connection ", static_cast<uint32_t>(id)));
}

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(const ShmOptions& options) : options_(options) {}
  ~ShmEndpoint() override { connections_.clear(); }  // before what they share
  absl::Status Init();

  std::string_view transport() const override { return "shm"; }
  absl::StatusOr<std::string> Listen() override;
  absl::StatusOr<ConnectionId> Create(const ConnectionLimits& limits) override;
  absl::StatusOr<RemoteMemory> Expose(ConnectionId id, std::shared_ptr<MemoryBlock> block,
                                      size_t offset, size_t bytes) override {
    ShmConnection* connection = Find(id);
    if (connection == nullptr) return NoConnection(id);
    return connection->Expose(std::move(block), offset, bytes);
  }
  void Unexpose(ConnectionId id, const RemoteMemory& memory) override {
    if (ShmConnection* connection = Find(id)) connection->Unexpose(memory);
  }
  absl::Status Connect(ConnectionId id, const std::string& address,
                       std::string_view private_data) override;
  absl::Status Prepare(ConnectionId id, const ConnectionLimits& limits) override {
    ShmConnection* connection = Find(id);
    if (connection == nullptr || connection->state() != ShmConnection::State::kRequested) {
      return NoConnection(id);
    }
    return connection->Prepare(limits);
  }
  absl::Status Accept(ConnectionId id) override {
    ShmConnection* connection = Find(id);
    return connection == nullptr ? NoConnection(id) : connection->Accept();
  }
  void Reject(ConnectionId id, std::string_view reason) override {
    if (ShmConnection* connection = Find(id)) connection->Reject(reason);
    Destroy(id);
  }
  absl::Status PostReceives(ConnectionId id, uint32_t count) override {
    ShmConnection* connection = Find(id);
    return connection == nullptr ? NoConnection(id) : connection->PostReceives(count);
  }
  absl::Status PostWrite(ConnectionId id, const WriteRequest& request) override {
    ShmConnection* connection = Find(id);
    return connection == nullptr ? NoConnection(id) : connection->PostWrite(request);
  }
  bool CanBorrow() const override { return true; }
  absl::StatusOr<Borrowed> Borrow(ConnectionId id, const RemoteMemory& memory,
                                  size_t bytes) override {
    ShmConnection* connection = Find(id);
    if (connection == nullptr) return NoConnection(id);
    return connection->Borrow(memory, bytes);
  }
  void WakePeer(ConnectionId id, Wakes wakes) override {
    if (ShmConnection* connection = Find(id)) connection->WakePeer(wakes);
  }
  size_t Poll(absl::Span<Completion> out) override;
  size_t PollEvents(absl::Span<ConnectionEvent> out) override;
  void Close(ConnectionId id) override {
    if (ShmConnection* connection = Find(id)) connection->Close();
  }
  bool Dead(ConnectionId id) const override {
    const auto it = connections_.find(id);
    return it == connections_.end() || it->second->dead();
  }
  void Destroy(ConnectionId id) override;
  void AppendDescriptors(std::vector<int>* fds) const override {
    fds->push_back(shared_.epoll.get());
  }
  bool Arm(SleepUntil until) override;
  bool WakeOnAnything() override;
  void Disarm() override;

 private:
  ShmConnection* Find(ConnectionId id) {
    const auto it = connections_.find(id);
    return it == connections_.end() ? nullptr : it->second.get();
  }
  ShmConnection* Add();
  ShmState* state() { return reinterpret_cast<ShmState*>(shared_.state->data()); }
  void Service();
  void AcceptSockets();
  void ServiceHandshakes();
  // Of those that connect to us; false: there is none.
  bool EndOldestStranger();
  void ServiceLingering();
  void ServiceStarved();
  void SetTimer();
  bool HasWork() const;

  ShmOptions options_;
  MonotonicClock clock_;
  ShmShared shared_;
  UniqueFd timer_;
  UniqueFd spare_;  // given up to accept, and drop, a peer when no descriptor is left
  UniqueFd listener_;
  uint32_t next_id_ = 1;
  uint32_t calls_ = 0;
  bool service_now_ = false;
  size_t first_slot_ = 0;  // where Poll() starts: every connection gets to be first
  std::vector<ConnectionId> handshaking_;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<ShmConnection>> connections_;
};

absl::Status ShmEndpoint::Init() {
  shared_.epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!shared_.epoll.valid()) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, "epoll_create1");
  }
  auto state =
      OwnedPages::Create(sizeof(ShmState), OwnedPages::PeerMay::kRead, "verbena-shm-state");
  if (!state.ok()) return state.status();
  shared_.state = std::move(*state);
  timer_ = UniqueFd(timerfd_create(MonotonicClock::kId, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return ShmErrno(absl::StatusCode::kResourceExhausted, "timerfd_create");
  spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kTimerTag;
  if (epoll_ctl(shared_.epoll.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, "epoll_ctl");
  }
  return absl::OkStatus();
}

// ---- set-up
// ---------------------------------------------------------------------------------------

absl::StatusOr<std::string> ShmEndpoint::Listen() {
  if (listener_.valid()) return absl::FailedPreconditionError("shm: already listening");
  std::string address;
  absl::StatusOr<UniqueFd> fd = ShmListen(&address);
  if (!fd.ok()) return fd.status();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListenerTag;
  if (epoll_ctl(shared_.epoll.get(), EPOLL_CTL_ADD, fd->get(), &event) != 0) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, "epoll_ctl");
  }
  listener_ = std::move(*fd);
  return address;
}

ShmConnection* ShmEndpoint::Add() {
  const ConnectionId id{next_id_++};
  auto& connection = connections_[id];
  connection = std::make_unique<ShmConnection>(&shared_, id);
  return connection.get();
}

absl::StatusOr<ConnectionId> ShmEndpoint::Create(const ConnectionLimits& limits) {
  ShmConnection* connection = Add();
  if (absl::Status status = connection->Prepare(limits); !status.ok()) {
    connections_.erase(connection->id());
    return status;
  }
  return connection->id();
}

absl::Status ShmEndpoint::Connect(ConnectionId id, const std::string& address,
                                  std::string_view private_data) {
  ShmConnection* connection = Find(id);
  if (connection == nullptr) return NoConnection(id);
  const int64_t deadline = clock_.NowNanos() + absl::ToInt64Nanoseconds(options_.connect_timeout);
  absl::Status status = connection->Connect(address, private_data, deadline);
  if (status.ok() && connection->handshaking()) handshaking_.push_back(id);
  return status;
}

void ShmEndpoint::Destroy(ConnectionId id) {
  if (connections_.erase(id) == 0) return;
  shared_.completions.RemoveIf([id](const Completion& c) { return c.connection == id; });
}

// ---- data path
// ------------------------------------------------------------------------------------

size_t ShmEndpoint::Poll(absl::Span<Completion> out) {
  size_t count = 0;
  while (count < out.size() && !shared_.completions.empty()) {
    out[count] = shared_.completions.pop();
    if (out[count].kind == Completion::Kind::kSend) Find(out[count].connection)->OnSendReported();
    ++count;
  }
  const std::vector<ShmPollSlot>& slots = shared_.poll_slots;
  const size_t size = slots.size();
  if (first_slot_ >= size) first_slot_ = 0;
  for (size_t i = 0; i < size && count < out.size(); ++i) {
    size_t index = first_slot_ + i;
    if (index >= size) index -= size;
    const ShmPollSlot& slot = slots[index];
    // Relaxed: only whether to look; TakeReceives() loads it again with acquire.
    const uint64_t entry = slot.next->load(std::memory_order_relaxed);
    if (EntrySequence(entry) != slot.expected) continue;
    count += slot.connection->TakeReceives(out.subspan(count, kReceivesAtOnce));
    if (slots.size() != size) break;  // it ended: the slots have moved
  }
  ++first_slot_;
  return count;
}

// ---- sockets
// --------------------------------------------------------------------------------------

size_t ShmEndpoint::PollEvents(absl::Span<ConnectionEvent> out) {
  if (service_now_ || !handshaking_.empty() || ++calls_ >= kCallsPerService) Service();
  if (!shared_.lingering.empty()) ServiceLingering();
  size_t count = 0;
  while (count < out.size() && !shared_.events.empty()) {
    out[count] = std::move(shared_.events.front());
    shared_.events.pop_front();
    if (out[count].kind == ConnectionEvent::Kind::kEstablished) {
      if (ShmConnection* connection = Find(out[count].connection)) {
        connection->OnEstablishedReported();
      }
    }
    ++count;
  }
  return count;
}

void ShmEndpoint::Service() {
  calls_ = 0;
  epoll_event ready[kEventsAtOnce];
  const int count = epoll_wait(shared_.epoll.get(), ready, kEventsAtOnce, 0);
  service_now_ = count == kEventsAtOnce;
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = ready[i].data.u64;
    if (tag == kListenerTag) {
      AcceptSockets();
    } else if (tag == kTimerTag) {
      uint64_t expirations;
      const ssize_t bytes = read(timer_.get(), &expirations, sizeof(expirations));
      (void)bytes;  // EAGAIN: set again since; ServiceHandshakes() looks at the clock anyway
    } else if (tag != kWakeTag) {
      ShmConnection* const connection = Find(ConnectionId(static_cast<uint32_t>(tag)));
      if (connection == nullptr) continue;
      if ((ready[i].events & EPOLLOUT) != 0) connection->SendWaiting();
      if ((ready[i].events & ~EPOLLOUT) != 0) connection->OnReadable();
    }
  }
  if (!shared_.starved.empty()) ServiceStarved();
  if (!handshaking_.empty()) ServiceHandshakes();
}

void ShmEndpoint::AcceptSockets() {
  for (int i = 0; i < kEventsAtOnce; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno != EMFILE && errno != ENFILE) return;
      // Left in the backlog it would keep the listener readable and us awake: accept and drop it.
      spare_.reset();
      socket.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const bool dropped = socket.valid();
      socket.reset();
      spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!dropped) return;
      continue;
    }
    if (handshaking_.size() >= kMaxHandshakes && !EndOldestStranger()) continue;  // closes it
    ShmConnection* connection = Add();
    connection->AdoptSocket(std::move(socket),
                            clock_.NowNanos() + absl::ToInt64Nanoseconds(options_.connect_timeout));
    handshaking_.push_back(connection->id());
  }
}

bool ShmEndpoint::EndOldestStranger() {
  const auto oldest =
      std::find_if(handshaking_.begin(), handshaking_.end(), [this](ConnectionId id) {
        const ShmConnection* connection = Find(id);
        return connection == nullptr || connection->state() == ShmConnection::State::kIncoming;
      });
  if (oldest == handshaking_.end()) return false;
  if (ShmConnection* connection = Find(*oldest)) {
    connection->GiveWay();
    if (connection->discard()) connections_.erase(*oldest);
  }
  handshaking_.erase(oldest);
  return true;
}

void ShmEndpoint::ServiceHandshakes() {
  const int64_t now = clock_.NowNanos();
  std::erase_if(handshaking_, [&](ConnectionId id) {
    ShmConnection* connection = Find(id);
    if (connection == nullptr) return true;
    connection->OnTime(now);
    if (connection->handshaking()) return false;
    if (connection->discard()) connections_.erase(id);
    return true;
  });
}

void ShmEndpoint::ServiceLingering() {
  std::erase_if(shared_.lingering, [&](ConnectionId id) {
    ShmConnection* connection = Find(id);
    return connection == nullptr || connection->Linger();
  });
}

void ShmEndpoint::ServiceStarved() {
  std::vector<ConnectionId> still;
  std::swap(still, shared_.starved);
  std::erase_if(still, [&](ConnectionId id) {
    ShmConnection* connection = Find(id);
    return connection == nullptr || connection->SendWaiting();
  });
  shared_.starved.insert(shared_.starved.end(), still.begin(), still.end());
}

// ---- sleeping
// -------------------------------------------------------------------------------------

bool ShmEndpoint::HasWork() const {
  if (!shared_.completions.empty() || !shared_.events.empty()) return true;
  for (const ShmPollSlot& slot : shared_.poll_slots) {
    // seq_cst: with the store in Arm(), see PostWrite().
    const uint64_t entry = slot.next->load(std::memory_order_seq_cst);
    if (EntrySequence(entry) == slot.expected) return true;
  }
  return false;
}

bool ShmEndpoint::Arm(SleepUntil until) {
  // What woke us last time has to be read, or the descriptor stays readable.
  if (service_now_) Service();
  if (!shared_.lingering.empty()) ServiceLingering();
  // seq_cst: a peer that writes an entry after our recheck below sees this and writes its eventfd.
  state()->sleeping.store(
      until == SleepUntil::kLastAnswer ? kSleepsUntilLastAnswer : kSleepsUntilAnything,
      std::memory_order_seq_cst);
  if (service_now_ || HasWork()) {
    state()->sleeping.store(kAwake,
                            std::memory_order_relaxed);  // late is harmless: a wake-up too many
    return false;
  }
  if (!handshaking_.empty() || !shared_.starved.empty()) SetTimer();
  return true;
}

bool ShmEndpoint::WakeOnAnything() {
  // Relaxed: this thread alone writes it.
  if (state()->sleeping.load(std::memory_order_relaxed) != kSleepsUntilLastAnswer) return true;
  // seq_cst, for two orders. (1) Before the ring entry of any request that this side posts later: a
  // peer that has read that entry (acquire) sees this store when it answers, and writes its
  // eventfd. (2) Against an answer that is being written now, as in Arm(): either the peer's load
  // in Wake() sees this store, or HasWork() sees the peer's entry.
  state()->sleeping.store(kSleepsUntilAnything, std::memory_order_seq_cst);
  return !HasWork();
}

void ShmEndpoint::Disarm() {
  state()->sleeping.store(kAwake,
                          std::memory_order_relaxed);  // late is harmless: a wake-up too many
  service_now_ = true;
}

void ShmEndpoint::SetTimer() {
  int64_t when = shared_.starved.empty() ? INT64_MAX : clock_.NowNanos() + kStarvedRetryNs;
  for (ConnectionId id : handshaking_) {
    const ShmConnection* connection = Find(id);
    if (connection == nullptr) continue;
    when = std::min(
        when, connection->retrying() ? clock_.NowNanos() + kRetryNs : connection->deadline_ns());
  }
  if (when == INT64_MAX) return;
  when = std::max<int64_t>(when, 1);  // 0 would disarm it
  itimerspec timer = {};
  timer.it_value.tv_sec = when / 1'000'000'000;
  timer.it_value.tv_nsec = when % 1'000'000'000;
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> NewShmEndpoint(const ShmOptions& options) {
  auto endpoint = std::make_unique<ShmEndpoint>(options);
  if (absl::Status status = endpoint->Init(); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

std::string ShmHostIdentity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char net[64] = {};
  if (readlink("/proc/self/ns/net", net, sizeof(net) - 1) < 0) net[0] = '\0';
  return absl::StrCat(boot_id, "/", net);
}

}  // namespace verbena::rdma
