#include "tests/cluster/sim_cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/sim/sim_endpoint.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/dense_table.h"

namespace verbena::test {
namespace {

// Parses, calls, serialises: what the gRPC services do in a real process.
template <typename Request, typename Response, typename F>
void Dispatch(const std::string& bytes, SimControl::Respond respond, F call) {
  Request request;
  if (!request.ParseFromString(bytes)) {
    respond(absl::InvalidArgumentError("request does not parse"));
    return;
  }
  call(request, [respond = std::move(respond)](absl::StatusOr<Response> response) mutable {
    if (response.ok()) {
      respond(response->SerializeAsString());
    } else {
      respond(response.status());
    }
  });
}

// Set-up of a test that cannot go on without it.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "simulator set-up: %s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

std::string RailHost(const std::string& host, uint32_t rail) {
  return rail == 0 ? host : absl::StrCat(host, "/", rail);
}

std::string ProcessOf(const std::string& rail_host) {
  return rail_host.substr(0, rail_host.find('/'));
}

SimServer::SimServer(const ClusterOptions& options, int index, rdma::SimNetwork* network,
                     SimControl* control)
    : host_(absl::StrCat("server-", index)),
      address_(absl::StrCat(host_, ":1")),
      network_clock_(&network->clock()),
      clock_(&network->clock(), options.seed * 1009 + static_cast<uint64_t>(index),
             options.drift_ppm),
      control_(control),
      channel_(control->NewChannel(host_)),
      rails_(options.rails),
      cold_io_ns_(options.cold_io_ns),
      file_io_ns_(options.file_io_ns),
      save_begun_(options.save_begun),
      restore_begun_(options.restore_begun),
      files_(static_cast<size_t>(options.shards)) {
  for (int s = 0; s < options.shards; ++s) AddShard(options, index, s, network);
  inputs_.Watch(channel_.get());
  server::MembershipOptions membership;
  membership.coordinator = kCoordinatorAddress;
  membership.name = host_;
  membership.address = address_;
  membership.shards = options.shards;
  membership.seed = options.seed * 77 + index + 1;
  membership_ = std::make_unique<server::Membership>(
      membership, &clock_, channel_.get(),
      [this](uint64_t incarnation, std::shared_ptr<const v1::ClusterView> view) {
        for (auto& shard : shards_) {
          shard->SetIncarnation(incarnation);
          shard->ApplyView(view);
        }
        for (SimInputs& inputs : shard_inputs_) inputs.Touch();
      });
  control_->Serve(address_, [this](const std::string& method, const std::string& request,
                                   SimControl::Respond respond) {
    if (!stalled(network_clock_->NowNanos())) return Handle(method, request, std::move(respond));
    waiting_.push_back([this, method, request, respond = std::move(respond)]() mutable {
      Handle(method, request, std::move(respond));
    });
  });
}

void SimServer::Resume(int64_t ns) {
  if (rdma::planted_bugs().clock_stops_in_suspend) clock_.Lose(ns);
}

void SimServer::Leave(int64_t timeout_ns) {
  membership_->Leave(absl::Nanoseconds(timeout_ns), [](const absl::Status&) {});
  inputs_.Touch();
}

SimServer::~SimServer() { control_->Stop(address_); }

void SimServer::AddShard(const ClusterOptions& options, int index, int shard,
                         rdma::SimNetwork* network) {
  server::ShardExecutorOptions executor;
  executor.shard = shard;
  executor.seed = options.seed * 1000 + index * 10 + shard + 1;
  executor.lane.small_slots = options.small_slots;
  executor.lane.large_slots = options.large_slots;
  executor.lane.large_slot_bytes = 4096 + kSimChunkBytes;
  executor.lane.operations = options.operations;
  executor.replica_log = options.replica_log;
  executor.audit = options.audit;
  executor.commit_observer = options.commit_observer;
  executor.disk = options.disk;
  if (file_io_ns_) {
    executor.file_io = [this, shard](server::Inbox::Closure what) {
      std::deque<FileWork>& files = files_[static_cast<size_t>(shard)];
      const int64_t after = files.empty() ? clock_.NowNanos() : files.back().at;
      files.push_back({std::max(after, clock_.NowNanos()) + file_io_ns_(), std::move(what)});
    };
  }
  if (options.cold_io_ns > 0) {
    cold_.push_back(std::make_unique<shard::FakeColdStore>(static_cast<uint32_t>(executor.seed)));
    executor.cold_store = cold_.back().get();
  }
  executor.log = options.log;
  executor.wall_seconds = [clock = &network->clock()] {
    return static_cast<uint32_t>(clock->NowNanos() / 1'000'000'000);
  };
  SimInputs& inputs = shard_inputs_.emplace_back();
  std::vector<server::ShardExecutor::Transport> transports;
  for (uint32_t rail = 0; rail < rails_; ++rail) {
    transports.push_back({network->NewEndpoint(RailHost(host_, rail)), "sim", rail});
    inputs.Watch(transports.back().endpoint.get());
  }
  std::unique_ptr<SimChannel> channel = control_->NewChannel(host_);
  inputs.Watch(channel.get());
  shards_.push_back(Must(
      server::ShardExecutor::Create(executor, &clock_, std::move(transports), std::move(channel))));
  shards_.back()->SetCoordinator(kCoordinatorAddress);
}

void SimServer::Handle(const std::string& method, const std::string& bytes,
                       SimControl::Respond respond) {
  for (SimInputs& inputs : shard_inputs_) inputs.Touch();
  if (method == "/verbena.v1.Shard/OpenLane") {
    Dispatch<v1::OpenLaneRequest, v1::OpenLaneResponse>(
        bytes, std::move(respond), [this](const v1::OpenLaneRequest& request, auto reply) {
          if (request.shard() >= shards_.size()) {
            reply(absl::InvalidArgumentError(absl::StrCat("no shard ", request.shard())));
            return;
          }
          reply(shards_[request.shard()]->OpenLane(request));
        });
  } else if (method == "/verbena.v1.Shard/CloseLane") {
    Dispatch<v1::CloseLaneRequest, v1::CloseLaneResponse>(
        bytes, std::move(respond), [this](const v1::CloseLaneRequest& request, auto reply) {
          absl::Status status = request.shard() < shards_.size()
                                    ? shards_[request.shard()]->CloseLane(request)
                                    : absl::InvalidArgumentError("no such shard");
          if (status.ok()) {
            reply(v1::CloseLaneResponse());
          } else {
            reply(status);
          }
        });
  } else if (method == "/verbena.v1.Shard/BeginSave") {
    Dispatch<v1::BeginSaveRequest, v1::BeginSaveResponse>(
        bytes, std::move(respond), [this](const v1::BeginSaveRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          auto begun = shard->BeginSave(request);
          const bool writes = begun.ok() && !request.only_look() && !begun->too_late();
          if (writes && save_begun_) save_begun_(request, *shard->engine());
          reply(std::move(begun));
        });
  } else if (method == "/verbena.v1.Shard/WaitSave") {
    Dispatch<v1::WaitSaveRequest, v1::WaitSaveResponse>(
        bytes, std::move(respond), [this](const v1::WaitSaveRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          shard->WaitSave(request, std::move(reply));
        });
  } else if (method == "/verbena.v1.Shard/BeginRestore") {
    Dispatch<v1::BeginRestoreRequest, v1::BeginRestoreResponse>(
        bytes, std::move(respond), [this](const v1::BeginRestoreRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          if (restore_begun_) restore_begun_(request);
          const absl::Status status = shard->BeginRestore(request);
          if (!status.ok()) return reply(status);
          reply(v1::BeginRestoreResponse());
        });
  } else if (method == "/verbena.v1.Shard/WaitRestore") {
    Dispatch<v1::WaitRestoreRequest, v1::WaitRestoreResponse>(
        bytes, std::move(respond), [this](const v1::WaitRestoreRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          shard->WaitRestore(request, std::move(reply));
        });
  } else if (method == "/verbena.v1.Shard/EndSave") {
    Dispatch<v1::EndSaveRequest, v1::EndSaveResponse>(
        bytes, std::move(respond), [this](const v1::EndSaveRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          const absl::Status status = shard->EndSave(request);
          if (!status.ok()) return reply(status);
          reply(v1::EndSaveResponse());
        });
  } else {
    respond(absl::UnimplementedError(method));
  }
}

server::ShardExecutor* SimServer::FindShard(uint32_t shard) {
  return shard < shards_.size() ? shards_[shard].get() : nullptr;
}

void SimServer::SetColdFull(bool full) {
  for (auto& store : cold_) store->full = full;
}

bool SimServer::RunFiles(int64_t now) {
  bool worked = false;
  for (size_t s = 0; s < files_.size(); ++s) {
    std::deque<FileWork>& files = files_[s];
    while (!files.empty() && files.front().at <= now) {
      server::Inbox::Closure what = std::move(files.front().what);
      files.pop_front();
      what();
      shard_inputs_[s].Touch();
      worked = true;
    }
  }
  return worked;
}

bool SimServer::RunOnce() {
  const int64_t now = clock_.NowNanos();
  for (auto& call : std::exchange(waiting_, {})) call();
  const bool cold_is_due = now >= cold_at_;
  if (cold_is_due) cold_at_ = now + cold_io_ns_;
  for (size_t s = 0; s < cold_.size(); ++s) {
    cold_[s]->stopped = !cold_is_due;
    if (cold_is_due && !cold_[s]->idle()) shard_inputs_[s].Touch();
  }
  bool worked = RunFiles(now);
  if (inputs_.Due(now)) {
    worked = channel_->RunOnce();
    worked |= membership_->RunOnce();
    worked ? inputs_.Touch() : inputs_.Idle(membership_->NextTimerNanos());
  }
  for (size_t s = 0; s < shards_.size(); ++s) worked |= RunShard(s, now);
  return worked;
}

bool SimServer::RunShard(size_t index, int64_t now) {
  SimInputs& inputs = shard_inputs_[index];
  if (!inputs.Due(now)) return false;
  const bool worked = shards_[index]->RunOnce();
  worked ? inputs.Touch() : inputs.Idle(shards_[index]->NextTimerNanos());
  return worked;
}

int64_t SimServer::NextTimerNanos() const {
  int64_t next = inputs_.NextTimerNanos();
  for (const auto& store : cold_) {
    if (!store->idle()) next = std::min(next, cold_at_);
  }
  for (const auto& files : files_) {
    if (!files.empty()) next = std::min(next, files.front().at);
  }
  for (const SimInputs& inputs : shard_inputs_) next = std::min(next, inputs.NextTimerNanos());
  return clock_.ToNetwork(next);
}

SimWorker::SimWorker(const std::string& host, const Options& options, int drift_ppm,
                     rdma::SimNetwork* network, SimControl* control)
    : host_(host),
      network_clock_(&network->clock()),
      clock_(&network->clock(), options.seed * 2003, drift_ppm),
      channel_(control->NewChannel(host)) {
  client::CoreOptions core;
  core.cluster = kCoordinatorAddress;
  core.job = options.job;
  core.name = host;
  core.expected_workers = options.expected_workers;
  core.rank = options.rank;
  core.observer = options.observer;
  core.seed = options.seed;
  for (uint32_t rail = 0; rail < options.rails; ++rail) {
    endpoints_.push_back(network->NewEndpoint(RailHost(host, rail)));
    inputs_.Watch(endpoints_.back().get());
    core.transports.push_back({endpoints_.back().get(), "sim", rail});
  }
  inputs_.Watch(channel_.get());
  core.clock = &clock_;
  core.control = channel_.get();
  core_ = std::make_unique<client::ClientCore>(std::move(core));
}

bool SimWorker::Woken() {
  const int64_t timer = core_->NextTimerNanos();
  if (timer <= clock_.NowNanos() || timer < sleeps_until_ || channel_->RunOnce()) return true;
  return std::any_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) {
    return static_cast<const rdma::SimEndpoint&>(*endpoint).woken();
  });
}

bool SimWorker::slept_through() const {
  return asleep_ && std::any_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) {
           return static_cast<const rdma::SimEndpoint&>(*endpoint).slept_through();
         });
}

bool SimWorker::RunOnce() {
  if (held(network_clock_->NowNanos())) {
    const int64_t now = clock_.NowNanos();
    if (now >= keeper_at_) keeper_at_ = core_->lease_keeper().RunOnce(now);
    inputs_.Touch();
    return false;
  }
  if (!inputs_.Due(clock_.NowNanos())) return false;
  const bool worked = RunCore();
  worked ? inputs_.Touch() : inputs_.Idle(core_->NextTimerNanos());
  return worked;
}

bool SimWorker::RunCore() {
  if (asleep_) {
    if (!Woken()) return false;
    asleep_ = false;
    core_->Disarm();
  }
  if (core_->RunOnce()) return true;
  if (sleeps_) {
    asleep_ = core_->Arm();
    sleeps_until_ = core_->NextTimerNanos();
  }
  return false;
}

int64_t SimWorker::NextTimerNanos() const {
  if (!held(network_clock_->NowNanos())) return clock_.ToNetwork(inputs_.NextTimerNanos());
  return std::min(held_until_, clock_.ToNetwork(keeper_at_));
}

SimCluster::SimCluster(const ClusterOptions& options)
    : options_(options),
      network_(options.seed, options.network),
      control_(options.seed ^ 0x5eed, &network_.clock()),
      coordinator_machine_clock_(&network_.clock(), options.seed * 3001, options.drift_ppm),
      coordinator_clock_(&coordinator_machine_clock_),
      store_([this](int64_t ns) {
        const int64_t until = coordinator_clock_.NowNanos() + ns;
        coordinator_clock_.BlockUntil(until);
        StallCoordinatorUntil(coordinator_machine_clock_.ToNetwork(until));
      }) {
  control_.set_faults(options.control);
  RestartCoordinator();
  for (int i = 0; i < options.servers; ++i) {
    server_starts_.push_back(0);
    servers_.push_back(nullptr);
    RestartServer(i);
  }
}

SimCluster::~SimCluster() {
  workers_.clear();
  servers_.clear();
}

void SimCluster::StallCoordinatorUntil(int64_t ns) {
  coordinator_stalled_until_ = std::max(coordinator_stalled_until_, ns);
}

void SimCluster::RestartCoordinator() {
  coordinator_.reset();
  coordinator_waiting_.clear();
  coordinator_stalled_until_ = 0;
  store_.set_faults({});
  server::CoordinatorOptions coordinator;
  coordinator.partitions = kSimPartitions;
  coordinator.lease_ms = options_.lease_ms;
  coordinator.expected_servers = options_.servers;
  coordinator.replicas = options_.replicas;
  coordinator.min_replicas = options_.min_replicas;
  coordinator.terms_listed = options_.terms_listed;
  coordinator.check_optimizer = shard::CheckTableOptimizer;
  coordinator.chunk_memory = shard::DenseTable::MemoryOfChunk;
  coordinator_ = Must(server::Coordinator::Create(coordinator, &coordinator_clock_, &store_));
  ServeCoordinator();
}

void SimCluster::ServeCoordinator() {
  control_.Serve(kCoordinatorAddress, [this](const std::string& method, const std::string& bytes,
                                             SimControl::Respond respond) {
    SimControl::Respond after =
        [this, respond = std::move(respond)](absl::StatusOr<std::string> answer) mutable {
          if (!coordinator_stalled()) return respond(std::move(answer));
          coordinator_waiting_.push_back(
              [respond = std::move(respond), answer = std::move(answer)]() mutable {
                respond(std::move(answer));
              });
        };
    if (!coordinator_stalled()) return HandleCoordinator(method, bytes, std::move(after));
    coordinator_waiting_.push_back([this, method, bytes, after = std::move(after)]() mutable {
      HandleCoordinator(method, bytes, std::move(after));
    });
  });
}

void SimCluster::HandleCoordinator(const std::string& method, const std::string& bytes,
                                   SimControl::Respond respond) {
  server::Coordinator& c = *coordinator_;
  const std::string name = method.substr(method.rfind('/') + 1);
  const auto to = [&]<typename Request, typename Response>(void (server::Coordinator::*handler)(
                      const Request&, server::Coordinator::Reply<Response>)) {
    Dispatch<Request, Response>(bytes, std::move(respond),
                                [&c, handler](const Request& request, auto reply) {
                                  (c.*handler)(request, std::move(reply));
                                });
  };
  using server::Coordinator;
  if (name == "JoinServer") return to(&Coordinator::JoinServer);
  if (name == "JoinWorker") return to(&Coordinator::JoinWorker);
  if (name == "Heartbeat") return to(&Coordinator::Heartbeat);
  if (name == "Leave") return to(&Coordinator::Leave);
  if (name == "CreateTable") return to(&Coordinator::CreateTable);
  if (name == "FinishRestore") return to(&Coordinator::FinishRestore);
  if (name == "RenewRestore") return to(&Coordinator::RenewRestore);
  if (name == "DropTable") return to(&Coordinator::DropTable);
  if (name == "RemoveServer") return to(&Coordinator::RemoveServer);
  if (name == "ResetTable") return to(&Coordinator::ResetTable);
  if (name == "Reconfigure") return to(&Coordinator::Reconfigure);
  if (name == "GetView") return to(&Coordinator::GetView);
  if (name == "SetJobLimits") return to(&Coordinator::SetJobLimits);
  respond(absl::UnimplementedError(method));
}

bool SimCluster::RunCoordinator() {
  if (coordinator_stalled()) return false;
  bool worked = coordinator_->RunOnce();
  std::vector<absl::AnyInvocable<void()>> waiting = std::move(coordinator_waiting_);
  coordinator_waiting_.clear();
  for (absl::AnyInvocable<void()>& what : waiting) {
    // A request may be one whose Save() blocks: the rest waits for that.
    if (coordinator_stalled()) {
      coordinator_waiting_.push_back(std::move(what));
    } else {
      what();
      worked = true;
    }
  }
  return worked;
}

SimWorker* SimCluster::AddWorker(const std::string& host, const SimWorker::Options& options) {
  workers_.push_back(
      std::make_unique<SimWorker>(host, options, options_.drift_ppm, &network_, &control_));
  return workers_.back().get();
}

void SimCluster::CrashWorker(SimWorker* worker) {
  for (uint32_t rail = 0; rail < worker->rails(); ++rail) {
    network_.Crash(RailHost(worker->host(), rail));
  }
  workers_.erase(std::find_if(workers_.begin(), workers_.end(),
                              [worker](const auto& w) { return w.get() == worker; }));
}

void SimCluster::CrashServer(int index) {
  for (uint32_t rail = 0; rail < servers_[index]->rails(); ++rail) {
    network_.Crash(RailHost(servers_[index]->host(), rail));
  }
  servers_[index].reset();
}

void SimCluster::RestartServer(int index) {
  ClusterOptions options = options_;
  options.seed += 100003 * server_starts_[index]++;
  servers_[index] = std::make_unique<SimServer>(options, index, &network_, &control_);
}

bool SimCluster::RunProcesses() {
  bool worked = control_.RunOnce();
  worked |= RunCoordinator();
  for (auto& server : servers_) {
    if (!server || server->stalled(now()) || !server->RunOnce()) continue;
    worked = true;
    if (server->pace() > 0) server->StallUntil(now() + server->pace());
  }
  for (auto& worker : workers_) {
    if (!worker->stalled(now())) worked |= worker->RunOnce();
  }
  return worked;
}

int64_t SimCluster::NextTimerNanos() const {
  const int64_t coordinator = coordinator_machine_clock_.ToNetwork(coordinator_->NextTimerNanos());
  int64_t next =
      std::min(control_.NextTimerNanos(), std::max(coordinator, coordinator_stalled_until_));
  if (!coordinator_waiting_.empty()) next = std::min(next, coordinator_stalled_until_);
  for (const auto& server : servers_) {
    if (server) next = std::min(next, std::max(server->NextTimerNanos(), server->stalled_until()));
    if (server && server->stalled(now())) next = std::min(next, server->stalled_until());
  }
  for (const auto& worker : workers_) {
    const int64_t timer = worker->NextTimerNanos();
    next = std::min(next, std::max(timer, worker->stalled_until()));
    // What runs in the process goes on then, too.
    if (worker->stalled(now())) next = std::min(next, worker->stalled_until());
  }
  return next;
}

bool SimCluster::RunUntil(const std::function<bool()>& done, int64_t limit_ns) {
  // A state machine that always claims to have worked would keep time from moving.
  constexpr int kTurnsWithoutTime = 100'000;
  int turns = 0;
  while (true) {
    if (done()) return true;
    if (now() >= limit_ns) return false;
    if (RunProcesses() && ++turns < kTurnsWithoutTime) continue;
    turns = 0;
    const int64_t next = std::max(NextTimerNanos(), now() + 1);
    network_.Advance(std::min(next, limit_ns));
  }
}

}  // namespace verbena::test
