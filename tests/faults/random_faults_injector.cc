#include "tests/faults/random_faults_injector.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

}  // namespace

FaultInjector::FaultInjector(const FaultOptions& options, FaultCluster* cluster, Ledger* ledger,
                             MemoryWatch* memory, Clock::time_point start,
                             std::function<void()> look)
    : options_(options),
      cluster_(cluster),
      ledger_(ledger),
      memory_(memory),
      look_(std::move(look)),
      draw_(options.seed ^ 0x6661756c74),
      start_(start) {}

bool FaultInjector::Pause(double seconds) {
  const Clock::time_point start = Clock::now();
  while (!ledger_->aborted()) {
    look_();
    const double left = seconds - Since(start);
    if (left <= 0) return true;
    // Between checks for the end of the run.
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.05)));
  }
  return false;
}

bool FaultInjector::AwaitRedundancy(double* seconds) {
  const Clock::time_point start = Clock::now();
  std::string missing;
  while (!(missing = cluster_->Missing()).empty()) {
    *seconds = Since(start);
    if (*seconds > options_.redundancy_s && !ledger_->aborted()) {
      ledger_->Fail(absl::StrFormat("redundancy is not back %.1f s after the last fault ended: %s",
                                    *seconds, missing));
    }
    if (!Pause(0.05)) return false;
  }
  *seconds = Since(start);
  return !ledger_->aborted();
}

std::optional<FaultInjector::Fault> FaultInjector::DrawFault(bool first) {
  const double lease = options_.lease_ms / 1000.0;
  std::vector<Kind> kinds;
  const std::vector<std::string> named = absl::StrSplit(options_.kinds, ',');
  for (const std::string& kind : named) {
    // Servers hold the data, so they come more often.
    if (kind == "kill" && first) kinds.insert(kinds.end(), 4, Kind::kKill);
    if (kind == "stop") kinds.insert(kinds.end(), 3, Kind::kStop);
    if (kind == "coordinator-kill") kinds.push_back(Kind::kCoordinatorKill);
    if (kind == "coordinator-stop") kinds.insert(kinds.end(), 2, Kind::kCoordinatorStop);
  }
  if (kinds.empty()) return std::nullopt;
  Fault fault;
  fault.kind = draw_.Of(kinds);
  fault.begin = first ? 0 : lease * static_cast<double>(draw_.Between(0, 200)) / 100;
  const bool kills = fault.kind == Kind::kKill || fault.kind == Kind::kCoordinatorKill;
  fault.length =
      lease * static_cast<double>(kills ? draw_.Between(0, 150) : draw_.Between(10, 300)) / 100;
  // Half of them meet the server that answers most.
  const auto servers = static_cast<uint64_t>(options_.servers);
  fault.place = draw_.OneIn(2) ? 0 : draw_.Between(0, servers - 1);
  return fault;
}

bool FaultInjector::OfServer(const Fault& fault) {
  return fault.kind == Kind::kKill || fault.kind == Kind::kStop;
}

std::string FaultInjector::Text(const Fault& fault) {
  const bool kills = fault.kind == Kind::kKill || fault.kind == Kind::kCoordinatorKill;
  return absl::StrFormat("%s %s, %s after %.2f s;", kills ? "kill" : "stop",
                         FaultCluster::NameOf(fault.member), kills ? "started" : "continued",
                         fault.length);
}

std::vector<FaultInjector::Fault> FaultInjector::DrawGroup() {
  std::vector<Fault> group = {*DrawFault(true)};
  if (!options_.overlap || !draw_.OneIn(3) || done_ + 2 > options_.faults) return group;
  const std::optional<Fault> second = DrawFault(false);
  if (second && (OfServer(*second) || OfServer(group[0]))) group.push_back(*second);
  return group;
}

bool FaultInjector::Begin(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kKill: {
      // A busy machine may have kept a server from its lease.
      double seconds = 0;
      while (!cluster_->KillServer(fault.member)) {
        if (!Pause(0.1) || !AwaitRedundancy(&seconds)) return false;
      }
      memory_->Forget(FaultCluster::NameOf(fault.member));
      return true;
    }
    case Kind::kCoordinatorKill:
      cluster_->KillCoordinator();
      memory_->Forget(FaultCluster::NameOf(fault.member));
      return true;
    case Kind::kStop:
    case Kind::kCoordinatorStop:
      cluster_->Stop(fault.member);
      return true;
  }
  return false;
}

void FaultInjector::End(const Fault& fault) {
  if (fault.kind == Kind::kStop || fault.kind == Kind::kCoordinatorStop) {
    cluster_->Continue(fault.member);
    return;
  }
  cluster_->Start(fault.member);
  memory_->Watch(FaultCluster::NameOf(fault.member), cluster_->process(fault.member).pid());
}

bool FaultInjector::Play(std::vector<Fault>* group) {
  std::vector<int> servers = cluster_->ByPrimaries();
  for (Fault& fault : *group) {
    if (!OfServer(fault)) continue;
    const auto met = servers.begin() + static_cast<long>(std::min(fault.place, servers.size() - 1));
    fault.member = *met;
    servers.erase(met);
  }
  std::vector<Action> actions;
  for (size_t i = 0; i < group->size(); ++i) {
    const Fault& fault = (*group)[i];
    actions.push_back({fault.begin, i, true});
    actions.push_back({fault.begin + fault.length, i, false});
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const Action& a, const Action& b) { return a.at < b.at; });
  // The first one begins when it may; the others follow it.
  Clock::time_point start;
  for (const Action& action : actions) {
    const Fault& fault = (*group)[action.fault];
    if (&action == &actions.front()) {
      if (!Begin(fault)) return false;
      start = Clock::now();
      continue;
    }
    if (!Pause(action.at - Since(start))) return false;
    if (!action.begins) {
      End(fault);
    } else if (!Begin(fault)) {
      return false;
    }
  }
  return true;
}

void FaultInjector::Run() {
  std::atomic<uint64_t>& disturbance = ledger_->memory().disturbance;
  while (done_ < options_.faults) {
    const double pause =
        options_.lease_ms / 1000.0 * static_cast<double>(draw_.Between(0, 80)) / 100;
    std::vector<Fault> group = DrawGroup();
    if (!Pause(pause)) return;
    const double at = Since(start_);
    disturbance.fetch_add(1);
    double seconds = 0;
    const bool back = Play(&group) && AwaitRedundancy(&seconds);
    longest_ = std::max(longest_, seconds);
    for (const Fault& fault : group) {
      const std::string when =
          absl::StrFormat("redundancy %s %.2f s after its end, %.2f s after its begin",
                          back ? "is back" : "is NOT back", seconds, Since(start_) - at);
      std::printf("%7.2f s  fault %3d: %-46s %s; %llu calls\n", at + fault.begin, ++done_,
                  Text(fault).c_str(), when.c_str(),
                  static_cast<unsigned long long>(ledger_->Calls()));
    }
    std::fflush(stdout);
    if (!back) return;
    disturbance.fetch_add(1);
  }
}

}  // namespace verbena::test
