// A driver runs its machine when there is something to do, and only then.
#include "server/executor/driver.h"

#include <sched.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <limits>
#include <utility>

#include "server/executor/inbox.h"
#include "tests/support/process.h"

namespace verbena::server {
namespace {

class TestMachine final : public Machine {
 public:
  bool RunOnce() override {
    rounds.fetch_add(1);
    bool worked = inbox.RunOnce();
    if (clock.NowNanos() >= due.load()) {
      due.store(std::numeric_limits<int64_t>::max());
      timer.set_value();
      worked = true;
    }
    return worked;
  }
  bool Arm() override { return inbox.Arm(); }
  void Disarm() override { inbox.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override { fds->push_back(inbox.wake_fd()); }
  int64_t NextTimerNanos() const override { return due.load(); }

  MonotonicClock clock;
  Inbox inbox;
  std::atomic<uint64_t> rounds{0};
  std::atomic<int64_t> due{std::numeric_limits<int64_t>::max()};
  std::promise<void> timer;
};

void RunOn(TestMachine* machine) {
  std::promise<void> done;
  machine->inbox.Post([&] { done.set_value(); });
  done.get_future().wait();
}

TEST_CASE("a posted task wakes a driver, with and without spinning") {
  const auto spin = GENERATE(absl::ZeroDuration(), absl::Microseconds(50));
  TestMachine machine;
  Driver driver({.name = "test", .spin = spin}, &machine.clock, &machine);
  REQUIRE(driver.Start().ok());
  for (int i = 0; i < 1000; ++i) RunOn(&machine);
  driver.Stop();
  CHECK(driver.cpu_seconds() > 0);
}

TEST_CASE("a driver that cannot be bound to its processor runs, and reports it") {
  TestMachine machine;
  Driver bound({.name = "test", .cpu = sched_getcpu()}, &machine.clock, &machine);
  REQUIRE(bound.Start().ok());
  CHECK(bound.binding().ok());
  bound.Stop();
  Driver unbound({.name = "test", .cpu = 1000}, &machine.clock, &machine);
  REQUIRE(unbound.Start().ok());
  RunOn(&machine);
  CHECK(unbound.binding().message().find("thread test is not bound to processor 1000: ") == 0);
}

TEST_CASE("a driver wakes for a timer") {
  TestMachine machine;
  Driver driver({.name = "test"}, &machine.clock, &machine);
  machine.due.store(machine.clock.NowNanos() + 5'000'000);
  std::future<void> fired = machine.timer.get_future();
  REQUIRE(driver.Start().ok());
  fired.wait();
  driver.Stop();
}

TEST_CASE("a driver with nothing to do sleeps and spins no more") {
  TestMachine machine;
  Driver driver({.name = "test", .spin = absl::Microseconds(20)}, &machine.clock, &machine);
  REQUIRE(driver.Start().ok());
  RunOn(&machine);
  // Asleep, it uses no processor time at all from one look to the next.
  double before = -1;
  CHECK(test::Eventually([&] {
    const double now = driver.cpu_seconds();
    return std::exchange(before, now) == now;
  }));
  // Nothing came during the spins that followed the one piece of work, so they ended at three.
  CHECK(driver.counters().fruitless_spins.load() <= 3);
  driver.Stop();
}

TEST_CASE("waking a thread costs something between the bounds") {
  const absl::Duration cost = MeasureWakeUpCost();
  CHECK(cost >= absl::Microseconds(5));
  CHECK(cost <= absl::Microseconds(100));
}

}  // namespace
}  // namespace verbena::server
