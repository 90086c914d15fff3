#include "tests/cluster/sim_cluster.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/sim/sim_endpoint.h"
#include "server/checkpoint/files/manifest.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/dense_table.h"
#include "tests/cluster/sim_dispatch.h"

namespace verbena::test {

std::string RailHost(const std::string& host, uint32_t rail) {
  return rail == 0 ? host : absl::StrCat(host, "/", rail);
}

std::string ProcessOf(const std::string& rail_host) {
  return rail_host.substr(0, rail_host.find('/'));
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
  core.max_workers = options.max_workers;
  core.rank = options.rank;
  core.observer = options.observer;
  core.seed = options.seed;
  if (options.staging_bytes > 0) core.staging_bytes = options.staging_bytes;
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
    ++turns_;
    if (now >= keeper_at_) keeper_at_ = core_->lease_keeper().RunOnce(now);
    inputs_.Touch();
    return false;
  }
  return inputs_.RunIfDue(
      clock_.NowNanos(), [this] { return RunCore(); }, [this] { return core_->NextTimerNanos(); });
}

bool SimWorker::RunCore() {
  ++turns_;
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
      clock_(&network_.clock()),
      control_(options.seed ^ 0x5eed, &network_.clock()),
      coordinator_machine_clock_(&network_.clock(), options.seed * 3001, options.drift_ppm),
      coordinator_clock_(&coordinator_machine_clock_),
      group_random_(options.seed * 43 + 19),
      coordinator_random_(options.seed),
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
  coordinator.changeable_values = shard::ChangeableValues;
  coordinator.state_arrays = checkpoint::StateArrays;
  coordinator.chunk_memory = shard::DenseTable::MemoryOfChunk;
  coordinator.random = [this] { return coordinator_random_(); };
  coordinator_ = Must(server::Coordinator::Create(coordinator, &coordinator_clock_, &store_));
  ServeCoordinator();
}

void SimCluster::ServeCoordinator() {
  control_.Serve(kCoordinatorAddress, [this](const std::string& method, const std::string& bytes,
                                             SimControl::Respond respond) {
    SimControl::Respond after =
        [this, respond = std::move(respond)](absl::StatusOr<std::string> answer) mutable {
          if (answers_lost_) return;
          if (!coordinator_stalled()) return respond(std::move(answer));
          Wait([respond = std::move(respond), answer = std::move(answer)]() mutable {
            respond(std::move(answer));
          });
        };
    if (!coordinator_stalled() && options_.group_calls == 0) {
      HandleCoordinator(method, bytes, std::move(after));
      return ObserveView();
    }
    Wait([this, method, bytes, after = std::move(after)]() mutable {
      HandleCoordinator(method, bytes, std::move(after));
    });
  });
}

void SimCluster::Wait(absl::AnyInvocable<void()> what) {
  // The longest time that earlier calls keep the coordinator busy.
  constexpr int64_t kBusy = 2 * kMilli;
  if (options_.group_calls > 0 && coordinator_waiting_.empty()) {
    group_at_ = now() + std::uniform_int_distribution<int64_t>(0, kBusy)(group_random_);
  }
  coordinator_waiting_.push_back(std::move(what));
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
  if (name == "MovePartitions") return to(&Coordinator::MovePartitions);
  if (name == "DrainServer") return to(&Coordinator::DrainServer);
  if (name == "ResetTable") return to(&Coordinator::ResetTable);
  if (name == "Reconfigure") return to(&Coordinator::Reconfigure);
  if (name == "GetView") return to(&Coordinator::GetView);
  if (name == "AdmitMembers") return to(&Coordinator::AdmitMembers);
  if (name == "ForgetJob") return to(&Coordinator::ForgetJob);
  if (name == "SetJobLimits") return to(&Coordinator::SetJobLimits);
  respond(absl::UnimplementedError(method));
}

void SimCluster::ObserveView() {
  const uint64_t revision = coordinator_->view().revision();
  if (revision == observed_revision_) return;
  observed_revision_ = revision;
  if (options_.view_changed) options_.view_changed();
}

bool SimCluster::RunCoordinator() {
  if (coordinator_stalled()) return false;
  bool worked = coordinator_->RunOnce();
  ObserveView();
  if (options_.group_calls > 0) return RunGroup() || worked;
  // Most turns have none, and an empty deque takes memory, too.
  if (coordinator_waiting_.empty()) return worked;
  for (absl::AnyInvocable<void()>& what : std::exchange(coordinator_waiting_, {})) {
    // A request may be one whose Save() blocks: the rest waits for that.
    if (coordinator_stalled()) {
      coordinator_waiting_.push_back(std::move(what));
    } else {
      what();
      ObserveView();
      worked = true;
    }
  }
  return worked;
}

bool SimCluster::RunGroup() {
  if (coordinator_waiting_.empty() || now() < group_at_) return false;
  const uint64_t revision = coordinator_->view().revision();
  int calls = std::uniform_int_distribution<int>(1, options_.group_calls)(group_random_);
  coordinator_->BeginGroup();
  for (; calls > 0 && !coordinator_waiting_.empty() && !coordinator_stalled(); --calls) {
    absl::AnyInvocable<void()> what = std::move(coordinator_waiting_.front());
    coordinator_waiting_.pop_front();
    what();
  }
  const auto chance = [this](double p) { return std::bernoulli_distribution(p)(group_random_); };
  const bool changed = coordinator_->view().revision() != revision;
  const bool crashes = changed && chance(group_crashes_);
  const bool saves = !crashes || chance(0.5);
  answers_lost_ = crashes;
  if (saves) coordinator_->EndGroup();
  answers_lost_ = false;
  if (crashes) RestartCoordinator();
  ObserveView();
  return true;
}

SimWorker* SimCluster::AddWorker(const std::string& host, const SimWorker::Options& options) {
  workers_.push_back(
      std::make_unique<SimWorker>(host, options, options_.drift_ppm, &network_, &control_));
  SimInputs::CountCall();
  return workers_.back().get();
}

void SimCluster::CrashWorker(SimWorker* worker) {
  for (uint32_t rail = 0; rail < worker->rails(); ++rail) {
    network_.Crash(RailHost(worker->host(), rail));
  }
  workers_.erase(std::find_if(workers_.begin(), workers_.end(),
                              [worker](const auto& w) { return w.get() == worker; }));
  SimInputs::CountCall();
}

void SimCluster::CrashServer(int index) {
  for (uint32_t rail = 0; rail < servers_[index]->rails(); ++rail) {
    network_.Crash(RailHost(servers_[index]->host(), rail));
  }
  servers_[index].reset();
  SimInputs::CountCall();
}

void SimCluster::RestartServer(int index) {
  ClusterOptions options = options_;
  options.seed += 100003 * server_starts_[index]++;
  servers_[index] = std::make_unique<SimServer>(options, index, &network_, &control_);
  SimInputs::CountCall();
}

bool SimCluster::RunProcesses() {
  bool worked = control_.RunOnce();
  worked |= RunCoordinator();
  // Most turns are for a step of a write that no process sees.
  const bool idle = !worked && now() < idle_until_ && SimInputs::calls() == idle_calls_ &&
                    network_.news() == idle_news_;
  SimIdleCheck& check = sim_idle_check();
  if (idle && !check.on) return false;
  const uint64_t calls = SimInputs::calls(), news = network_.news();
  if (RunMembers()) {
    check.did_something += idle ? 1 : 0;
    worked = true;
  }
  idle_until_ = 0;
  if (worked) return true;
  idle_calls_ = calls;
  idle_news_ = news;
  idle_until_ = members_timer_ = NextTimerOfMembers();
  for (const auto& server : servers_) {
    if (server) idle_until_ = std::min(idle_until_, server->NextColdIo());
  }
  return false;
}

bool SimCluster::RunMembers() {
  bool worked = false;
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

int64_t SimCluster::NextTimerOfMembers() const {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const auto& server : servers_) {
    if (server) next = std::min(next, std::max(server->NextTimerNanos(), server->stalled_until()));
    if (server && server->stalled(now())) next = std::min(next, server->stalled_until());
  }
  for (const auto& worker : workers_) {
    const int64_t timer = worker->NextTimerNanos();
    next = std::min(next, std::max(timer, worker->stalled_until()));
    // All parts of the process go on then.
    if (worker->stalled(now())) next = std::min(next, worker->stalled_until());
  }
  return next;
}

int64_t SimCluster::NextTimerNanos() const {
  const int64_t coordinator = coordinator_machine_clock_.ToNetwork(coordinator_->NextTimerNanos());
  int64_t next =
      std::min(control_.NextTimerNanos(), std::max(coordinator, coordinator_stalled_until_));
  if (!coordinator_waiting_.empty()) {
    next = std::min(next, std::max(coordinator_stalled_until_, group_at_));
  }
  return std::min(next, idle_until_ > 0 ? members_timer_ : NextTimerOfMembers());
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
