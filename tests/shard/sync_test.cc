#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "shard/optimizer/optimizer.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;
using Workers = std::vector<uint64_t>;

std::vector<Status> PushDone(Fixture& f) {
  std::vector<Status> statuses;
  for (const Event& e : f.Events()) {
    REQUIRE(e.kind == Event::Kind::kPushDone);
    statuses.push_back(e.answer.status);
  }
  return statuses;
}

// Trains 12 steps of random gradients with workers arriving in an order drawn from `seed`.
std::vector<float> Train(uint32_t workers, const std::string& optimizer, v1::Reduction reduction,
                         uint32_t order_seed) {
  FixtureOptions o;
  o.workers = workers;
  o.optimizer = optimizer;
  o.reduction = reduction;
  o.rate = 0.1;
  o.chunk_elements = 2064;
  o.last_elements = 3;
  Fixture f(o);
  std::mt19937 order(order_seed);
  for (uint64_t step = 0; step < 12; ++step) {
    std::vector<std::pair<uint32_t, uint32_t>> arrivals;
    for (uint32_t r = 0; r < workers; ++r) {
      for (uint32_t c = 0; c < o.chunks; ++c) arrivals.emplace_back(r, c);
    }
    std::shuffle(arrivals.begin(), arrivals.end(), order);
    for (const auto& [r, c] : arrivals) {
      std::mt19937 values(static_cast<uint32_t>(step * 100 + r * 10 + c));
      std::normal_distribution<float> normal;
      std::vector<float> g(f.elements(c));
      for (float& x : g) x = normal(values);
      const PushOutcome out = f.Push(r, c, step, g);
      CHECK((out.held || out.answer.status == Status::kOk));
    }
    for (const Status s : PushDone(f)) CHECK(s == Status::kOk);
  }
  CHECK(f.engine->counters().held == 0);
  CHECK(f.engine->counters().commits == 12 * o.chunks);
  std::vector<float> all;
  for (uint32_t c = 0; c < o.chunks; ++c) {
    uint64_t version = 0;
    const std::vector<float> values = f.Read(c, &version);
    CHECK(version == 12);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// The same by a plain loop: sum in rank order, divide, w -= rate * g or its momentum.
std::vector<float> Loop(uint32_t workers, bool momentum, bool mean) {
  std::vector<float> all;
  for (uint32_t c = 0; c < 4; ++c) {
    const uint32_t n = c == 3 ? 3 : 2064;
    std::vector<float> w(n);
    std::vector<float> velocity(n);
    for (uint32_t step = 0; step < 12; ++step) {
      std::vector<float> sum(n);
      for (uint32_t r = 0; r < workers; ++r) {
        std::mt19937 values(step * 100 + r * 10 + c);
        std::normal_distribution<float> normal;
        for (uint32_t i = 0; i < n; ++i) {
          const float g = normal(values);
          sum[i] = r == 0 ? g : sum[i] + g;
        }
      }
      for (uint32_t i = 0; i < n; ++i) {
        const float g = mean ? sum[i] / static_cast<float>(workers) : sum[i];
        velocity[i] = momentum ? 0.9f * velocity[i] + g : g;
        w[i] = w[i] - 0.1f * velocity[i];
      }
    }
    all.insert(all.end(), w.begin(), w.end());
  }
  return all;
}

TEST_CASE("sync gives the bits of a sequential loop, in any order of arrival") {
  for (const uint32_t workers : {1, 2, 4, 7}) {
    for (const bool momentum : {false, true}) {
      const bool mean = workers != 2;
      const std::vector<float> expected = Loop(workers, momentum, mean);
      for (uint32_t seed = 0; seed < 4; ++seed) {
        CHECK(SameBits(Train(workers, momentum ? "momentum" : "sgd",
                             mean ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM, seed),
                       expected));
      }
    }
  }
}

TEST_CASE("adam too is independent of the order of arrival") {
  const std::vector<float> first = Train(4, "adam", v1::REDUCTION_MEAN, 1);
  CHECK(SameBits(first, Train(4, "adam", v1::REDUCTION_MEAN, 2)));
}

TEST_CASE("bias correction counts the applies of a chunk, over generations too") {
  FixtureOptions o;
  o.workers = 1;
  o.optimizer = "adam";
  o.rate = 0.1;
  Fixture f(o);
  const std::unique_ptr<Optimizer> adam = *MakeOptimizer(f.view.tables(0).spec().optimizer());
  std::vector<float> w = Filled(16, 0);
  std::vector<float> m = Filled(16, 0);
  std::vector<float> v = Filled(16, 0);
  float* state[2] = {m.data(), v.data()};
  for (uint64_t t = 1; t <= 8; ++t) {
    if (t == 5) {
      f.job()->set_generation(2);
      REQUIRE(f.Apply().ok());
    }
    const std::vector<float> g = Filled(16, static_cast<float>(t) - 3.5f);
    adam->Apply(Isa::kBaseline, adam->Prepare(t), w.data(), w.data(), state, g.data(), 16);
    CHECK(f.Push(0, 0, (t - 1) % 4, g).answer.version == (t - 1) % 4 + 1);
    CHECK(SameBits(f.Read(0), w));
  }
}

TEST_CASE("a contribution waits for the ranks before it, and only the last one commits") {
  FixtureOptions o;
  o.workers = 3;
  Fixture f(o);
  CHECK(f.Push(2, 0, 0, 4).held);
  CHECK(f.Push(1, 0, 0, 2).held);
  CHECK(f.engine->counters().held == 2);
  CHECK(f.Events().empty());
  CHECK(f.Version(0) == 0);
  CHECK(f.Read(0) == Filled(16, 0));  // nothing uncommitted is readable
  const PushOutcome out = f.Push(0, 0, 0, 1);
  CHECK_FALSE(out.held);
  CHECK(out.answer.status == Status::kOk);
  CHECK(out.answer.version == 1);
  CHECK(PushDone(f) == std::vector<Status>(2, Status::kOk));
  CHECK(f.Read(0) == Filled(16, -7));
  REQUIRE(f.commits.size() == 1);
  CHECK(f.commits[0].contributors == Workers{1000, 1001, 1002});
  CHECK(f.commits[0].step == 0);
}

TEST_CASE("the lowest rank's slot is free at once") {
  FixtureOptions o;
  o.workers = 3;
  Fixture f(o);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Push(1, 0, 0, 2).answer.status == Status::kOk);
  // These contributions are summed: the workers may use their buffers again.
  f.payloads[0].assign(64, std::byte{0x44});
  f.payloads[1].assign(64, std::byte{0x44});
  CHECK(f.Push(2, 0, 0, 4).answer.version == 1);
  CHECK(f.Read(0) == Filled(16, -7));
}

TEST_CASE("the accumulator is used only when a step arrives in parts, and is used again") {
  FixtureOptions o;
  o.chunks = 2;
  Fixture f(o);
  const uint64_t before = f.engine->counters().resident_bytes;
  f.Push(1, 0, 0, 1);
  f.Push(0, 0, 0, 1);
  CHECK(f.Version(0) == 1);
  CHECK(f.engine->counters().resident_bytes == before);
  for (uint64_t step = 1; step < 5; ++step) {
    f.Push(0, 0, step, 1);
    f.Push(1, 0, step, 1);
    CHECK(f.engine->counters().resident_bytes == before + 64);
  }
}

TEST_CASE("mean divides by the workers listed, sum does not") {
  for (const bool mean : {false, true}) {
    FixtureOptions o;
    o.reduction = mean ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
    Fixture f(o);
    f.Push(0, 0, 0, 3);
    f.Push(1, 0, 0, 5);
    CHECK(f.Read(0) == Filled(16, mean ? -4 : -8));
  }
}

TEST_CASE("a push that was consumed or committed is a duplicate and has no effect") {
  Fixture f({});
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kDuplicate);
  f.Push(1, 0, 0, 1);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kDuplicate);
  CHECK(f.Read(0) == Filled(16, -2));
  CHECK(f.engine->counters().duplicates == 2);
}

TEST_CASE("a second push while the first is held is refused without effect") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 1).held);
  CHECK(f.Push(1, 0, 0, 50).answer.status == Status::kWrongStep);
  f.Push(0, 0, 0, 1);
  CHECK(PushDone(f) == std::vector<Status>{Status::kOk});
  CHECK(f.Read(0) == Filled(16, -2));
}

TEST_CASE("a step ahead of the open one is refused") {
  Fixture f({});
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kWrongStep);
  CHECK(f.EndStep(0, 0, 1, 0).answer.status == Status::kWrongStep);
}

TEST_CASE("ending a step without a push contributes zero and counts in the mean") {
  FixtureOptions o;
  o.reduction = v1::REDUCTION_MEAN;
  Fixture f(o);
  CHECK(f.Push(1, 0, 0, 6).held);
  CHECK(f.EndStep(0, 0, 0, 0).answer.status == Status::kOk);
  CHECK(PushDone(f) == std::vector<Status>{Status::kOk});
  CHECK(f.Read(0) == Filled(16, -3));
  CHECK(f.commits[0].contributors == Workers{1001});
  CHECK(f.commits[0].divisor == 2);
  CHECK(f.EndStep(0, 0, 0, 0).group_status[0] == Status::kDuplicate);
}

TEST_CASE(
    "a step that every worker ends without a push increments the version, and applies momentum") {
  FixtureOptions o;
  o.optimizer = "momentum";
  Fixture f(o);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  CHECK(f.Read(0) == Filled(16, -2));
  f.EndStep(0, 0, 1, 0);
  f.EndStep(1, 0, 1, 0);
  CHECK(f.Version(0) == 2);
  CHECK(f.Read(0)[0] == Approx(-2 - 1.8));
}

TEST_CASE("ending a step is refused until the contributions it lists have arrived") {
  FixtureOptions o;
  o.partitions = 1;  // all chunks in it
  Fixture f(o);
  f.Push(1, 0, 0, 1);  // held counts as arrived
  GroupsOutcome out = f.EndStep(1, 0, 0, 3);
  CHECK(out.answer.status == Status::kTooEarly);
  CHECK(out.answer.detail == 2);
  f.Push(1, 1, 0, 1);
  f.Push(1, 2, 0, kNan);  // refused: it has not arrived
  out = f.EndStep(1, 0, 0, 3);
  CHECK(out.answer.status == Status::kTooEarly);
  CHECK(out.answer.detail == 1);
  f.Push(1, 2, 0, std::vector<float>{});
  out = f.EndStep(1, 0, 0, 3);
  CHECK(out.answer.status == Status::kOk);
  REQUIRE(out.group_status.size() == 1);
  // Rank 1 is done with chunk 3; rank 0 is not.
  CHECK(f.Version(3) == 0);
  CHECK(f.EndStep(0, 0, 0, 0).answer.status == Status::kOk);
  for (uint32_t c = 0; c < 4; ++c) CHECK(f.Version(c) == 1);
  CHECK(f.Read(0) == Filled(16, -1));
  CHECK(f.Read(2) == Filled(16, 0));
}

TEST_CASE("chunks committed early still count for their step") {
  FixtureOptions o;
  o.partitions = 1;
  o.chunks = 2;
  Fixture f(o);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  CHECK(f.Version(0) == 1);  // chunk 0 is in step 1, chunk 1 in step 0
  f.Push(0, 0, 1, 1);        // ahead, before its end of step 0
  CHECK(f.EndStep(0, 0, 0, 2).answer.status == Status::kTooEarly);
  CHECK(f.EndStep(0, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.EndStep(1, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Version(1) == 1);
  CHECK(f.Version(0) == 1);  // step 1 of chunk 0 is still open
  CHECK(f.EndStep(0, 0, 1, 1).answer.status == Status::kOk);
  CHECK(f.EndStep(1, 0, 1, 0).answer.status == Status::kOk);
  CHECK(f.Version(0) == 2);
  CHECK(f.Version(1) == 2);
}

TEST_CASE("a push after the worker ended the step is refused") {
  Fixture f({});
  CHECK(f.EndStep(1, 0, 0, 0).answer.status == Status::kOk);
  CHECK(f.Push(1, 0, 0, 1).answer.status == Status::kWrongStep);
  CHECK(f.EndStep(1, 0, 0, 0).answer.status == Status::kOk);  // resent before the commit
}

TEST_CASE("a partition without chunks of the table is ended at once") {
  FixtureOptions o;
  o.chunks = 1;
  Fixture f(o);
  Group g = f.GroupOf(0, 5);
  g.partition = (g.partition + 1) % 4;
  const GroupsOutcome out = f.engine->EndStep({{0, 0, 0}, kFirstWorker, kTable, {&g, 1}, 0});
  CHECK(out.answer.status == Status::kOk);
}

TEST_CASE("a worker departs within a step: consumed contributions stay, held ones are dropped") {
  FixtureOptions o;
  o.workers = 3;
  o.reduction = v1::REDUCTION_MEAN;
  Fixture f(o);
  f.Push(0, 0, 0, 1);               // consumed
  CHECK(f.Push(2, 0, 0, 11).held);  // waits for rank 1
  CHECK(f.Push(2, 1, 0, 8).held);
  CHECK(f.Push(0, 1, 0, 4).answer.status == Status::kOk);
  f.Depart(0);
  CHECK(f.Events().empty());
  f.Depart(1);  // the last one pending: both chunks commit
  CHECK(PushDone(f) == std::vector<Status>(2, Status::kOk));
  CHECK(f.Read(0) == Filled(16, -6));  // (1 + 11) / 2: the departed contributor counts
  CHECK(f.commits[0].contributors == Workers{1000, 1002});
  CHECK(f.commits[0].divisor == 2);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kExpired);
  // Rank 2 alone makes steps.
  CHECK(f.Push(2, 0, 1, 1).answer.version == 2);
  CHECK(f.commits.back().divisor == 1);
}

TEST_CASE("a departed worker's held contribution ends with kExpired") {
  FixtureOptions o;
  o.workers = 3;
  o.reduction = v1::REDUCTION_MEAN;
  Fixture f(o);
  CHECK(f.Push(1, 0, 0, 100).held);
  f.EndStep(1, 1, 0, 0);
  f.Depart(1);
  CHECK(PushDone(f) == std::vector<Status>{Status::kExpired});
  f.Push(0, 0, 0, 2);
  f.Push(2, 0, 0, 4);
  CHECK(f.Read(0) == Filled(16, -3));
  CHECK(f.commits[0].contributors == Workers{1000, 1002});
  // It had ended the step of chunk 1 with nothing; departed since, it is not listed.
  f.Push(0, 1, 0, 2);
  f.Push(2, 1, 0, 4);
  CHECK(f.Read(1) == Filled(16, -3));
}

TEST_CASE("when all workers have departed no empty steps are made") {
  Fixture f({});
  f.Depart(0);
  f.Depart(1);
  CHECK(f.commits.empty());
}

TEST_CASE(
    "the open step of a run whose workers have all left is not applied, in the next run too") {
  FixtureOptions o;
  o.workers = 3;
  Fixture f(o);
  // Two of three have made the step of chunk 0, and none that of chunk 1.
  f.Push(0, 0, 0, 1);
  f.EndStep(0, 0, 0, 1);
  f.Push(1, 0, 0, 2);
  f.EndStep(1, 0, 0, 1);
  const std::vector<std::vector<uint32_t>> orders = {{0, 1, 2}, {1, 0, 2}};
  const std::vector<uint32_t> order = GENERATE_COPY(from_range(orders));
  for (const uint32_t rank : order) f.Depart(rank);
  CHECK(f.commits.empty());
  // The next run has nothing of it.
  f.job()->set_generation(2);
  f.job()->set_expected_workers(1);
  f.job()->clear_departed_ranks();
  f.Join(kFirstWorker + 3, 0);
  REQUIRE(f.Apply().ok());
  CHECK(f.Read(0) == Filled(16, 0));
  CHECK(f.Push(3, 0, 0, 5).answer.version == 1);
  CHECK(f.Read(0) == Filled(16, -5));
  CHECK(f.commits.back().contributors == Workers{1003});
}

TEST_CASE("a complete step that waits for a buffer is not applied in part when its workers leave") {
  FixtureOptions o;
  o.spares = 0;
  o.optimizer = "momentum";
  o.observers = 1;
  Fixture f(o);
  const PullOutcome p = f.Pull(2000, 0, 0);
  f.Push(0, 0, 0, 1);
  CHECK(f.Push(1, 0, 0, 2).held);
  f.Depart(0);
  f.Depart(1);
  f.engine->Unpin(p.view.pin);
  CHECK(f.commits.empty());
  CHECK(f.Read(0) == Filled(16, 0));
}

TEST_CASE("a step waits for a rank that has not joined yet") {
  FixtureOptions o;
  o.workers = 1;
  Fixture f(o);
  f.job()->set_expected_workers(2);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Version(0) == 0);
  f.Join(kFirstWorker + 1, 1);
  REQUIRE(f.Apply().ok());
  CHECK(f.Version(0) == 0);
  CHECK(f.Push(1, 0, 0, 1).answer.version == 1);
}

TEST_CASE("regression: a refused sync push is refused again, until an empty one takes its place") {
  FixtureOptions o;
  o.reduction = v1::REDUCTION_MEAN;
  Fixture f(o);
  std::vector<float> bad = Filled(16, 1);
  bad[15] = kNan;
  CHECK(f.Push(1, 0, 0, bad).answer.status == Status::kNonFinite);  // at once, not held
  f.Push(0, 0, 0, 6);
  // The step does not commit before its worker knows: the answer may have been lost with its lane.
  CHECK(f.Version(0) == 0);
  CHECK(f.Push(1, 0, 0, bad).answer.status == Status::kNonFinite);
  CHECK(f.EndStep(1, 0, 0, 1).answer.status == Status::kTooEarly);
  CHECK(f.Push(1, 0, 0, std::vector<float>{}).answer.status == Status::kOk);
  CHECK(f.Read(0) == Filled(16, -3));
  CHECK(f.commits[0].contributors == Workers{1000});
  CHECK(f.commits[0].divisor == 2);
  CHECK(f.Push(1, 0, 0, bad).answer.status == Status::kDuplicate);
  CHECK(f.Push(1, 0, 0, std::vector<float>{}).answer.status == Status::kDuplicate);
  CHECK(f.engine->counters().non_finite == 2);
}

TEST_CASE("a step waits for no refused push of a worker that departs") {
  FixtureOptions o;
  o.reduction = v1::REDUCTION_MEAN;
  Fixture f(o);
  CHECK(f.Push(1, 0, 0, std::numeric_limits<float>::infinity()).answer.status ==
        Status::kNonFinite);
  CHECK(f.Push(0, 0, 0, 6).answer.status == Status::kOk);
  CHECK(f.Version(0) == 0);
  f.Depart(1);
  CHECK(f.Read(0) == Filled(16, -6));
  CHECK(f.commits[0].divisor == 1);  // it has contributed nothing
}

TEST_CASE("an empty record settles its contribution as zero") {
  Fixture f({});
  CHECK(f.Push(0, 0, 0, std::vector<float>{}).answer.status == Status::kOk);
  f.Push(1, 0, 0, 2);
  CHECK(f.Read(0) == Filled(16, -2));
  CHECK(f.commits[0].contributors == Workers{1001});
}

TEST_CASE("a dead lane's held contributions are dropped without an event and can be sent again") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 5).held);
  CHECK(f.EndStep(1, 0, 0, 1).answer.status == Status::kOk);
  f.engine->ForgetLane(1);
  CHECK(f.engine->counters().held == 0);
  // It has ended the step, with this contribution: the step must not commit without it.
  f.Push(0, 0, 0, 1);
  CHECK(f.Version(0) == 0);
  CHECK(f.EndStep(1, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.engine->Push(f.PushOf(kFirstWorker + 1, 0, 0, Filled(16, 5), 9)).answer.version == 1);
  CHECK(f.Read(0) == Filled(16, -6));
  CHECK(f.Events().empty());
}

TEST_CASE(
    "a departed worker's owed contribution is not required of the worker that takes its rank") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 5).held);
  f.engine->ForgetLane(1);
  f.Depart(1);
  f.Join(5001, 1);
  REQUIRE(f.Apply().ok());
  f.Push(0, 0, 0, 1);
  CHECK(f.Version(0) == 0);
  Group g = f.GroupOf(0, 0);
  g.count = 0;
  CHECK(f.engine->EndStep({{4, 0, 0}, 5001, kTable, {&g, 1}, 0}).answer.status == Status::kOk);
  CHECK(f.Version(0) == 1);
}

TEST_CASE("an event of a dead lane is not reported") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 5).held);
  f.Push(0, 0, 0, 1);
  f.engine->ForgetLane(1);
  CHECK(f.Events().empty());
  CHECK(f.Version(0) == 1);
}

TEST_CASE("without memory for an accumulator a contribution is refused and can be sent again") {
  FixtureOptions o;
  Fixture f(o);
  f.allocator.limit = f.allocator.used;
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kResourceExhausted);
  CHECK(f.EndStep(0, 0, 0, 1).answer.status == Status::kTooEarly);
  CHECK(f.Push(1, 0, 0, 1).held);
  CHECK(f.Push(0, 0, 0, 1).answer.version == 1);  // a full run needs none
  CHECK(f.Read(0) == Filled(16, -2));
  f.allocator.limit = SIZE_MAX;
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kOk);
}

TEST_CASE("a new generation forgets partial steps and keeps the parameters") {
  FixtureOptions o;
  o.optimizer = "momentum";
  Fixture f(o);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  f.Push(0, 0, 1, 100);  // consumed by a step that never commits
  CHECK(f.Push(1, 1, 0, 100).held);
  f.EndStep(1, 2, 0, 0);
  f.job()->set_generation(2);
  f.job()->clear_members();
  f.Join(5000, 0);
  f.Join(5001, 1);
  REQUIRE(f.Apply().ok());
  CHECK(PushDone(f) == std::vector<Status>{Status::kExpired});
  CHECK(f.Version(0) == 0);
  CHECK(f.Read(0) == Filled(16, -2));
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kExpired);
  const auto push = [&](uint64_t worker, uint32_t chunk, float value) {
    return f.engine->Push(f.PushOf(worker, chunk, 0, Filled(16, value), 3));
  };
  push(5000, 0, 0);
  push(5001, 0, 0);
  CHECK(f.Version(0) == 1);
  CHECK(f.Read(0)[0] == Approx(-2 - 1.8));  // the velocity was kept
  push(5000, 1, 1);
  CHECK(push(5001, 1, 1).answer.version == 1);
  CHECK(f.Read(1) == Filled(16, -2));
  push(5000, 2, 1);
  CHECK(f.Version(2) == 0);
}

TEST_CASE("sync: a table has an open step from its first contribution to its commit") {
  FixtureOptions o;
  o.chunks = 1;
  o.workers = 2;
  Fixture f(o);
  Checkpoints& checkpoints = f.engine->checkpoints();
  for (uint64_t step = 0; step < 3; ++step) {
    CHECK_FALSE(checkpoints.HasOpenStep(kTable));
    f.Push(1, 0, step, 1);
    CHECK(checkpoints.HasOpenStep(kTable));
    f.Push(0, 0, step, 1);
  }
  CHECK_FALSE(checkpoints.HasOpenStep(kTable));
  CHECK_FALSE(checkpoints.HasOpenStep(kTable + 1));
}

}  // namespace
}  // namespace verbena::shard
