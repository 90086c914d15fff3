// The election of a leader on a fake etcd: one at a time, replaced when its lease ends, and careful
// with its own clock.
#include "server/coordinator/etcd/leader_election.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "proto/control/standby.h"
#include "server/coordinator/etcd/elected_office.h"
#include "tests/server/etcd/fake_etcd.h"

namespace verbena::server {
namespace {

using Fault = FakeEtcd::Fault;

// The host's clock, and a time in suspend.
class ShiftedClock final : public Clock {
 public:
  int64_t NowNanos() const override { return clock_.NowNanos() + shift_ns.load(); }
  std::atomic<int64_t> shift_ns = 0;

 private:
  const MonotonicClock clock_;
};

template <typename F>
bool Soon(F condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct Candidate {
  Candidate(const FakeEtcd& etcd, const std::string& address, uint32_t lease_s = 60) {
    EtcdOptions options = etcd.Options();
    options.lease_s = lease_s;
    options.attempt = absl::Milliseconds(200);
    election = *LeaderElection::Create(options, &clock, [this] { ++changes; });
    election->Start(address);
  }
  int64_t own() const { return election->seat().create_revision; }
  bool leads() const { return election->Leads(own()); }

  ShiftedClock clock;
  std::atomic<int> changes = 0;
  std::unique_ptr<LeaderElection> election;
};

TEST_CASE("one of several leads, the others know its address, and one replaces it when it stops") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.leads(); }));
  Candidate b(etcd, "b:7000"), c(etcd, "c:7000");
  REQUIRE(Soon([&] {
    return b.election->seat().leader == "a:7000" && c.election->seat().leader == "a:7000";
  }));
  CHECK_FALSE(b.leads());
  const int64_t first = a.own();
  // With a lease of a minute: it gives its key back.
  a.election->Stop();
  CHECK_FALSE(a.election->Leads(first));
  REQUIRE(Soon([&] { return b.leads() || c.leads(); }));
  CHECK(b.leads() != c.leads());
  CHECK((b.leads() ? b : c).own() > first);
}

TEST_CASE("a leader whose lease has ended in etcd is replaced, and stands for election again") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000", 2);
  REQUIRE(Soon([&] { return a.leads(); }));
  const int64_t first = a.own();
  for (const int64_t lease : etcd.Leases()) etcd.EndLease(lease);
  REQUIRE(Soon([&] { return a.own() != first && a.leads(); }));
  CHECK_FALSE(a.election->Leads(first));
  a.election->Resign(a.own(), absl::ZeroDuration());
  REQUIRE(Soon([&] { return a.leads(); }));
}

TEST_CASE("a leader whose key was removed leads no more") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000", 2);
  REQUIRE(Soon([&] { return a.leads(); }));
  const int64_t first = a.own();
  etcd.Recreate("/verbena/leader", "another:7000");
  REQUIRE(Soon([&] { return a.election->seat().leader == "another:7000"; }));
  CHECK_FALSE(a.election->Leads(first));
}

TEST_CASE("a leader that was suspended past its lease does not lead, whatever etcd has") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000", 60);
  REQUIRE(Soon([&] { return a.leads(); }));
  const int64_t first = a.own();
  CHECK(a.election->UntilNanos(first) - a.clock.NowNanos() <= int64_t{54'000'000'000});
  a.clock.shift_ns = int64_t{55'000'000'000};
  // At once: before anything has run.
  CHECK_FALSE(a.election->Leads(first));
}

TEST_CASE("without answers of etcd a leader ends by its own clock, and leads again after them") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000", 2), b(etcd, "b:7000", 2);
  REQUIRE(Soon([&] { return a.leads() || b.leads(); }));
  Candidate& leader = a.leads() ? a : b;
  const int64_t first = leader.own();
  etcd.SetFaults([](const std::string&) { return Fault::kHang; });
  REQUIRE(Soon([&] { return !leader.election->Leads(first); }));
  REQUIRE(
      Soon([&] { return !a.election->seat().problem.ok() && !b.election->seat().problem.ok(); }));
  CHECK(a.election->seat().leader.empty());
  etcd.SetFaults({});
  REQUIRE(Soon([&] { return a.leads() || b.leads(); }));
}

TEST_CASE("a standby revokes the lease of a leader that has died, as soon as it has ended") {
  FakeEtcd etcd;
  etcd.KeepEndedLeases(true);
  auto client = *EtcdClient::Create(etcd.Options());
  const auto lease = client->GrantLease(3, absl::Seconds(10));
  REQUIRE(lease.ok());
  etcdserverpb::TxnRequest request;
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key("/verbena/leader");
  put->set_value("dead:7000");
  put->set_lease(lease->id());
  REQUIRE(client->Txn(request, absl::Seconds(10)).ok());
  Candidate a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.leads(); }));
  CHECK(etcd.requests("LeaseRevoke") == 1);
  const auto ended = client->KeepLease(lease->id(), absl::Seconds(10));
  CHECK(absl::IsNotFound(ended));
}

TEST_CASE("a candidate whose answers are lost recognises that it was elected") {
  FakeEtcd etcd;
  std::atomic<int> lost = 0;
  etcd.SetFaults([&](const std::string& call) {
    return call == "Txn" && ++lost <= 3 ? Fault::kAnswerLost : Fault::kNone;
  });
  Candidate a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.leads(); }));
  CHECK(etcd.Value("/verbena/leader") == "a:7000");
}

TEST_CASE("regression: a leadership that is given up is not taken again") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.leads(); }));
  const int64_t first = a.own();
  a.election->Resign(first, absl::ZeroDuration());
  // At once: before its key is removed.
  CHECK_FALSE(a.election->Leads(first));
  REQUIRE(Soon([&] { return a.leads(); }));
  CHECK(a.own() > first);
}

TEST_CASE("a leader hands over to the coordinator that it names, at once") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000"), b(etcd, "b:7000"), c(etcd, "c:7000");
  const std::vector<std::pair<Candidate*, const char*>> all = {
      {&a, "a:7000"}, {&b, "b:7000"}, {&c, "c:7000"}};
  REQUIRE(Soon([&] { return a.leads() || b.leads() || c.leads(); }));
  for (size_t move = 0; move < 8; ++move) {
    size_t leader = 0;
    while (!all[leader].first->leads()) leader = (leader + 1) % all.size();
    const auto& [next, address] = all[(leader + 1 + move % 2) % all.size()];
    const int64_t own = all[leader].first->own();
    all[leader].first->election->HandOver(own, address);
    REQUIRE(Soon([&] { return !all[leader].first->election->Leads(own); }));
    REQUIRE(Soon([&] { return a.leads() || b.leads() || c.leads(); }));
    CHECK(next->leads());
    CHECK(next->own() > own);
    CHECK(etcd.Keys("/verbena/") == std::vector<std::string>{"/verbena/leader"});
  }
}

TEST_CASE("a successor that does not run is waited for as long as its key's lease") {
  FakeEtcd etcd;
  Candidate a(etcd, "a:7000"), b(etcd, "b:7000");
  REQUIRE(Soon([&] { return a.leads() || b.leads(); }));
  Candidate& leader = a.leads() ? a : b;
  const auto began = std::chrono::steady_clock::now();
  leader.election->HandOver(leader.own(), "gone:7000");
  REQUIRE(Soon([&] { return etcd.Value("/verbena/successor") == "gone:7000"; }));
  REQUIRE(Soon([&] { return a.leads() || b.leads(); }));
  CHECK(etcd.Value("/verbena/successor").empty());
  CHECK(std::chrono::steady_clock::now() - began >
        std::chrono::seconds(LeaderElection::kSuccessorSeconds - 1));
}

TEST_CASE("at no time do two lead, under random faults") {
  // With leases of 1 s no standby can know the end of one.
  const bool ends_shown = GENERATE(false, true);
  FakeEtcd etcd;
  etcd.KeepEndedLeases(ends_shown);
  std::mt19937_64 random(7);
  bool bad = false;
  std::vector<std::unique_ptr<Candidate>> all;
  for (const char* address : {"a:1", "b:1", "c:1"})
    all.push_back(std::make_unique<Candidate>(etcd, address, ends_shown ? 2 : 1));
  std::set<int64_t> leaderships;
  const auto leaders = [&] {
    int count = 0;
    for (const auto& one : all) {
      const int64_t own = one->own();
      if (!one->election->Leads(own)) continue;
      ++count;
      leaderships.insert(own);
    }
    return count;
  };
  const auto began = std::chrono::steady_clock::now();
  int samples = 0;
  while (std::chrono::steady_clock::now() - began < std::chrono::seconds(6)) {
    // Phases in which all works, and in which not much does.
    const bool bad_now =
        (std::chrono::steady_clock::now() - began) / std::chrono::milliseconds(1500) % 2 == 1;
    if (std::exchange(bad, bad_now) != bad_now) {
      etcd.SetFaults(bad ? FakeEtcd::RandomFaults(random(), 1,
                                                  {Fault::kLost, Fault::kAnswerLost, Fault::kLate,
                                                   Fault::kHang, Fault::kTooMany, Fault::kNone})
                         : FakeEtcd::Faults());
    }
    REQUIRE(leaders() <= 1);
    if (++samples % 64 == 0) etcd.ApplyLate(random());
    if (samples % 8192 == 0) etcd.NewTerm();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  // However little of the processor it had: three leaders after one another, with late requests of
  // the phases before applied between.
  int together = 0;
  const auto are = [&](int wanted) {
    const int count = leaders();
    together = std::max(together, count);
    if (++samples % 64 == 0) etcd.ApplyLate(random());
    return count == wanted || together > 1;
  };
  do {
    etcd.SetFaults({});
    REQUIRE(Soon([&] { return are(1); }));
    etcd.SetFaults([](const std::string&) { return Fault::kLost; });
    REQUIRE(Soon([&] { return are(0); }));
    REQUIRE(together <= 1);
  } while (leaderships.size() < 3);
  etcd.SetFaults({});
  REQUIRE(Soon([&] { return are(1); }));
  CHECK(together == 1);
}

struct Office {
  Office(const FakeEtcd& etcd, const std::string& address, uint32_t lease_s = 60) {
    EtcdOptions options = etcd.Options();
    options.lease_s = lease_s;
    options.attempt = absl::Milliseconds(200);
    CoordinatorOptions coordinator_options;
    coordinator_options.partitions = 4;
    office = *ElectedOffice::Create(
        options, coordinator_options, &clock, [](bool, const std::string&) {}, [] {},
        [this](bool, const std::string& text) { log += text + "\n"; });
    office->Start(address);
  }
  ~Office() {
    coordinator.reset();
    office->Stop();
  }
  bool Follow() {
    office->Follow(&coordinator);
    return coordinator != nullptr;
  }

  ShiftedClock clock;
  std::string log;
  std::unique_ptr<ElectedOffice> office;
  std::unique_ptr<Coordinator> coordinator;
};

TEST_CASE("a coordinator exists while it leads, and a standby names the leader") {
  FakeEtcd etcd;
  auto a = std::make_unique<Office>(etcd, "a:7000");
  REQUIRE(Soon([&] { return a->Follow(); }));
  CHECK(a->office->Leads());
  CHECK(a->coordinator->view().term() == 1);
  const std::string cluster = a->coordinator->view().cluster_id();
  Office b(etcd, "b:7000");
  REQUIRE(Soon([&] { return b.office->leader() == "a:7000"; }));
  CHECK_FALSE(b.Follow());
  const absl::Status absence = b.office->Absence();
  CHECK(absl::IsUnavailable(absence));
  CHECK(LeaderOf(StandbyDetails(absence)) == "a:7000");
  CHECK_THAT(std::string(absence.message()), Catch::Matchers::Contains("the leader is a:7000"));
  a.reset();
  REQUIRE(Soon([&] { return b.Follow(); }));
  CHECK(b.coordinator->view().term() == 2);
  CHECK(b.coordinator->view().cluster_id() == cluster);
}

TEST_CASE("an office is handed over with its state, and not to itself") {
  FakeEtcd etcd;
  Office a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.Follow(); }));
  const std::string cluster = a.coordinator->view().cluster_id();
  Office b(etcd, "b:7000"), c(etcd, "c:7000");
  CHECK(absl::IsFailedPrecondition(a.office->HandOver("a:7000")));
  CHECK(absl::IsInvalidArgument(a.office->HandOver("b")));
  REQUIRE(a.Follow());
  REQUIRE(a.office->HandOver("b:7000").ok());
  CHECK_FALSE(a.Follow());
  CHECK_FALSE(a.office->Leads());
  CHECK_THAT(a.log, Catch::Matchers::Contains("moves the office to b:7000"));
  CHECK_THAT(a.log, !Catch::Matchers::Contains("cannot lead"));
  REQUIRE(Soon([&] { return b.Follow() || c.Follow() || a.Follow(); }));
  REQUIRE(b.coordinator != nullptr);
  CHECK(b.coordinator->view().term() == 2);
  CHECK(b.coordinator->view().cluster_id() == cluster);
}

TEST_CASE("an office ends by the clock alone, and is taken anew in a later term") {
  FakeEtcd etcd;
  Office a(etcd, "a:7000");
  REQUIRE(Soon([&] { return a.Follow(); }));
  a.clock.shift_ns = int64_t{61'000'000'000};
  CHECK_FALSE(a.office->Leads());
  a.Follow();
  CHECK_THAT(a.log, Catch::Matchers::Contains("leads no more: its lease in etcd could have ended"));
  REQUIRE(Soon([&] { return a.Follow(); }));
  CHECK(a.coordinator->view().term() == 2);
  CHECK(a.office->times_elected() == 2);
}

TEST_CASE("a coordinator says when it cannot be elected, and when it can again") {
  FakeEtcd etcd;
  etcd.RequireUser("somebody", "else");
  Office a(etcd, "a:7000");
  REQUIRE(Soon([&] {
    a.Follow();
    return !a.office->problem().ok() && !a.log.empty();
  }));
  CHECK_THAT(a.log, Catch::Matchers::Contains("cannot be elected: etcd at " + etcd.address()) &&
                        Catch::Matchers::Contains("user name is empty"));
  CHECK_THAT(std::string(a.office->Absence().message()),
             Catch::Matchers::Contains("user name is empty"));
  etcd.RequireUser("", "");
  REQUIRE(Soon([&] { return a.Follow() && a.office->problem().ok(); }));
  CHECK_THAT(a.log, Catch::Matchers::Contains("etcd answers again"));
}

TEST_CASE("a coordinator that cannot read the state says so, and lets others try") {
  FakeEtcd etcd;
  etcd.Overwrite("/verbena/state", "damaged");
  Office a(etcd, "a:7000");
  REQUIRE(Soon([&] {
    a.Follow();
    return !a.office->problem().ok();
  }));
  CHECK(absl::IsDataLoss(a.office->problem()));
  CHECK_FALSE(a.office->Leads());
  CHECK(a.coordinator == nullptr);
  // Its key does not stay.
  REQUIRE(Soon([&] { return etcd.Value("/verbena/leader").empty(); }));
  etcd.Remove("/verbena/state");
  REQUIRE(Soon([&] { return a.Follow(); }));
  CHECK(a.office->problem().ok());
}

}  // namespace
}  // namespace verbena::server
