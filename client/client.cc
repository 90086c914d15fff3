#include "client/client.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core.h"
#include "client/hub.h"
#include "proto/grpc_control_channel.h"
#include "proto/table_spec.h"
#include "rdma/shm/shm_endpoint.h"

namespace verbena {

using client::ClientCore;

namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

// A deadline `timeout` from now, without overflow.
int64_t After(int64_t now, absl::Duration timeout) {
  const int64_t ns = std::max<int64_t>(absl::ToInt64Nanoseconds(timeout), 0);
  return ns > INT64_MAX - now ? INT64_MAX : now + ns;
}

std::string DefaultName() {
  char host[HOST_NAME_MAX + 1] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

absl::Status CheckOptions(const ClientOptions& options) {
  const size_t colon = options.cluster.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == options.cluster.size()) {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::cluster is '", options.cluster,
                                                   "'; allowed: host:port of the coordinator"));
  }
  if (options.transport != "auto" && options.transport != "shm") {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::transport '", options.transport,
                                                   "' is not in this build; allowed: auto, shm"));
  }
  if (options.expected_workers == 0) {
    return absl::InvalidArgumentError("ClientOptions::expected_workers is 0; allowed: 1 or more");
  }
  if (options.rank < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ClientOptions::rank is ", options.rank, "; allowed: -1 (any) or 0 and more"));
  }
  if (options.job.empty()) {
    return absl::InvalidArgumentError("ClientOptions::job is empty; allowed: a name");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::timeout is ",
                                                   absl::FormatDuration(options.timeout),
                                                   "; allowed: more than 0"));
  }
  return absl::OkStatus();
}

// Memory for ticket states, kept for the next one: an operation allocates nothing.
class StatePool {
 public:
  ~StatePool() {
    for (void* p : free_) ::operator delete(p);
  }
  void* Get(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        void* p = free_.back();
        free_.pop_back();
        return p;
      }
    }
    return ::operator new(bytes);
  }
  void Put(void* p) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(p);
  }

 private:
  std::mutex mutex_;
  std::vector<void*> free_;
};

// Hands out blocks of one size: used for allocate_shared of one type only.
template <typename T>
struct PoolAllocator {
  using value_type = T;
  explicit PoolAllocator(std::shared_ptr<StatePool> p) : pool(std::move(p)) {}
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& other) : pool(other.pool) {}  // NOLINT: allocator rebind
  T* allocate(size_t n) { return static_cast<T*>(pool->Get(n * sizeof(T))); }
  void deallocate(T* p, size_t) { pool->Put(p); }
  bool operator==(const PoolAllocator& other) const { return pool == other.pool; }
  std::shared_ptr<StatePool> pool;
};

}  // namespace

// ---- handles ------------------------------------------------------------------------------------

struct Region::State {
  std::shared_ptr<Hub> hub;
  std::shared_ptr<rdma::MemoryBlock> block;
  ~State() { hub->ReleaseBlock(*block); }
};

std::byte* Region::data() const { return state_ == nullptr ? nullptr : state_->block->data(); }
size_t Region::size() const { return state_ == nullptr ? 0 : state_->block->size(); }
MemoryKind Region::kind() const {
  return state_ == nullptr ? MemoryKind::kHost : state_->block->kind();
}
bool Region::allocated() const { return state_ != nullptr && state_->block->allocated(); }

struct Table::State {
  const Hub* hub;
  v1::Table info;
  DenseLayout layout;
};

const std::string& Table::name() const { return state_->info.spec().name(); }
uint32_t Table::id() const { return state_->info.id(); }
const v1::TableSpec& Table::spec() const { return state_->info.spec(); }
uint64_t Table::elements() const { return state_->layout.elements; }
size_t Table::bytes() const { return state_->layout.elements * state_->layout.element_bytes; }
uint32_t Table::chunk_elements() const { return state_->layout.chunk_elements; }

// Guarded by the hub's lock, but for `done`.
struct Ticket::State {
  std::shared_ptr<Hub> hub;
  std::shared_ptr<State> self;  // while the core has its address
  client::OperationId id = 0;
  bool started = false;
  std::atomic<bool> done{false};
  absl::Status status;
  std::function<void(absl::Status)> callback;

  // Under the lock.
  void Finish(absl::Status result) {
    status = std::move(result);
    if (callback) hub->AddCallback(std::move(callback), status);
    callback = nullptr;
    done.store(true, std::memory_order_release);
  }
};

absl::Status Ticket::Wait() { return Wait(absl::InfiniteDuration()); }

absl::Status Ticket::Wait(absl::Duration at_most) {
  if (state_ == nullptr) return absl::FailedPreconditionError("an empty ticket");
  State& s = *state_;
  if (!Done()) {
    s.hub->WaitUntil([&] { return s.done.load(std::memory_order_relaxed); },
                     After(s.hub->Now(), at_most));
  }
  if (Done()) return s.status;
  return absl::DeadlineExceededError(
      absl::StrCat("still running after ", absl::FormatDuration(at_most),
                   "; the operation goes on until its own deadline"));
}

bool Ticket::Done() const {
  return state_ == nullptr || state_->done.load(std::memory_order_acquire);
}

absl::Status Ticket::status() const {
  if (state_ == nullptr) return absl::FailedPreconditionError("an empty ticket");
  if (!Done()) return absl::FailedPreconditionError("the operation is not done yet");
  return state_->status;
}

void Ticket::Cancel() {
  if (Done()) return;
  // The wait for it runs the core, which ends it: at once.
  state_->hub->Run([this](ClientCore& core) { core.Cancel(state_->id); });
  state_->hub->WaitUntil([this] { return Done(); }, state_->hub->Now() + 1'000'000'000);
}

bool Ticket::BufferReleased() const {
  if (state_ == nullptr || !state_->started) return true;
  bool released = true;
  state_->hub->Run([&](ClientCore& core) { released = core.BufferReleased(state_->id); });
  return released;
}

void Ticket::OnDone(std::function<void(absl::Status)> done) {
  if (state_ == nullptr) return done(absl::FailedPreconditionError("an empty ticket"));
  bool later = false;
  state_->hub->Run([&](ClientCore&) {
    if (state_->done.load(std::memory_order_relaxed)) return;
    later = true;
    if (state_->callback == nullptr) {
      state_->callback = std::move(done);
      return;
    }
    state_->callback = [first = std::move(state_->callback),
                        second = std::move(done)](absl::Status status) {
      first(status);
      second(std::move(status));
    };
  });
  if (!later) done(state_->status);
}

// ---- connecting ---------------------------------------------------------------------------------

struct Client::Impl {
  ClientOptions options;
  std::shared_ptr<Hub> hub;
  std::shared_ptr<StatePool> tickets = std::make_shared<StatePool>();

  int64_t Deadline(const std::optional<absl::Duration>& timeout) const {
    return After(hub->Now(), timeout.value_or(options.timeout));
  }
  std::shared_ptr<Ticket::State> NewTicket() {
    auto state = std::allocate_shared<Ticket::State>(PoolAllocator<Ticket::State>(tickets));
    state->hub = hub;
    return state;
  }
  // Starts an operation by `start(core, done)`.
  template <typename F>
  std::shared_ptr<Ticket::State> Launch(F start);
  absl::Status CheckHandles(const Table& table, const Region& region, const char* role) const;
  absl::StatusOr<ClientCore::Slice> SliceOf(const Table& table, const Region& region,
                                            const Range& range, const char* role) const;
  // Runs a control call and waits for its answer.
  template <typename Result, typename F>
  Result Wait(F start);
};

template <typename F>
std::shared_ptr<Ticket::State> Client::Impl::Launch(F start) {
  std::shared_ptr<Ticket::State> state = NewTicket();
  hub->Run([&](ClientCore& core) {
    Ticket::State* raw = state.get();
    // A bare pointer fits std::function without an allocation; `self` keeps it alive.
    absl::StatusOr<client::OperationId> id = start(core, [raw](absl::Status status) {
      const std::shared_ptr<Ticket::State> last = std::move(raw->self);
      raw->Finish(std::move(status));
    });
    if (!id.ok()) return raw->Finish(id.status());
    raw->id = *id;
    raw->started = true;
    raw->self = state;
  });
  return state;
}

template <typename Result, typename F>
Result Client::Impl::Wait(F start) {
  struct Answer {
    bool done = false;
    std::optional<Result> result;
  };
  auto answer = std::make_shared<Answer>();
  hub->Run([&](ClientCore& core) {
    start(core, [answer](Result result) {
      answer->result.emplace(std::move(result));
      answer->done = true;
    });
  });
  hub->WaitUntil([&] { return answer->done; }, INT64_MAX);
  if (answer->result.has_value()) return *std::move(answer->result);
  return Result(absl::FailedPreconditionError("the client is closed"));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() { impl_->hub->Stop(After(impl_->hub->Now(), kLeaveTimeout)); }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  if (absl::Status s = CheckOptions(options); !s.ok()) return s;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (impl->options.name.empty()) impl->options.name = DefaultName();
  impl->hub = std::make_shared<Hub>(options.progress == ClientOptions::Progress::kBackground);
  Hub::Parts parts;
  auto endpoint = rdma::NewShmEndpoint();
  if (!endpoint.ok()) return endpoint.status();
  parts.endpoints.push_back(*std::move(endpoint));
  parts.control = std::make_unique<GrpcControlChannel>();
  client::CoreOptions core;
  core.cluster = options.cluster;
  core.job = options.job;
  core.name = impl->options.name;
  core.expected_workers = options.expected_workers;
  core.rank = options.rank;
  core.observer = options.observer;
  core.staging_bytes = options.staging_bytes;
  std::random_device random;
  core.seed = uint64_t{random()} << 32 | random();
  core.transports.push_back({parts.endpoints[0].get(), rdma::ShmHostIdentity()});
  core.clock = &impl->hub->clock();
  core.control = parts.control.get();
  parts.core = std::make_unique<ClientCore>(std::move(core));
  if (absl::Status s = impl->hub->Start(std::move(parts)); !s.ok()) return s;
  const int64_t deadline = impl->Deadline({});
  auto client = std::unique_ptr<Client>(new Client(std::move(impl)));
  const absl::Status joined = client->impl_->Wait<absl::Status>(
      [&](ClientCore& c, auto done) { c.Join(deadline, std::move(done)); });
  if (!joined.ok()) {
    return absl::Status(joined.code(),
                        absl::StrCat("cannot join job '", options.job, "' of the cluster at ",
                                     options.cluster, ": ", joined.message()));
  }
  return client;
}

// ---- tables and regions -------------------------------------------------------------------------

absl::StatusOr<Table> Client::CreateTable(const v1::TableSpec& spec, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto info = impl_->Wait<absl::StatusOr<v1::Table>>(
      [&](ClientCore& core, auto done) { core.CreateTable(spec, deadline, std::move(done)); });
  if (!info.ok()) return info.status();
  Table table;
  const DenseLayout layout = LayoutOf(info->spec());
  table.state_ =
      std::make_shared<Table::State>(Table::State{impl_->hub.get(), *std::move(info), layout});
  return table;
}

absl::StatusOr<Table> Client::OpenTable(std::string_view name, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto info = impl_->Wait<absl::StatusOr<v1::Table>>([&](ClientCore& core, auto done) {
    core.OpenTable(std::string(name), deadline, std::move(done));
  });
  if (!info.ok()) return info.status();
  Table table;
  const DenseLayout layout = LayoutOf(info->spec());
  table.state_ =
      std::make_shared<Table::State>(Table::State{impl_->hub.get(), *std::move(info), layout});
  return table;
}

absl::StatusOr<std::vector<v1::Table>> Client::ListTables(const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  return impl_->Wait<absl::StatusOr<std::vector<v1::Table>>>(
      [&](ClientCore& core, auto done) { core.ListTables(deadline, std::move(done)); });
}

absl::Status Client::DropTable(std::string_view name, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  return impl_->Wait<absl::Status>([&](ClientCore& core, auto done) {
    core.DropTable(std::string(name), deadline, std::move(done));
  });
}

absl::StatusOr<Region> Client::AllocateRegion(size_t bytes, MemoryKind kind) {
  if (bytes == 0) return absl::InvalidArgumentError("AllocateRegion: 0 bytes");
  auto block = rdma::MemoryBlock::Allocate(bytes, kind, "verbena-region");
  if (!block.ok()) return block.status();
  Region region;
  region.state_ = std::make_shared<Region::State>(impl_->hub, *std::move(block));
  return region;
}

absl::StatusOr<Region> Client::RegisterRegion(void* data, size_t bytes, MemoryKind kind) {
  auto block = rdma::MemoryBlock::Register(data, bytes, kind);
  if (!block.ok()) return block.status();
  Region region;
  region.state_ = std::make_shared<Region::State>(impl_->hub, *std::move(block));
  return region;
}

// ---- data ---------------------------------------------------------------------------------------

absl::StatusOr<ClientCore::Slice> Client::Impl::SliceOf(const Table& table, const Region& region,
                                                        const Range& range,
                                                        const char* role) const {
  if (table.state_ == nullptr) return absl::InvalidArgumentError("the table is empty");
  if (table.state_->hub != hub.get()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", table.name(), "' was opened by another client"));
  }
  if (region.state_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", role, " region is empty, or was destroyed"));
  }
  if (region.state_->hub != hub) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", role, " region belongs to another client"));
  }
  ClientCore::Slice slice;
  slice.block = region.state_->block;
  slice.offset = range.region_offset;
  slice.first = range.first;
  slice.count = range.count;
  if (range.count == UINT64_MAX) {
    // Past the end it stays as it is: the core says what is wrong with it.
    if (range.first < table.elements()) slice.count = table.elements() - range.first;
  }
  return slice;
}

Ticket Client::Push(const Table& table, const Region& gradient, const Range& range,
                    const PushOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, gradient, range, "gradient");
        if (!slice.ok()) return slice.status();
        return core.Push(table.id(), *slice, impl_->Deadline(options.timeout), std::move(done));
      });
  return ticket;
}

Ticket Client::Pull(const Table& table, const Region& destination, const Range& range,
                    const PullOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, destination, range, "destination");
        if (!slice.ok()) return slice.status();
        return core.Pull(table.id(), *slice, options.min_version, impl_->Deadline(options.timeout),
                         std::move(done));
      });
  return ticket;
}

Ticket Client::PushPull(const Table& table, const Region& gradient, const Region& destination,
                        const Range& range, const PushOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch([&](ClientCore& core,
                                    ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
    auto from = impl_->SliceOf(table, gradient, range, "gradient");
    if (!from.ok()) return from.status();
    auto to = impl_->SliceOf(table, destination, range, "destination");
    if (!to.ok()) return to.status();
    return core.PushPull(table.id(), *from, *to, impl_->Deadline(options.timeout), std::move(done));
  });
  return ticket;
}

Ticket Client::EndStep(const Table& table, const PushOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (table.state_ == nullptr) return absl::InvalidArgumentError("the table is empty");
        if (table.state_->hub != impl_->hub.get()) {
          return absl::InvalidArgumentError(
              absl::StrCat("table '", table.name(), "' was opened by another client"));
        }
        return core.EndStep(table.id(), impl_->Deadline(options.timeout), std::move(done));
      });
  return ticket;
}

// ---- what it knows ------------------------------------------------------------------------------

uint64_t Client::incarnation() const {
  uint64_t incarnation = 0;
  impl_->hub->Run([&](ClientCore& core) { incarnation = core.incarnation(); });
  return incarnation;
}

int Client::rank() const {
  int rank = -1;
  impl_->hub->Run([&](ClientCore& core) { rank = core.rank(); });
  return rank;
}

uint32_t Client::live_workers() const {
  uint32_t workers = 0;
  impl_->hub->Run([&](ClientCore& core) {
    for (const v1::Job& job : core.view().jobs()) {
      if (job.name() != impl_->options.job) continue;
      workers = static_cast<uint32_t>(
          std::count_if(job.members().begin(), job.members().end(),
                        [](const v1::Worker& worker) { return worker.rank() >= 0; }));
    }
  });
  return workers;
}

ClientStatistics Client::statistics() const {
  client::CoreStatistics core_statistics;
  impl_->hub->Run([&](ClientCore& core) { core_statistics = core.statistics(); });
  ClientStatistics statistics;
  statistics.bytes_pushed = core_statistics.bytes_pushed;
  statistics.bytes_pulled = core_statistics.bytes_pulled;
  statistics.pushes = core_statistics.pushes;
  statistics.pulls = core_statistics.pulls;
  statistics.records_resent = core_statistics.records_resent;
  statistics.lanes_opened = core_statistics.lanes_opened;
  statistics.lanes_lost = core_statistics.lanes_lost;
  statistics.credit_stalls = core_statistics.credit_stalls;
  statistics.staged_bytes = core_statistics.staged_bytes;
  for (auto& lane : core_statistics.lanes) {
    statistics.lanes.push_back({lane.server, lane.shard, lane.transport, lane.reason, lane.state});
  }
  return statistics;
}

}  // namespace verbena
