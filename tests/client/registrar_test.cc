// Memory that is registered while other calls go on: the order of jobs, calls that wait for their
// memory, memory that is freed meanwhile, and the lines in the log.
#include "client/registrar.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace registrar_test {

using Catch::Matchers::Contains;
using client::Registrar;

std::shared_ptr<rdma::MemoryBlock> Block(size_t bytes) {
  return *rdma::MemoryBlock::Allocate(bytes, "test-region");
}

// ---- jobs ---------------------------------------------------------------------------------------

// Registration of a block, in steps that the test counts.
struct Steps final : rdma::Registration {
  Steps(uint64_t all, uint64_t each, int* count) : bytes(all), step(each), live(count) { ++*live; }
  ~Steps() override { --*live; }
  absl::Status Step() override {
    done = std::min(bytes, done + step);
    return result;
  }
  bool complete() const override { return done == bytes; }
  uint64_t registered_bytes() const override { return done; }

  uint64_t bytes, step, done = 0;
  int* live;
  absl::Status result;
};

struct Jobs {
  Jobs() { REQUIRE(registrar.UseThread(nullptr).ok()); }
  Steps* Start(const std::shared_ptr<rdma::MemoryBlock>& block, uint64_t step) {
    auto steps = std::make_unique<Steps>(block->size(), step, &live);
    Steps* const raw = steps.get();
    REQUIRE(
        registrar.Start({0, block->id()}, "verbs", block, block->size(), std::move(steps)).ok());
    return raw;
  }
  // Once a second, as the lease keeper does.
  void RunFor(int64_t ns) {
    const int64_t end = network.clock().NowNanos() + ns;
    while (network.clock().NowNanos() < end) {
      network.Advance(std::min(end, network.clock().NowNanos() + kSecond));
      registrar.Report(network.clock().NowNanos());
    }
  }

  rdma::SimNetwork network{1, {}};
  std::vector<std::string> lines;
  int live = 0;
  Registrar registrar{&network.clock(), [this](const std::string& line) { lines.push_back(line); }};
};

TEST_CASE("a small region waits for two steps of larger ones at most") {
  Jobs jobs;
  const auto large = Block(1 << 20), larger = Block(2 << 20), small = Block(4096);
  const Steps* const first = jobs.Start(large, 4096);
  const Steps* const second = jobs.Start(larger, 4096);
  for (int i = 0; i < 10; ++i) REQUIRE(jobs.registrar.RunOnce());
  CHECK(second->done > 0);  // they take turns
  const uint64_t before = first->done + second->done;
  jobs.Start(small, 4096);
  for (int i = 0; i < 3 && jobs.registrar.Holds(small->id()); ++i) {
    REQUIRE(jobs.registrar.RunOnce());
  }
  CHECK_FALSE(jobs.registrar.Holds(small->id()));
  CHECK(first->done + second->done <= before + 2 * 4096);
  const std::vector<Registrar::Over> over = jobs.registrar.TakeOver();
  REQUIRE(over.size() == 1);
  CHECK(over[0].purpose.block == small->id());
  CHECK(over[0].status.ok());
  CHECK(jobs.registrar.TakeOver().empty());
  CHECK(jobs.registrar.Find({0, large->id()})->registered == first->done);
}

TEST_CASE("abandoned memory is deregistered at the next step, before other jobs") {
  Jobs jobs;
  auto gone = Block(1 << 20);
  const auto other = Block(1 << 20);
  jobs.Start(other, 4096);
  jobs.Start(gone, 4096);
  for (int i = 0; i < 4; ++i) REQUIRE(jobs.registrar.RunOnce());
  jobs.registrar.GiveUp(gone->id());
  CHECK(jobs.registrar.Holds(gone->id()));
  REQUIRE(jobs.registrar.RunOnce());
  CHECK_FALSE(jobs.registrar.Holds(gone->id()));
  CHECK(jobs.live == 1);
  CHECK(gone.use_count() == 1);
  const std::vector<Registrar::Over> over = jobs.registrar.TakeOver();
  REQUIRE(over.size() == 1);
  CHECK(absl::IsCancelled(over[0].status));
  jobs.registrar.Stop();
  jobs.registrar.Run();  // returns
  CHECK(jobs.live == 0);
  CHECK(other.use_count() == 1);
  CHECK(absl::IsCancelled(jobs.registrar.Start({0, other->id()}, "verbs", other, 1,
                                               std::make_unique<Steps>(1, 1, &jobs.live))));
}

// Registration of a piece for one lane: it is complete after one step.
struct LaneJob {
  LaneJob() {
    REQUIRE(
        jobs.registrar
            .Start(purpose, "verbs", block, 4096, std::make_unique<Steps>(4096, 4096, &jobs.live))
            .ok());
  }
  Jobs jobs;
  std::shared_ptr<rdma::MemoryBlock> block = Block(1 << 20);
  Registrar::Purpose purpose = {0, block->id(), rdma::ConnectionId{7}, 2};
};

TEST_CASE("a registration for a lane is handed out with its purpose") {
  LaneJob lane;
  CHECK(lane.jobs.registrar.Find(lane.purpose).has_value());
  CHECK_FALSE(lane.jobs.registrar.Find({0, lane.block->id()}).has_value());
  CHECK(lane.jobs.registrar.Pending(0, lane.block->id()));
  REQUIRE(lane.jobs.registrar.RunOnce());
  // Until it is taken: nobody starts it again.
  CHECK(lane.jobs.registrar.Find(lane.purpose).has_value());
  CHECK(lane.jobs.registrar.Pending(0, lane.block->id()));
  std::vector<Registrar::Over> over = lane.jobs.registrar.TakeOver();
  REQUIRE(over.size() == 1);
  CHECK(over[0].status.ok());
  CHECK(over[0].purpose == lane.purpose);
  REQUIRE(over[0].registration != nullptr);
  CHECK(lane.jobs.live == 1);
  CHECK_FALSE(lane.jobs.registrar.Pending(0, lane.block->id()));
  CHECK_FALSE(lane.jobs.registrar.Holds(lane.block->id()));
  SECTION("and given back where the lane is gone: a thread ends it") {
    lane.jobs.registrar.Discard(std::move(over[0]));
    CHECK(lane.jobs.live == 1);
    CHECK(lane.jobs.registrar.Holds(lane.block->id()));
    REQUIRE(lane.jobs.registrar.RunOnce());
    CHECK(lane.jobs.live == 0);
    CHECK_FALSE(lane.jobs.registrar.Holds(lane.block->id()));
  }
}

TEST_CASE("a registration abandoned before its lane has taken it is ended by a thread") {
  LaneJob lane;
  REQUIRE(lane.jobs.registrar.RunOnce());
  lane.jobs.registrar.GiveUp(lane.block->id());
  CHECK(lane.jobs.registrar.Holds(lane.block->id()));
  const std::vector<Registrar::Over> over = lane.jobs.registrar.TakeOver();
  REQUIRE(over.size() == 1);
  CHECK(absl::IsCancelled(over[0].status));
  CHECK(over[0].registration == nullptr);
  CHECK(lane.jobs.live == 1);
  REQUIRE(lane.jobs.registrar.RunOnce());
  CHECK(lane.jobs.live == 0);
  CHECK_FALSE(lane.jobs.registrar.Holds(lane.block->id()));
}

TEST_CASE("a slow registration logs its progress, every five seconds at most") {
  Jobs jobs;
  const auto block = Block(1 << 20);
  Steps* const steps = jobs.Start(block, 1 << 18);
  jobs.RunFor(kSecond);
  REQUIRE(jobs.registrar.RunOnce());
  CHECK(jobs.lines.empty());
  jobs.RunFor(kSecond);
  REQUIRE(jobs.lines.size() == 1);
  CHECK_THAT(jobs.lines[0], Contains("verbs: 262144 of 1048576 bytes after 2 s"));
  REQUIRE(jobs.registrar.RunOnce());
  jobs.RunFor(20 * kSecond);
  CHECK(jobs.lines.size() == 5);
  CHECK_THAT(jobs.lines[1], Contains("524288 of 1048576 bytes after 7 s"));
  SECTION("it is done") {
    while (jobs.registrar.RunOnce()) {
    }
    CHECK_THAT(jobs.lines.back(), Contains("1048576 of 1048576 bytes after 22 s: done"));
  }
  SECTION("it fails") {
    steps->result = absl::ResourceExhaustedError("RLIMIT_MEMLOCK");
    REQUIRE(jobs.registrar.RunOnce());
    CHECK_THAT(jobs.lines.back(), Contains("after 22 s: RLIMIT_MEMLOCK"));
  }
  CHECK(jobs.lines.size() == 6);
  jobs.RunFor(20 * kSecond);
  CHECK(jobs.lines.size() == 6);
}

TEST_CASE("the number of concurrent registrations is limited") {
  Jobs jobs;
  const auto block = Block(4096);
  for (size_t i = 0; i < Registrar::kMostJobs; ++i) jobs.Start(block, 1);
  CHECK(absl::IsResourceExhausted(jobs.registrar.Start({0, block->id()}, "verbs", block, 1,
                                                       std::make_unique<Steps>(1, 1, &jobs.live))));
}

TEST_CASE("without a thread nothing is registered; with one, no more are needed") {
  MonotonicClock clock;
  int live = 0, asked = 0;
  Registrar registrar(&clock, nullptr);
  bool room = false;
  REQUIRE(registrar
              .UseThread([&] {
                ++asked;
                return room ? absl::OkStatus() : absl::ResourceExhaustedError("no thread");
              })
              .ok());
  const auto block = Block(4096);
  const auto start = [&](size_t piece) {
    return registrar.Start({0, block->id(), rdma::ConnectionId{1}, piece}, "verbs", block, 1,
                           std::make_unique<Steps>(1, 1, &live));
  };
  CHECK(start(0).message() == "no thread");
  CHECK_FALSE(registrar.Holds(block->id()));
  room = true;
  CHECK(start(0).ok());
  room = false;
  CHECK(start(1).ok());  // the first thread does it
  CHECK(asked == 3);
  registrar.Stop();
  registrar.Run();
}

// ---- calls --------------------------------------------------------------------------------------

// A client whose registrations are stepped by the test.
struct World {
  World() {
    table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
    other = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
    cluster.Join();
    REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));  // a lane is open
    REQUIRE(cluster.core->registrar().UseThread(nullptr).ok());
  }
  Registrar& registrar() { return cluster.core->registrar(); }
  // The region takes many more steps than any call is waited for.
  client::ClientCore::Slice Slow(float value) {
    slow = cluster.Memory(table, value);
    cluster.endpoint->steps = 1 << 20;
    return slow;
  }
  bool Pending() { return registrar().Find({0, slow.block->id()}).has_value(); }
  bool Wait(const FakeCluster::CallPtr& call) {
    for (int i = 0; i < 10'000 && !call->done; ++i) {
      cluster.RunFor(kMilli);
      registrar().RunOnce();
      cluster.endpoint->steps = 1;  // those that are started from now on
    }
    return call->done;
  }

  FakeCluster cluster;
  uint32_t table = 0, other = 0;
  client::ClientCore::Slice slow;
};

TEST_CASE("calls on a region that is being registered end before it is ready, and so do others") {
  World w;
  const auto push = w.cluster.Push(w.table, w.Slow(3.0f));
  w.cluster.RunFor(kMilli);
  REQUIRE(w.Pending());
  // Another caller's, with memory of its own.
  const auto others = w.cluster.Push(w.other, w.cluster.Memory(w.other, 5.0f));
  REQUIRE(w.Wait(others));
  REQUIRE(w.Wait(push));
  const auto pull = w.cluster.Pull(w.table, w.slow);
  REQUIRE(w.Wait(pull));
  for (const auto& call : {push, others, pull}) {
    INFO(call->status);
    CHECK(call->status.ok());
  }
  CHECK(w.Pending());
  CHECK(w.cluster.servers[0]->applied[{w.table, 1}] == 3.0f);
  CHECK(w.cluster.servers[0]->applied[{w.other, 1}] == 5.0f);
  CHECK(w.cluster.core->statistics().staged_bytes > 0);
}

TEST_CASE("a call waits for its region for a moment, and goes on when that is ready") {
  World w;
  w.cluster.endpoint->steps = 3;
  const auto memory = w.cluster.Memory(w.table, 3.0f);
  const auto push = w.cluster.Push(w.table, memory);
  w.cluster.RunFor(50 * kMilli);
  CHECK_FALSE(push->done);
  while (w.registrar().RunOnce()) {
  }
  // Not by a timer.
  CHECK(w.cluster.core->NextTimerNanos() > w.cluster.now());
  const int64_t ready = w.cluster.now();
  REQUIRE(w.cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(push->ended_at - ready < 10 * kMilli);  // of the simulated clock
  CHECK(w.cluster.core->statistics().staged_bytes == 0);
  const auto pull = w.cluster.Pull(w.table, memory);
  REQUIRE(w.cluster.Wait(pull));
  CHECK(w.cluster.core->statistics().staged_bytes == 0);
}

TEST_CASE("a region that cannot be registered: the call's error at its deadline has the reason") {
  World w;
  w.cluster.endpoint->register_status = absl::ResourceExhaustedError("RLIMIT_MEMLOCK is 65536");
  const auto push = w.cluster.Push(w.table, w.cluster.Memory(w.table, 3.0f), kSecond);
  REQUIRE(w.Wait(push));
  CHECK(absl::IsResourceExhausted(push->status));
  CHECK_THAT(std::string(push->status.message()), Contains("transport sim: RLIMIT_MEMLOCK"));
}

TEST_CASE("a region freed during its registration is deregistered") {
  World w;
  const auto push = w.cluster.Push(w.table, w.Slow(3.0f));
  w.cluster.RunFor(kMilli);
  REQUIRE(w.Pending());
  const uint64_t id = w.slow.block->id();
  w.cluster.core->ReleaseBlock(id);
  CHECK(w.cluster.core->InUse(id));
  REQUIRE(w.cluster.Wait(push));
  CHECK(absl::IsCancelled(push->status));
  REQUIRE(w.registrar().RunOnce());
  CHECK_FALSE(w.cluster.core->InUse(id));
  CHECK(w.cluster.endpoint->live_registrations == 0);
  w.cluster.RunFor(kMilli);
  CHECK(w.slow.block.use_count() == 1);
}

// ---- of lanes -----------------------------------------------------------------------------------

// A client whose lanes need a separate registration for the memory that they expose.
struct LanesWorld : World {
  LanesWorld() { cluster.endpoint->exposure_steps = 1 << 20; }
  // The destination's takes many more steps than any call is waited for.
  FakeCluster::CallPtr Pull() {
    slow = cluster.Memory(table, 0.0f);
    const auto pull = cluster.Pull(table, slow);
    cluster.RunFor(kMilli);
    registrar().RunOnce();  // the region, for the transport
    cluster.RunFor(kMilli);
    return pull;
  }
  bool Exposing() { return registrar().Pending(0, slow.block->id()); }
};

TEST_CASE("a pull waits for its lane's registration for a moment, and goes on when that is there") {
  LanesWorld w;
  w.cluster.endpoint->exposure_steps = 3;
  const auto pull = w.Pull();
  REQUIRE(w.Exposing());
  w.cluster.RunFor(50 * kMilli);
  CHECK_FALSE(pull->done);
  const int before = w.cluster.endpoint->exposures;
  while (w.registrar().RunOnce()) {
  }
  const int64_t ready = w.cluster.now();
  REQUIRE(w.cluster.Wait(pull));
  CHECK(pull->status.ok());
  CHECK(pull->ended_at - ready < 10 * kMilli);  // of the simulated clock
  CHECK(w.cluster.endpoint->exposures == before + 1);
  CHECK(w.cluster.core->statistics().staged_bytes == 0);
  CHECK(w.cluster.endpoint->live_registrations == 0);
  REQUIRE(w.cluster.Wait(w.cluster.Pull(w.table, w.slow)));  // it is exposed
  CHECK(w.cluster.endpoint->exposures == before + 1);
}

TEST_CASE("a pull is staged when its lane's registration of the destination takes long") {
  LanesWorld w;
  const auto pull = w.Pull();
  REQUIRE(w.Exposing());
  w.cluster.endpoint->exposure_steps = 1;  // staging's
  REQUIRE(w.Wait(pull));
  CHECK(pull->status.ok());
  CHECK(w.Exposing());
  CHECK(w.cluster.core->statistics().staged_bytes > 0);
}

TEST_CASE("a region freed while a lane registers it is deregistered") {
  LanesWorld w;
  const bool complete = GENERATE(false, true);
  if (complete) w.cluster.endpoint->exposure_steps = 1;
  const auto pull = w.Pull();
  REQUIRE(w.Exposing());
  if (complete) {
    REQUIRE(w.registrar().RunOnce());  // and not exposed yet
  }
  const int before = w.cluster.endpoint->exposures;
  const uint64_t id = w.slow.block->id();
  w.cluster.core->ReleaseBlock(id);
  CHECK(w.cluster.core->InUse(id));
  REQUIRE(w.cluster.Wait(pull));
  CHECK(absl::IsCancelled(pull->status));
  REQUIRE(w.registrar().RunOnce());
  CHECK_FALSE(w.cluster.core->InUse(id));
  CHECK(w.cluster.endpoint->live_registrations == 0);
  w.cluster.RunFor(kMilli);
  CHECK(w.cluster.endpoint->exposures == before);
  CHECK(w.slow.block.use_count() == 1);
}

TEST_CASE("a lane lost while it registers memory leaves no registration, and the pull ends") {
  LanesWorld w;
  w.cluster.endpoint->exposure_steps = 2;
  const auto pull = w.Pull();
  REQUIRE(w.Exposing());
  REQUIRE(w.registrar().RunOnce());
  w.cluster.servers[0]->CloseLanes("the test closes it");
  w.cluster.RunFor(20 * kMilli);
  CHECK(w.cluster.core->statistics().lanes_lost == 1);
  REQUIRE(w.registrar().RunOnce());  // complete
  REQUIRE(w.Wait(pull));             // over a new lane
  CHECK(pull->status.ok());
  for (int i = 0; i < 10; ++i) {
    while (w.registrar().RunOnce()) {
    }
    w.cluster.RunFor(kMilli);
  }
  CHECK(w.cluster.endpoint->live_registrations == 0);
  CHECK_FALSE(w.cluster.core->InUse(w.slow.block->id()));
}

TEST_CASE("a client that ends during a registration leaves no registration") {
  World w;
  (void)w.cluster.Push(w.table, w.Slow(3.0f));
  w.cluster.RunFor(kMilli);
  REQUIRE(w.Pending());
  w.registrar().Stop();
  w.registrar().Run();
  CHECK(w.cluster.endpoint->live_registrations == 0);
  w.cluster.core.reset();
  CHECK(w.slow.block.use_count() == 1);
}

}  // namespace registrar_test
}  // namespace verbena::test
