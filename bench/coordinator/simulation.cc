#include "bench/coordinator/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

constexpr char kCoordinator[] = "coordinator:1";
constexpr int64_t kMicro = 1000, kMilli = 1'000'000, kSecond = 1'000'000'000;
// A chunk of each table for about every partition.
constexpr uint32_t kChunkBytes = 4096;

double Ms(int64_t ns) { return static_cast<double>(ns) / kMilli; }

rdma::SimFaults NetworkOf(const SimulationOptions& options) {
  rdma::SimFaults faults;
  faults.min_delay_ns = int64_t{options.latency_us} * kMicro / 2;
  faults.max_delay_ns = int64_t{options.latency_us} * kMicro * 3 / 2;
  faults.max_pieces = 1;
  return faults;
}

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      network_(options.seed, NetworkOf(options)),
      control_(options.seed ^ 0xc0117401, &network_.clock(), int64_t{options.latency_us} * kMicro),
      coordinator_(kCoordinator, options.seed + 1, &options_.costs, &network_.clock(), &control_) {}

server::CoordinatorOptions Simulation::CoordinatorSettings() const {
  server::CoordinatorOptions settings;
  settings.cluster_id = "simulated";
  settings.partitions = static_cast<uint32_t>(options_.partitions);
  // Dead ones do not come back.
  const auto dead = std::count(servers_.begin(), servers_.end(), nullptr);
  settings.expected_servers = static_cast<uint32_t>(options_.servers - dead);
  settings.replicas = 2;
  settings.lease_ms = options_.lease_ms;
  return settings;
}

// ---- time ---------------------------------------------------------------------------------------

bool Simulation::RunMember(VirtualMember* member) {
  if (!measuring_ || !member->replies_pending()) return member->RunIfDue(now());
  const MonotonicClock clock;
  const uint64_t before = member->revision();
  const int64_t began = clock.NowNanos();
  const bool worked = member->RunIfDue(now());
  if (before != 0 && member->revision() != before) {
    member_us_.Add(static_cast<double>(clock.NowNanos() - began) / kMicro);
  }
  return worked;
}

bool Simulation::RunOnce() {
  bool worked = control_.RunOnce();
  worked |= coordinator_.RunOnce();
  for (const auto& server : servers_) {
    if (server != nullptr) worked |= RunMember(server.get());
  }
  for (const auto& worker : workers_) worked |= RunMember(worker.get());
  return worked;
}

int64_t Simulation::NextTimerNanos() const {
  int64_t next = std::min(control_.NextTimerNanos(), coordinator_.NextTimerNanos());
  for (const auto& server : servers_) {
    if (server != nullptr) next = std::min(next, server->NextTimerNanos());
  }
  for (const auto& worker : workers_) next = std::min(next, worker->NextTimerNanos());
  return next;
}

absl::Status Simulation::CheckMembers() const {
  for (const auto& server : servers_) {
    if (server == nullptr || server->status().ok()) continue;
    return absl::InternalError(
        absl::StrCat("simulated ", server->name(), " has ended: ", server->status().ToString()));
  }
  for (const auto& worker : workers_) {
    if (worker->status().ok()) continue;
    return absl::InternalError(
        absl::StrCat("a simulated worker has ended: ", worker->status().ToString()));
  }
  return absl::OkStatus();
}

absl::Status Simulation::RunUntil(const char* what, const std::function<bool()>& done,
                                  int64_t limit_s) {
  const int64_t limit = now() + limit_s * kSecond;
  while (!done()) {
    if (now() >= limit) {
      const absl::Status members = CheckMembers();
      if (!members.ok()) return members;
      return absl::DeadlineExceededError(
          absl::StrCat("after ", limit_s, " s of virtual time not yet: ", what));
    }
    if (RunOnce()) continue;
    network_.Advance(std::min(std::max(NextTimerNanos(), now() + 1), limit));
  }
  return CheckMembers();
}

// ---- states -------------------------------------------------------------------------------------

bool Simulation::AllHave(uint64_t revision) const {
  const auto has = [revision](const auto& member) {
    return member == nullptr || member->revision() >= revision;
  };
  return std::all_of(servers_.begin(), servers_.end(), has) &&
         std::all_of(workers_.begin(), workers_.end(), has);
}

bool Simulation::Complete() const {
  std::set<uint64_t> alive;
  for (const auto& server : servers_) {
    if (server != nullptr) alive.insert(server->incarnation());
  }
  return std::all_of(coordinator_.view().partitions().begin(),
                     coordinator_.view().partitions().end(), [&](const v1::Partition& p) {
                       return alive.contains(p.primary()) && p.followers_size() == 1 &&
                              alive.contains(p.followers(0).server());
                     });
}

bool Simulation::Replaced(const std::set<uint64_t>& dead) const {
  const auto is_dead = [&](const v1::Replica& r) { return dead.contains(r.server()); };
  return std::none_of(coordinator_.view().partitions().begin(),
                      coordinator_.view().partitions().end(), [&](const v1::Partition& p) {
                        return dead.contains(p.primary()) ||
                               std::any_of(p.followers().begin(), p.followers().end(), is_dead) ||
                               std::any_of(p.learners().begin(), p.learners().end(), is_dead);
                      });
}

bool Simulation::Silent(const std::set<uint64_t>& dead) const {
  return std::all_of(coordinator_.view().servers().begin(), coordinator_.view().servers().end(),
                     [&](const v1::Server& s) {
                       return !dead.contains(s.incarnation()) || s.state() == v1::Server::SILENT;
                     });
}

// ---- the cluster --------------------------------------------------------------------------------

absl::Status Simulation::Form() {
  measuring_ = options_.measure_member;
  if (absl::Status status = coordinator_.Start(CoordinatorSettings()); !status.ok()) return status;
  for (int i = 0; i < options_.servers; ++i) {
    VirtualServer::Options server{.name = absl::StrCat("server-", i),
                                  .zone = absl::StrCat("rack-", i % options_.zones),
                                  .coordinator = kCoordinator,
                                  .seed = options_.seed * 1'000'003 + static_cast<uint64_t>(i) + 1};
    auto made = VirtualServer::Create(server, &network_, &control_);
    if (!made.ok()) return made.status();
    servers_.push_back(*std::move(made));
  }
  absl::Status status = RunUntil("all servers joined", [this] {
    return coordinator_.view().servers_size() == options_.servers && AllHave(1);
  });
  if (!status.ok()) return status;
  for (int i = 0; i < options_.workers; ++i) {
    client::SessionOptions worker;
    worker.cluster = kCoordinator;
    worker.job = "job";
    worker.name = absl::StrCat("worker-", i);
    worker.expected_workers = static_cast<uint32_t>(options_.workers);
    workers_.push_back(std::make_unique<VirtualWorker>(
        worker, options_.seed * 7'000'003 + static_cast<uint64_t>(i), &network_.clock(),
        &control_));
  }
  status = RunUntil("all workers joined", [this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->done(); });
  });
  for (int i = 0; i < options_.tables && status.ok(); ++i) {
    status = MakeTable(absl::StrCat("table-", i));
  }
  if (!status.ok()) return status;
  if (options_.measure_member && !member_us_.empty()) {
    options_.costs.member = ToTenth(member_us_.Median());
  }
  measuring_ = false;
  control_.set_member_ns(static_cast<int64_t>(options_.costs.member * kMicro));
  // Two leases, in which all have their beacons and heartbeats at their own pace.
  const int64_t until = now() + 2 * int64_t{options_.lease_ms} * kMilli;
  return RunUntil("a cluster at rest", [&] {
    return now() >= until && Complete() && AllHave(coordinator_.view().revision());
  });
}

absl::Status Simulation::MakeTable(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("job");
  spec.add_shape(static_cast<uint64_t>(options_.partitions) * kChunkBytes / sizeof(float));
  spec.set_chunk_bytes(kChunkBytes);
  spec.set_dtype(v1::DTYPE_F32);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.1);
  workers_.front()->CreateTable(spec);
  return RunUntil("a table created", [this] { return workers_.front()->done(); });
}

// ---- failures -----------------------------------------------------------------------------------

absl::StatusOr<Failure> Simulation::ServerDeath() {
  return Kill("a server dies", {0}, VirtualControl::End::kReset);
}

absl::StatusOr<Failure> Simulation::RackDeath() {
  std::vector<size_t> rack;
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i] != nullptr && servers_[i]->zone() == "rack-1") rack.push_back(i);
  }
  return Kill(absl::StrCat("a rack dies (", rack.size(), " servers)"), rack,
              VirtualControl::End::kSilent);
}

absl::StatusOr<Failure> Simulation::Kill(const std::string& name,
                                         const std::vector<size_t>& indexes,
                                         VirtualControl::End end) {
  std::set<uint64_t> dead;
  Failure failure;
  failure.name = name;
  int64_t first_ask = 0;
  coordinator_.set_observer([&](const v1::ReconfigureRequest& request) {
    if (first_ask == 0 && !request.changes().empty()) first_ask = now();
  });
  for (const size_t i : indexes) {
    dead.insert(servers_[i]->incarnation());
    network_.Crash(servers_[i]->name());
    control_.Stop(servers_[i]->address(), end);
    servers_[i].reset();
  }
  for (const v1::Partition& p : coordinator_.view().partitions()) {
    if (dead.contains(p.primary())) ++failure.moved;
  }
  const int64_t began = now();
  int64_t silent = 0;
  const auto look = [&] {
    if (silent == 0 && Silent(dead)) silent = now();
    return Replaced(dead);
  };
  absl::Status status = RunUntil("no replica is on a dead server", look);
  const int64_t promoted = now();
  uint64_t revision = coordinator_.view().revision();
  // Learners may be followers before the last member has the view.
  int64_t complete = 0;
  if (status.ok()) {
    status = RunUntil("all members have the view", [&] {
      look();
      if (complete == 0 && Complete()) complete = now();
      return AllHave(revision);
    });
  }
  const int64_t spread = now();
  if (status.ok() && complete == 0) {
    status = RunUntil("all replicas are complete", [&] {
      look();
      return Complete();
    });
    complete = now();
  }
  revision = coordinator_.view().revision();
  if (status.ok()) {
    status = RunUntil("all members have the last view", [&] { return AllHave(revision); });
  }
  const int64_t ended = now();
  if (status.ok() && silent == 0) {
    status = RunUntil("the coordinator's leases end", [&] {
      look();
      return silent != 0;
    });
  }
  coordinator_.set_observer({});
  if (!status.ok()) return status;
  failure.parts = {{"detection", Ms(first_ask - began)},
                   {"promotion", Ms(promoted - first_ask)},
                   {"view spread", Ms(spread - promoted)},
                   {"catch-up", Ms(std::max(complete, spread) - spread)},
                   {"last view", Ms(ended - std::max(complete, spread))}};
  failure.also = {{"lease at the coordinator ends", Ms(silent - began)}};
  failure.converged_ms = Ms(ended - began);
  return failure;
}

absl::StatusOr<Failure> Simulation::CoordinatorFailover() {
  Failure failure;
  failure.name = "the coordinator dies";
  const int64_t began = now();
  coordinator_.Stop();
  const int64_t takes_over =
      began + options_.takeover_ms * kMilli + static_cast<int64_t>(options_.costs.start * kMicro);
  absl::Status status = RunUntil("the next coordinator", [&] { return now() >= takes_over; });
  if (status.ok()) status = coordinator_.Start(CoordinatorSettings());
  if (!status.ok()) return status;
  const uint64_t revision = coordinator_.view().revision();
  int64_t first = 0;
  status = RunUntil("all members have the next coordinator's view", [&] {
    const auto has = [&](const auto& m) { return m != nullptr && m->revision() >= revision; };
    if (first == 0 && std::any_of(workers_.begin(), workers_.end(), has)) first = now();
    return AllHave(revision);
  });
  const int64_t spread = now();
  // A change is accepted when all servers have been heard in the new term.
  if (status.ok()) status = MakeTable("after-failover");
  const int64_t accepted = now();
  if (!status.ok()) return status;
  failure.parts = {{"takeover", Ms(options_.takeover_ms * kMilli)},
                   {"start", options_.costs.start / 1000},
                   {"first member", Ms(first - takes_over)},
                   {"view spread", Ms(spread - first)},
                   {"first change", Ms(accepted - spread)}};
  failure.converged_ms = Ms(accepted - began);
  return failure;
}

}  // namespace verbena::bench
