// The share of a shard that one job may have: lanes, and memory beside a job that goes on.
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

const JobSnapshot& JobOf(const ShardSnapshot& snapshot, const std::string& name) {
  for (const JobSnapshot& job : snapshot.jobs) {
    if (job.engine.name == name) return job;
  }
  FAIL("no job " << name);
  return snapshot.jobs[0];
}

TEST_CASE("a job's lanes end at its limit, another job's do not") {
  ShardFixture fixture;
  fixture.set_other_workers({200, 201});
  fixture.mutable_limits()->set_lanes(2);
  fixture.SetWorkers({100, 101, 102});
  TestWorker& first = fixture.Connected("a", 100);
  const v1::OpenLaneResponse granted = fixture.Grant(101);  // counts although nobody connects
  const absl::Status refused = fixture.shard().OpenLane(fixture.Request(102)).status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(refused.message()),
             Contains("job 'job' is at its limit of lanes to shard 0: it has 2") &&
                 Contains("allowed are 2") && Contains("verbena limits job --lanes 3"));
  fixture.Connected("b", 200);
  fixture.Connected("c", 201);
  const ShardSnapshot snapshot = fixture.shard().Snapshot();
  CHECK(JobOf(snapshot, "job").lanes == 2);
  CHECK(JobOf(snapshot, "job").lane_limit == 2);
  CHECK(JobOf(snapshot, "other").lanes == 2);
  CHECK(JobOf(snapshot, "other").lane_limit == 0);

  SECTION("a grant that is given back or too late makes room") {
    if (GENERATE(false, true)) {
      v1::CloseLaneRequest close;
      close.set_incarnation(101);
      close.set_lane(granted.lane());
      close.set_generation(granted.generation());
      REQUIRE(fixture.shard().CloseLane(close).ok());
    } else {
      fixture.Pass(absl::Seconds(21));
    }
    CHECK(fixture.shard().OpenLane(fixture.Request(102)).ok());
  }
  SECTION("so does a lane that is over") {
    first.lane().Close(absl::CancelledError("enough"));
    CHECK(fixture.Until([&] { return fixture.shard().OpenLane(fixture.Request(102)).ok(); }));
  }
  SECTION("so does a worker that leaves") {
    fixture.SetWorkers({101, 102});
    CHECK(fixture.Until([&] { return fixture.shard().OpenLane(fixture.Request(102)).ok(); }));
  }
  SECTION("so does a higher limit") {
    fixture.mutable_limits()->set_lanes(3);
    fixture.SetWorkers({100, 101, 102});
    CHECK(fixture.shard().OpenLane(fixture.Request(102)).ok());
  }
  SECTION("a lower one closes nothing") {
    fixture.mutable_limits()->set_lanes(1);
    fixture.SetWorkers({100, 101, 102});
    REQUIRE(first.Push(1, 1).ok());
    REQUIRE(fixture.Answered(first, 1));
    CHECK(first.Answer(1)->status == ReplyStatus::kOk);
    CHECK(absl::IsResourceExhausted(fixture.shard().OpenLane(fixture.Request(102)).status()));
  }
}

TEST_CASE("calls of one caller do not hold up those of another, nor the lanes") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  std::string ran;
  const auto post = [&](const std::string& caller, char letter) {
    Inbox::Closure closure = [&ran, letter] { ran += letter; };
    return fixture.shard().Post(caller, closure, [](const absl::Status&) {});
  };
  for (int i = 0; i < 1000; ++i) REQUIRE(post("token a", 'a').ok());
  REQUIRE(post("token b", 'b').ok());
  CHECK_FALSE(fixture.shard().Arm());
  fixture.shard().RunOnce();
  CHECK(ran == "a");  // one between two looks at the lanes
  fixture.shard().RunOnce();
  CHECK(ran == "ab");
  for (int i = 0; i < 1048; ++i) REQUIRE(post("token a", 'a').ok());
  REQUIRE(post("token a", 'a').ok());
  CHECK(absl::IsUnavailable(post("token a", 'a')));
  CHECK(post("token b", 'b').ok());
  fixture.shard().Drain();
  CHECK(ran.size() == 2051);
}

TEST_CASE("at the limit a worker still gets a lane for one that it has lost") {
  ShardFixture fixture;
  fixture.mutable_limits()->set_lanes(1);
  fixture.SetWorkers({100, 101});
  fixture.Connected("a", 100);  // the server never hears that it is lost
  CHECK(absl::IsResourceExhausted(fixture.shard().OpenLane(fixture.Request(101)).status()));
  TestWorker& again = fixture.Connected("b", 100);
  REQUIRE(again.Push(1, 1).ok());
  REQUIRE(fixture.Answered(again, 1));
  CHECK(again.Answer(1)->status == ReplyStatus::kOk);
  CHECK(fixture.Until([&] { return JobOf(fixture.shard().Snapshot(), "job").lanes == 1; }));
  CHECK(absl::IsResourceExhausted(fixture.shard().OpenLane(fixture.Request(101)).status()));
}

// Pushes new rows until there is no room for more. Pushes so far.
uint64_t Fill(ShardFixture* fixture, TestWorker* worker, uint32_t table, ReplyStatus* status,
              uint64_t most) {
  uint64_t sequence = 0;
  *status = ReplyStatus::kOk;
  while (*status == ReplyStatus::kOk && sequence < most) {
    std::vector<uint64_t> keys;
    for (uint64_t key = 0; key < 30; ++key) keys.push_back(sequence * 30 + key);
    const uint64_t cookie = ++sequence;
    REQUIRE(worker->PushRows(sequence, keys, cookie, table).ok());
    REQUIRE(fixture->Answered(*worker, cookie));
    *status = worker->Answer(cookie)->status;
  }
  return sequence;
}

TEST_CASE("a job at its memory limit is refused new rows while another job pushes on") {
  ShardExecutorOptions options;
  options.memory_budget = std::make_shared<MemoryBudget>(uint64_t{64} << 20);
  options.job_memories = std::make_shared<JobMemories>();
  ShardFixture fixture(options);
  fixture.set_other_workers({200});
  fixture.mutable_limits()->set_memory_bytes(2 << 20);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  TestWorker& other = fixture.Connected("b", 200);
  ReplyStatus status = ReplyStatus::kOk;
  const uint64_t pushes = Fill(&fixture, &worker, kRowTable, &status, 100'000);
  CHECK(status == ReplyStatus::kJobMemoryLimit);
  CHECK(worker.Answer(pushes)->detail == 2);  // MiB
  const uint64_t used = JobOf(fixture.shard().Snapshot(), "job").engine.memory_bytes;
  CHECK(used <= (2 << 20) / 16 * 15);
  CHECK(used > 1 << 20);

  CHECK(Fill(&fixture, &other, kOtherRowTable, &status, 2 * pushes) == 2 * pushes);
  CHECK(status == ReplyStatus::kOk);
  CHECK(JobOf(fixture.shard().Snapshot(), "other").engine.memory_bytes > 2 << 20);
  // The first job's rows are served and trained. The refused push has not taken its sequence.
  uint64_t cookie = 1'000'000;
  REQUIRE(worker.PushRows(pushes, {7}, cookie).ok());
  REQUIRE(fixture.Answered(worker, cookie));
  CHECK(worker.Answer(cookie)->status == ReplyStatus::kOk);
  REQUIRE(worker.Lookup({7, uint64_t{1} << 60}, 0, ++cookie).ok());
  REQUIRE(fixture.Answered(worker, cookie));
  CHECK(worker.Answer(cookie)->status == ReplyStatus::kOk);

  fixture.mutable_limits()->set_memory_bytes(0);
  fixture.SetWorkers({100});
  REQUIRE(worker.PushRows(pushes + 1, {uint64_t{1} << 60}, ++cookie).ok());
  REQUIRE(fixture.Answered(worker, cookie));
  CHECK(worker.Answer(cookie)->status == ReplyStatus::kOk);
}

}  // namespace
}  // namespace verbena::server
