#include "server/node.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/control/grpc_control_channel.h"
#include "proto/security/grpc_credentials.h"
#include "proto/security/tls_files.h"
#include "server/access/budget.h"
#include "server/access/gate.h"
#include "server/access/grpc_log.h"
#include "server/access/peer_log.h"
#include "server/checkpoint/files/disk.h"
#include "server/cli/options.h"
#include "server/cold/cold_directory.h"
#include "server/cold/rocks_store.h"
#include "server/control/address.h"
#include "server/control/cluster_service.h"
#include "server/control/grpc_server.h"
#include "server/control/membership_task.h"
#include "server/control/shard_service.h"
#include "server/executor/inbox_task.h"
#include "server/memory_limit.h"
#include "server/metrics/http_server.h"
#include "server/metrics/metrics.h"
#include "server/nanoseconds.h"
#include "server/node_access.h"
#include "server/node_coordinator.h"
#include "server/node_limits.h"
#include "server/node_transports.h"

namespace verbena::server {
namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
constexpr absl::Duration kScrapeTimeout = absl::Seconds(1);

// The HOST:PORT that peers connect to.
absl::StatusOr<std::string> AdvertisedAddress(const NodeOptions& options,
                                              const std::string& listening) {
  absl::StatusOr<HostAndPort> bound = SplitHostPort(listening);
  if (!bound.ok()) return bound.status();
  if (!options.advertise.empty()) {
    absl::StatusOr<HostAndPort> given = SplitHostPort(options.advertise);
    return given.ok() ? JoinHostPort(given->host, given->port)
                      : JoinHostPort(WithoutBrackets(options.advertise), bound->port);
  }
  if (!IsWildcard(bound->host)) return listening;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return listening;
  return JoinHostPort(name, bound->port);
}

}  // namespace

struct VerbenaNode::Impl {
  explicit Impl(const NodeOptions& o) : options(o) {}
  ~Impl() { SetHandshakeAudit(nullptr); }

  absl::Status OpenAccess();
  absl::Status OpenCoordinator();
  absl::Status CreateShards();
  // A cold store for a shard, which posts to its inbox.
  absl::Status OpenCold(uint32_t shard, ShardExecutorOptions* options_of_shard);
  absl::Status StartControl();
  absl::Status StartShards();
  absl::Status StartMembership();
  absl::Status StartCoordinatorTasks();
  absl::Status OpenOutputs();
  absl::Status ServeMetrics();
  void OnView(uint64_t incarnation, const std::shared_ptr<const v1::ClusterView>& view);
  void Leave();
  absl::Status Stop();
  NodeMetrics Gather();
  absl::Status Health() const;

  const NodeOptions options;
  const MemoryLimit memory_limit = options.memory_limit == 0
                                       ? DefaultMemoryLimit()
                                       : MemoryLimit{options.memory_limit, "--memory-limit"};
  const MonotonicClock clock;
  bool stopped = false;
  bool calls_remain = false;                    // after Stop(): nothing may be destroyed
  std::shared_ptr<MemoryBudget> memory_budget;  // null without shards
  std::shared_ptr<TlsFiles> tls;                // null: without TLS
  NodeTokens tokens;
  std::unique_ptr<AuditLog> audit;
  AccessState access;
  std::string address;
  std::string metrics_address;

  std::unique_ptr<NodeCoordinator> coordinator;  // null: without that role
  InboxTask files;  // of checkpoints; made before the shards, which hand it their pieces
  std::unique_ptr<Driver> files_driver;
  std::optional<ColdDirectory> cold_directory;
  std::vector<std::unique_ptr<RocksStore>> cold;  // by shard; of engines, so made before them
  ShardSet set;
  std::unique_ptr<ClusterService> cluster_service;
  std::unique_ptr<ShardService> shard_service;
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<MembershipTask> membership;
  std::unique_ptr<Driver> membership_driver;
  std::unique_ptr<HttpServer> http;
};

absl::Status VerbenaNode::Impl::OpenAccess() {
  absl::StatusOr<std::shared_ptr<TlsFiles>> files_of_tls = OpenNodeTls(options);
  if (!files_of_tls.ok()) return files_of_tls.status();
  tls = *std::move(files_of_tls);
  absl::StatusOr<std::unique_ptr<AuditLog>> log = OpenNodeAudit(options);
  if (!log.ok()) return log.status();
  audit = *std::move(log);
  SetHandshakeAudit(audit.get());
  absl::StatusOr<NodeTokens> opened = OpenNodeTokens(options);
  if (!opened.ok()) return opened.status();
  tokens = *std::move(opened);
  return absl::OkStatus();
}

absl::Status VerbenaNode::Impl::OpenCoordinator() {
  if (!options.coordinator) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<NodeCoordinator>> opened =
      NodeCoordinator::Open(options, &clock, tokens);
  if (!opened.ok()) return opened.status();
  coordinator = *std::move(opened);
  return absl::OkStatus();
}

absl::Status VerbenaNode::Impl::OpenCold(uint32_t shard, ShardExecutorOptions* options_of_shard) {
  if (!cold_directory.has_value()) return absl::OkStatus();
  RocksStoreOptions store;
  store.directory = cold_directory->OfShard(shard);
  store.name = absl::StrCat("vb-cold-", shard);
  store.log = Bounded([shard](const std::string& text) {  // a disk that fails again and again
    spdlog::warn("shard {}: {}", shard, text);
  });
  absl::StatusOr<std::unique_ptr<RocksStore>> opened = RocksStore::Open(store);
  if (!opened.ok()) return opened.status();
  cold.push_back(*std::move(opened));
  options_of_shard->cold_store = cold.back().get();
  return absl::OkStatus();
}

absl::Status VerbenaNode::Impl::CreateShards() {
  if (options.shards == 0) return absl::OkStatus();
  if (!options.cold_dir.empty()) {
    absl::StatusOr<ColdDirectory> opened = ColdDirectory::Open(options.cold_dir);
    if (!opened.ok()) return opened.status();
    cold_directory.emplace(*std::move(opened));
  }
  const uint64_t limit = memory_limit.bytes;
  memory_budget = std::make_shared<MemoryBudget>(limit);
  const auto job_memories = std::make_shared<JobMemories>();
  // Once a process life.
  spdlog::info("memory limit: {} MiB ({})", limit >> 20, memory_limit.source);
  const std::vector<int> processors = AllowedProcessors();
  if (options.pin) WarnOfPinning(options.shards, processors.size());
  absl::Duration spin = absl::ZeroDuration();
  // On a single processor a spin keeps its own peer from running. (Being bound to one of several is
  // another matter: the peer may run on the others.)
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
    spin = options.spin_us < 0 ? MeasureWakeUpCost() : absl::Microseconds(options.spin_us);
  }
  for (uint32_t i = 0; i < options.shards; ++i) {
    DriverOptions driver{.name = absl::StrCat("vb-shard-", i), .spin = spin};
    if (options.pin && !processors.empty()) driver.cpu = processors[i % processors.size()];
    absl::StatusOr<rdma::Transports> made = MakeShardTransports(options, i, driver.cpu);
    if (!made.ok()) return made.status();
    ShardExecutorOptions shard;
    shard.shard = i;
    shard.lane = options.lane;
    shard.lane_memory_limit = options.lane_memory_limit;
    shard.replica_log = options.replica_log;
    if (options.replica_audit_ms > 0) {
      shard.audit.interval_ns = options.replica_audit_ms * kNanosPerMilli;
    }
    shard.memory_budget = memory_budget;
    shard.job_memories = job_memories;
    // Peers come and go as they like, and the end of each lane is logged.
    shard.log = Bounded([i](const std::string& text) { spdlog::info("shard {}: {}", i, text); });
    shard.disk = checkpoint::PosixDisk();
    shard.file_io = [this](Inbox::Closure closure) { files.inbox().Post(std::move(closure)); };
    shard.missing = std::move(made->missing);
    shard.optional_transports = options.transports.transport == "auto";
    if (absl::Status opened = OpenCold(i, &shard); !opened.ok()) return opened;
    absl::StatusOr<std::unique_ptr<ShardExecutor>> executor =
        ShardExecutor::Create(shard, &clock, std::move(made->made),
                              std::make_unique<GrpcControlChannel>(tls, tokens.own));
    if (!executor.ok()) return executor.status();
    if (!cold.empty()) {
      cold.back()->SetWake([inbox = &(*executor)->inbox()] { inbox->Post([] {}); });
    }
    ShardHandle handle;
    handle.machine = std::make_unique<ShardTask>(*std::move(executor));
    handle.driver = std::make_unique<Driver>(driver, &clock, handle.machine.get());
    set.shards.push_back(std::move(handle));
  }
  return absl::OkStatus();
}

absl::Status VerbenaNode::Impl::StartControl() {
  std::vector<ControlService*> services;
  if (coordinator != nullptr) {
    cluster_service = std::make_unique<ClusterService>(coordinator->task(), audit.get(),
                                                       coordinator->failing_checkpoints());
    services.push_back(cluster_service.get());
  }
  if (!set.shards.empty()) {
    shard_service = std::make_unique<ShardService>(&set, &access, audit.get());
    services.push_back(shard_service.get());
  }
  const bool mutual = !options.tls.ca.empty() && options.tls_require_client_cert;
  absl::StatusOr<std::unique_ptr<GrpcServer>> started = GrpcServer::Start(
      options.listen,
      tls == nullptr ? grpc::InsecureServerCredentials() : MakeServerCredentials(tls, mutual),
      ControlMemory(memory_limit.bytes), services);
  if (!started.ok()) return started.status();
  grpc = *std::move(started);
  absl::StatusOr<std::string> advertised = AdvertisedAddress(options, grpc->address());
  if (!advertised.ok()) return advertised.status();
  address = *std::move(advertised);
  if (tls == nullptr) return absl::OkStatus();
  // Once a process life.
  spdlog::info(
      "TLS: {}; certificate valid until {}",
      mutual ? "peers must show a certificate" : "peers need no certificate",
      absl::FormatTime("%Y-%m-%d %H:%M UTC", tls->Current()->expires, absl::UTCTimeZone()));
  // Workers reach a server with shards by no other name; a coordinator may have several.
  if (set.shards.empty()) return absl::OkStatus();
  absl::StatusOr<HostAndPort> reached = SplitHostPort(address);
  if (!reached.ok()) return reached.status();
  return CheckCertificateName(*tls->Current(), reached->host);
}

absl::Status VerbenaNode::Impl::StartShards() {
  files_driver = std::make_unique<Driver>(DriverOptions{.name = "vb-files"}, &clock, &files);
  if (absl::Status status = files_driver->Start(); !status.ok()) return status;
  if (coordinator != nullptr) {
    if (absl::Status status = coordinator->Start(address); !status.ok()) return status;
  }
  for (const std::unique_ptr<RocksStore>& store : cold) {
    if (absl::Status status = store->Start(); !status.ok()) return status;
  }
  for (ShardHandle& shard : set.shards) {
    if (absl::Status status = shard.driver->Start(); !status.ok()) return status;
    if (const absl::Status& bound = shard.driver->binding(); !bound.ok()) {
      // Once a shard, at the start.
      spdlog::warn("--pin: {}", std::string(bound.message()));
    }
  }
  return absl::OkStatus();
}

void VerbenaNode::Impl::OnView(uint64_t incarnation,
                               const std::shared_ptr<const v1::ClusterView>& view) {
  // Before the shards: their requests by the new view are authorized by its rules.
  access.Update(view, membership->membership().access());
  set.incarnation.store(incarnation, std::memory_order_release);
  const std::shared_ptr<const ViewChangeList> changes = membership->membership().changes();
  for (ShardHandle& shard : set.shards) {
    ShardExecutor* executor = &shard.machine->executor();
    executor->inbox().Post([executor, incarnation, view, changes] {
      executor->SetIncarnation(incarnation);
      executor->ApplyView(view, *changes);
    });
  }
  grpc->SetServing(true);
}

absl::Status VerbenaNode::Impl::StartMembership() {
  if (set.shards.empty()) {
    grpc->SetServing(true);
    return absl::OkStatus();
  }
  MembershipOptions member;
  member.version = kVersion;
  // A coordinator that is the only one connects to itself at its listening address, whatever its
  // advertised address.
  // With TLS it uses the advertised address, for which its certificate is valid.
  const std::string& self = tls == nullptr ? grpc->address() : address;
  member.coordinator = options.join.empty() ? self : options.join;
  member.name = options.name;
  member.address = address;
  member.shards = options.shards;
  member.zone = options.zone;
  member.cold_tier = !options.cold_dir.empty();
  member.memory_bytes = memory_limit.bytes;
  for (ShardHandle& shard : set.shards) {
    ShardExecutor* executor = &shard.machine->executor();
    executor->inbox().Post(
        [executor, address_of = member.coordinator] { executor->SetCoordinator(address_of); });
  }
  membership = std::make_unique<MembershipTask>(
      member, &clock, tls, tokens.own,
      [this](uint64_t incarnation, std::shared_ptr<const v1::ClusterView> view) {
        OnView(incarnation, view);
      });
  membership_driver =
      std::make_unique<Driver>(DriverOptions{.name = "vb-member"}, &clock, membership.get());
  return membership_driver->Start();
}

absl::Status VerbenaNode::Impl::StartCoordinatorTasks() {
  if (coordinator == nullptr) return absl::OkStatus();
  return coordinator->StartTasks(tls == nullptr ? grpc->address() : address, tls, tokens);
}

// Before this process is a member: a taken port or an unusable directory must not make it join and
// leave again.
absl::Status VerbenaNode::Impl::OpenOutputs() {
  if (!options.checkpoint_dir.empty()) {
    // Now, and not with the first checkpoint that is due.
    const absl::Status made = checkpoint::PosixDisk()->MakeDirectory(options.checkpoint_dir);
    if (!made.ok()) return made;
  }
  if (options.metrics.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<HttpServer>> listening = HttpServer::Listen(options.metrics);
  if (!listening.ok()) return listening.status();
  http = *std::move(listening);
  metrics_address = http->address();
  return absl::OkStatus();
}

absl::Status VerbenaNode::Impl::ServeMetrics() {
  if (http == nullptr) return absl::OkStatus();
  return http->Serve([this] { return RenderMetrics(Gather()); }, [this] { return Health(); });
}

NodeMetrics VerbenaNode::Impl::Gather() {
  NodeMetrics metrics;
  metrics.name = options.name;
  metrics.version = kVersion;
  metrics.incarnation = set.incarnation.load(std::memory_order_acquire);
  if (membership != nullptr) metrics.joined = Health().ok();
  metrics.memory = rdma::GetMemoryStatistics();
  metrics.log_lines_left_out = PeerLog::left_out();
  metrics.audit_lines_left_out = audit->left_out();
  metrics.exceeded = ExceededBudgets();
  metrics.control_connections = grpc->connections();
  if (memory_budget != nullptr) {
    metrics.memory_limit = memory_budget->limit();
    metrics.memory_reserved = memory_budget->reserved();
  }
  std::future<CoordinatorMetrics> asked;
  if (coordinator != nullptr) asked = coordinator->AskMetrics();
  Snapshots snapshots = WaitForSnapshots(set, kScrapeTimeout);
  for (size_t i = 0; i < snapshots.size(); ++i) {
    const Driver& driver = *set.shards[i].driver;
    metrics.shards.push_back({std::move(snapshots[i]), driver.cpu_seconds(),
                              driver.counters().sleeps.load(std::memory_order_relaxed),
                              driver.counters().spins.load(std::memory_order_relaxed),
                              driver.counters().fruitless_spins.load(std::memory_order_relaxed)});
  }
  if (coordinator != nullptr) {
    coordinator->AddMetrics(std::move(asked), kScrapeTimeout, &metrics);
  }
  return metrics;
}

absl::Status VerbenaNode::Impl::Health() const {
  if (coordinator != nullptr) {
    if (absl::Status status = coordinator->status(); !status.ok()) return status;
  }
  if (membership == nullptr) return absl::OkStatus();
  return membership->state().status;
}

void VerbenaNode::Impl::Leave() {
  if (membership == nullptr) return;
  auto left = std::make_shared<std::promise<void>>();
  std::future<void> future = left->get_future();
  membership->inbox().Post([this, left] {
    membership->membership().Leave(kLeaveTimeout, [left](absl::Status) { left->set_value(); });
  });
  future.wait_for(std::chrono::milliseconds(absl::ToInt64Milliseconds(kLeaveTimeout) + 200));
  membership_driver->Stop();
}

absl::Status VerbenaNode::Impl::Stop() {
  if (std::exchange(stopped, true)) return absl::OkStatus();
  http.reset();
  bool saved_all = true;
  if (coordinator != nullptr) {
    coordinator->StopRebalancing();
    saved_all = coordinator->FinishCheckpoints();
  }
  if (grpc != nullptr) grpc->SetServing(false);
  Leave();
  for (ShardHandle& shard : set.shards) shard.driver->Stop();
  // They post to the shards' inboxes.
  for (const std::unique_ptr<RocksStore>& store : cold) store->Stop();
  // Nothing of a shard's memory is read any more.
  if (files_driver != nullptr) files_driver->Stop();
  if (coordinator != nullptr) coordinator->Retire();
  // The threads are gone, so their inboxes are this thread's: calls that were on their way in must
  // be answered for gRPC to end.
  if (grpc != nullptr) {
    const absl::Status ended = grpc->Stop([this] {
      if (coordinator != nullptr) coordinator->task()->Drain();
      for (ShardHandle& shard : set.shards) shard.machine->executor().Drain();
    });
    if (!ended.ok()) {
      calls_remain = true;
      audit->Flush();
      return ended;
    }
  }
  set.shards.clear();
  cold.clear();
  cold_directory.reset();
  return saved_all ? absl::OkStatus()
                   : absl::DeadlineExceededError(
                         "stopped without the checkpoints that --checkpoint-on-exit asks for");
}

VerbenaNode::VerbenaNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VerbenaNode::~VerbenaNode() {
  (void)impl_->Stop();
  if (impl_->calls_remain) (void)impl_.release();
}

absl::StatusOr<std::unique_ptr<VerbenaNode>> VerbenaNode::Start(const NodeOptions& options) {
  if (absl::Status s = CheckLimits(options); !s.ok()) return s;
  std::unique_ptr<VerbenaNode> node(new VerbenaNode(std::make_unique<Impl>(options)));
  Impl& impl = *node->impl_;
  for (const auto step :
       {&Impl::OpenAccess, &Impl::OpenOutputs, &Impl::OpenCoordinator, &Impl::CreateShards,
        &Impl::StartControl, &Impl::StartShards, &Impl::StartMembership,
        &Impl::StartCoordinatorTasks, &Impl::ServeMetrics}) {
    if (absl::Status status = (impl.*step)(); !status.ok()) return status;
  }
  return node;
}

absl::Status VerbenaNode::Stop() { return impl_->Stop(); }
const std::string& VerbenaNode::address() const { return impl_->address; }
const std::string& VerbenaNode::metrics_address() const { return impl_->metrics_address; }
uint64_t VerbenaNode::incarnation() const {
  return impl_->set.incarnation.load(std::memory_order_acquire);
}
absl::Status VerbenaNode::health() const { return impl_->Health(); }

absl::Status VerbenaNode::fatal() const {
  if (impl_->membership == nullptr) return absl::OkStatus();
  const MembershipTask::State state = impl_->membership->state();
  return state.ended ? state.status : absl::OkStatus();
}

}  // namespace verbena::server
