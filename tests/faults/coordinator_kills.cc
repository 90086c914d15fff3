#include "tests/faults/coordinator_kills.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace verbena::test {
namespace {

// The smallest value that `part` of the values do not exceed.
double Quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(part * static_cast<double>(values.size()));
  return values[std::min(rank, values.size() - 1)];
}

std::vector<double> Answered(const std::vector<LeaderChange>& changes) {
  std::vector<double> seconds;
  for (const LeaderChange& change : changes) seconds.push_back(change.answered);
  return seconds;
}

}  // namespace

CoordinatorKills::CoordinatorKills(World* world, uint64_t seed) : world_(*world), random_(seed) {
  ClientOptions options;
  options.cluster = world_.cluster.address();
  options.job = "kills";
  options.timeout = kPatience;
  options.transport = TestTransport();
  auto client = Client::Connect(options);
  INFO(client.status());
  REQUIRE(client.ok());
  client_ = *std::move(client);
  v1::ClusterView view;
  REQUIRE(world_.cluster.WaitLeader(-1, &view) >= 0);
  const size_t before = world_.members.size();
  world_.members = Members(view);
  REQUIRE(world_.members.size() == before + 1);
}

void CoordinatorKills::Kill() {
  // Kills are spread over the interval in which the leader extends its lease.
  absl::SleepFor(absl::Milliseconds(random_() % 1000));
  if (random_() % 3 == 0) {
    KillStandby();
  } else {
    KillLeader();
  }
}

void CoordinatorKills::KillLeader() {
  const int leader = world_.cluster.WaitLeader();
  REQUIRE(leader >= 0);
  world_.cluster.KillCoordinator(leader);
  const absl::Time killed = absl::Now();
  LeaderChange change;
  std::thread call([&] { change.answered = absl::ToDoubleSeconds(Change() - killed); });
  const int next = world_.cluster.WaitLeader(leader);
  change.leads = absl::ToDoubleSeconds(absl::Now() - killed);
  call.join();
  INFO(world_.cluster.logs());
  REQUIRE(next >= 0);
  changes_.push_back(change);
  Restart(leader);
  world_.Goes("a leader was killed");
}

void CoordinatorKills::KillStandby() {
  const int leader = world_.cluster.WaitLeader();
  REQUIRE(leader >= 0);
  const int all = static_cast<int>(world_.cluster.coordinators().size());
  const int standby = (leader + 1 + static_cast<int>(random_() % (all - 1))) % all;
  world_.cluster.KillCoordinator(standby);
  ++standbys_;
  Change();
  Restart(standby);
  world_.Goes("a standby was killed");
}

void CoordinatorKills::Restart(int coordinator) {
  world_.cluster.StartCoordinator(coordinator);
  INFO(world_.cluster.logs());
  REQUIRE(world_.cluster.coordinator(coordinator).WaitFor(" ready"));
}

absl::Time CoordinatorKills::Change() {
  const std::string name = absl::StrCat("killed-", tables_++);
  // Catch2's assertions are for one thread.
  world_.work->Note("CreateTable after a kill", client_->CreateTable(Spec(name)).status());
  const absl::Time answered = absl::Now();
  world_.work->Note("DropTable after a kill", client_->DropTable(name));
  return answered;
}

std::string CoordinatorKills::Report() const {
  std::string report;
  for (size_t i = 0; i < changes_.size(); ++i) {
    absl::StrAppend(&report,
                    absl::StrFormat("change %d: the next leads after %.2f s, a call is answered "
                                    "after %.2f s\n",
                                    i + 1, changes_[i].leads, changes_[i].answered));
  }
  const std::vector<double> seconds = Answered(changes_);
  absl::StrAppend(
      &report, absl::StrFormat("%d changes of the leader and %d kills of standbys: median %.2f s, "
                               "p99 %.2f s, longest %.2f s",
                               seconds.size(), standbys_, Quantile(seconds, 0.5), p99(),
                               Quantile(seconds, 1)));
  return report;
}

double CoordinatorKills::p99() const { return Quantile(Answered(changes_), 0.99); }

}  // namespace verbena::test
