// Steps that commit in two phases: partial norms, total norms, and the end of both.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "shard/optimizer/optimizer.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace norms_test {

constexpr auto kOk = ReplyStatus::kOk;

FixtureOptions Clipped(double limit = 1) {
  FixtureOptions o;
  o.chunks = 6;  // in 4 partitions: two have two chunks
  o.more.set_clip_global_norm(limit);
  return o;
}

FixtureOptions Lamb(double clip = 0) {
  FixtureOptions o;
  o.chunks = 6;
  o.optimizer = "lamb";
  o.rate = 0.1;
  o.initial = 2;
  o.more.set_clip_global_norm(clip);
  return o;
}

struct NormFixture : Fixture {
  using Fixture::Fixture;

  std::vector<Group> GroupsOf(const std::vector<uint32_t>& chunks, uint64_t step, NormKind kind) {
    std::vector<Group> out;
    for (const uint32_t c : chunks) {
      Group g = GroupOf(c, step);
      g.index = static_cast<uint32_t>(kind);
      g.count = 0;
      out.push_back(g);
    }
    return out;
  }
  // About the partitions of `chunks`.
  PullOutcome Ask(uint32_t rank, const std::vector<uint32_t>& chunks, uint64_t step,
                  NormKind kind = NormKind::kGradient, bool may_park = true) {
    norm_groups = GroupsOf(chunks, step, kind);
    NormsRequest r;
    r.token = {rank, 7, 0};
    r.worker = kFirstWorker + rank;
    r.table = kTable;
    r.groups = norm_groups;
    r.destination = 0x9000;
    r.destination_key = 3;
    r.may_park = may_park;
    return engine->Norms(r);
  }
  GroupsOutcome Replicate(uint32_t rank, const std::vector<uint32_t>& chunks, uint64_t step,
                          NormTotals totals, NormKind kind = NormKind::kGradient) {
    norm_groups = GroupsOf(chunks, step, kind);
    return engine->Totals({{rank, 8, 0}, kFirstWorker + rank, kTable, norm_groups, 0}, totals);
  }
  std::vector<double> Numbers(const ChunkView& chunk) {
    std::vector<double> numbers(chunk.bytes / sizeof(double));
    std::memcpy(numbers.data(), chunk.buffer.data, chunk.bytes);
    engine->Unpin(chunk.pin);
    return numbers;
  }
  // Both workers push `value` to every chunk.
  void PushAll(uint64_t step, float value) {
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      for (uint32_t c = 0; c < options.chunks; ++c) {
        CHECK_FALSE(Push(rank, c, step, value).held);
      }
    }
  }
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  std::vector<Group> norm_groups;
};

TEST_CASE("a clipped step commits only with its totals, which scale every chunk") {
  NormFixture f(Clipped(6));
  f.PushAll(0, 1);  // 96 elements of 2: a norm of sqrt(384)
  for (uint32_t c = 0; c < 6; ++c) CHECK(f.Version(c) == 0);
  CHECK(f.commits.empty());
  CHECK(f.Read(0) == Filled(16, 0));

  const PullOutcome parts = f.Ask(0, f.all, 0);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  CHECK(f.Numbers(parts.view) == std::vector<double>(6, 16 * 4));
  CHECK(f.Replicate(0, f.all, 0, {384, 0}).answer.status == kOk);
  const float scale = static_cast<float>(6 / std::sqrt(384.0));
  for (uint32_t c = 0; c < 6; ++c) {
    CHECK(f.Version(c) == 1);
    CHECK(f.Read(c) == Filled(16, -(2 * scale)));
  }
  CHECK(f.commits.size() == 6);
}

// Also where its gradients came first, and were summed.
TEST_CASE("a chunk that is assigned has no part in the norm, and is as it was assigned") {
  const bool lamb = GENERATE(false, true);
  const uint32_t assigner = GENERATE(0u, 1u);
  NormFixture f(lamb ? Lamb(4) : Clipped(4));
  for (const uint32_t rank : {1u, 0u}) {
    for (uint32_t c = 0; c < 6; ++c) {
      const bool assigns = c == 2 && rank == assigner;
      PushRequest push = f.PushOf(kFirstWorker + rank, c, 0, Filled(16, assigns ? 7 : 1), rank);
      push.assigns = assigns;
      f.engine->Push(push);
    }
  }
  const PullOutcome parts = f.Ask(0, {2}, 0);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  const std::vector<double> numbers = f.Numbers(parts.view);
  CHECK(std::count(numbers.begin(), numbers.end(), 0) == 1);
  CHECK(f.Replicate(0, f.all, 0, {5 * 16 * 4, 0}).answer.status == kOk);
  if (lamb) {
    const PullOutcome trust = f.Ask(0, f.all, 0, NormKind::kTrust);
    REQUIRE(trust.kind == PullOutcome::Kind::kReady);
    const std::vector<double> all = f.Numbers(trust.view);
    CHECK(std::count(all.begin(), all.end(), 0) == 2);  // of its weights and its update
    CHECK(f.Replicate(0, f.all, 0, {5 * 16 * 4, 16}, NormKind::kTrust).answer.status == kOk);
  }
  CHECK(f.Read(2) == Filled(16, 7));
  const float scale = static_cast<float>(4 / std::sqrt(5 * 16 * 4.0));
  for (const uint32_t c : {0u, 1u, 3u, 4u, 5u}) {
    CHECK(f.Version(c) == 1);
    if (!lamb) CHECK(f.Read(c) == Filled(16, -(2 * scale)));
  }
}

TEST_CASE("a norm below the limit changes nothing") {
  NormFixture f(Clipped(100));
  f.PushAll(0, 1);
  f.Replicate(0, f.all, 0, {384, 0});
  CHECK(f.Read(5) == Filled(16, -2));
}

TEST_CASE("the first totals count; later or repeated ones are duplicates") {
  NormFixture f(Clipped(1));
  f.PushAll(0, 1);
  CHECK(f.Replicate(0, {0}, 0, {384, 0}).answer.status == kOk);
  const GroupsOutcome again = f.Replicate(1, f.all, 0, {384, 0});
  CHECK(again.answer.status == kOk);
  CHECK(again.group_status[0] == ReplyStatus::kDuplicate);
  CHECK(again.group_status[1] == kOk);
  CHECK(f.Replicate(1, {0}, 0, {1e9, 0}).group_status[0] == ReplyStatus::kDuplicate);
  for (uint32_t c = 0; c < 6; ++c) CHECK(f.Version(c) == 1);
  CHECK(f.commits.size() == 6);
}

TEST_CASE("partial norms are available until the next step has committed") {
  NormFixture f(Clipped(1));
  for (uint64_t step = 0; step < 3; ++step) {
    f.PushAll(step, static_cast<float>(step + 1));
    const double norm = 16 * 4 * double(step + 1) * double(step + 1);
    // Before the commit of this step, those of the step before are still there.
    if (step > 0) {
      const PullOutcome before = f.Ask(1, f.all, step - 1);
      REQUIRE(before.kind == PullOutcome::Kind::kReady);
      CHECK(f.Numbers(before.view)[0] == 16 * 4 * double(step) * double(step));
    }
    f.Replicate(0, f.all, step, {6 * norm, 0});
    const PullOutcome parts = f.Ask(1, f.all, step);
    REQUIRE(parts.kind == PullOutcome::Kind::kReady);
    CHECK(f.Numbers(parts.view)[0] == norm);
  }
  const PullOutcome old = f.Ask(1, f.all, 0);
  CHECK(old.kind == PullOutcome::Kind::kAnswer);
  CHECK(old.answer.status == ReplyStatus::kDuplicate);
  CHECK(f.Replicate(1, f.all, 0, {1, 0}).group_status[3] == ReplyStatus::kDuplicate);
}

TEST_CASE("a request for partial norms is deferred until the last chunk's part is there") {
  NormFixture f(Clipped(1));
  CHECK(f.Ask(0, f.all, 0).kind == PullOutcome::Kind::kDeferred);
  CHECK(f.Ask(1, {0}, 0).kind == PullOutcome::Kind::kDeferred);
  CHECK(f.engine->counters().deferred == 2);
  const PullOutcome resumed = f.Ask(1, f.all, 0, NormKind::kGradient, /*may_park=*/false);
  CHECK(resumed.kind == PullOutcome::Kind::kAnswer);
  CHECK(resumed.answer.status == ReplyStatus::kTooEarly);
  for (uint32_t c = 0; c < 6; ++c) {
    f.Push(0, c, 0, 1);
    CHECK(f.Events().empty());
  }
  f.Push(1, 0, 0, 1);
  CHECK(f.Events().empty());  // its partition has two chunks
  std::vector<uint32_t> answered;
  for (uint32_t c = 1; c < 6; ++c) {
    f.Push(1, c, 0, 1);
    for (const Event& e : f.Events()) {
      CHECK(e.kind == Event::Kind::kPullReady);
      CHECK(e.destination == 0x9000);
      CHECK(e.destination_key == 3);
      answered.push_back(e.token.lane);
      CHECK(f.Numbers(e.view).size() == (e.token.lane == 0 ? 6 : 2));
    }
  }
  CHECK(answered == std::vector<uint32_t>{1, 0});
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("totals that cannot contain all partial norms are refused") {
  NormFixture f(Clipped(1));
  CHECK(f.Replicate(0, f.all, 0, {1, 0}).answer.status == ReplyStatus::kWrongStep);
  f.Push(0, 0, 0, 1);
  CHECK(f.Replicate(0, {0}, 0, {1, 0}).answer.status == ReplyStatus::kWrongStep);
  f.PushAll(0, 1);
  CHECK(f.Replicate(0, f.all, 1, {1, 0}).answer.status == ReplyStatus::kWrongStep);
  CHECK(f.Replicate(0, f.all, 0, {1, 0}, NormKind::kTrust).answer.status ==
        ReplyStatus::kWrongStep);
  CHECK(f.Version(0) == 0);
}

TEST_CASE("a step without pushes has a norm of zero, and commits") {
  NormFixture f(Clipped(1));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (const uint32_t c : f.all) CHECK(f.EndStep(rank, c, 0, 0).answer.status == kOk);
  }
  const PullOutcome parts = f.Ask(0, f.all, 0);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  CHECK(f.Numbers(parts.view) == std::vector<double>(6, 0));
  f.Replicate(0, f.all, 0, {0, 0});
  CHECK(f.Version(3) == 1);
  CHECK(f.Read(3) == Filled(16, 0));
}

TEST_CASE("a worker that leaves between the phases changes neither divisor nor gradient") {
  FixtureOptions o = Clipped(100);
  o.reduction = v1::REDUCTION_MEAN;
  o.workers = 3;
  NormFixture f(o);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (uint32_t c = 0; c < 6; ++c) f.Push(rank, c, 0, 3);
  }
  for (const uint32_t c : f.all) f.EndStep(2, c, 0, 0);
  CHECK(f.Ask(2, f.all, 0).kind == PullOutcome::Kind::kReady);
  f.Depart(2);
  f.Depart(0);
  CHECK(f.Version(0) == 0);
  const PullOutcome parts = f.Ask(1, f.all, 0);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  CHECK(f.Numbers(parts.view)[5] == 16 * 4);  // (3 + 3) / 3
  CHECK(f.Replicate(1, f.all, 0, {384, 0}).answer.status == kOk);
  CHECK(f.Read(5) == Filled(16, -2));
  CHECK(f.commits[0].divisor == 3);
}

TEST_CASE("a deferred request for norms ends with its worker, its lane, its epoch or its table") {
  NormFixture f(Clipped(1));
  const auto one = [&] {
    const std::vector<Event> events = f.Events();
    REQUIRE(events.size() == 1);
    CHECK(events[0].kind == Event::Kind::kPullFailed);
    CHECK(f.engine->counters().deferred == 0);
    return events[0].answer.status;
  };
  f.Ask(0, f.all, 0);
  f.engine->ForgetLane(0);
  CHECK(f.Events().empty());
  CHECK(f.engine->counters().deferred == 0);
  f.Ask(0, f.all, 0);
  f.view.mutable_partitions(static_cast<int>(f.PartitionOf(2)))->set_epoch(9);
  REQUIRE(f.Apply().ok());
  CHECK(one() == ReplyStatus::kWrongEpoch);
  f.Ask(1, f.all, 0);
  f.Depart(1);
  CHECK(one() == ReplyStatus::kExpired);
  f.Ask(0, f.all, 0);
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(one() == ReplyStatus::kUnknownTable);
}

TEST_CASE("partial norms survive a new epoch, and a chunk that waits for totals takes them then") {
  NormFixture f(Clipped(1));
  f.PushAll(0, 1);
  f.view.mutable_partitions(static_cast<int>(f.PartitionOf(2)))->set_epoch(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.Ask(0, f.all, 0).kind == PullOutcome::Kind::kReady);
  CHECK(f.Replicate(0, f.all, 0, {384, 0}).answer.status == kOk);
  for (uint32_t c = 0; c < 6; ++c) CHECK(f.Version(c) == 1);
}

TEST_CASE("a new run of the job begins without the last one's partial norms") {
  NormFixture f(Clipped(1));
  f.PushAll(0, 1);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.Replicate(0, f.all, 0, {384, 0}).answer.status == ReplyStatus::kWrongStep);
  f.PushAll(0, 2);
  const PullOutcome parts = f.Ask(0, f.all, 0);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  CHECK(f.Numbers(parts.view)[0] == 16 * 16);
}

TEST_CASE("totals for a chunk that is being written out are kept until it can commit") {
  FixtureOptions o = Clipped(1);
  o.spares = 0;
  NormFixture f(o);
  const PullOutcome pinned = f.Pull(kFirstWorker, 0, 0);
  f.PushAll(0, 1);
  CHECK(f.Replicate(0, f.all, 0, {384, 0}).answer.status == kOk);
  CHECK(f.Version(0) == 0);
  CHECK(f.Version(1) == 1);
  CHECK(f.Replicate(1, {0}, 0, {384, 0}).group_status[0] == ReplyStatus::kDuplicate);
  f.engine->Unpin(pinned.view.pin);
  CHECK(f.Version(0) == 1);
}

TEST_CASE("without memory for the sum contributions are owed, and no partial norm is computed") {
  NormFixture f(Clipped(1));
  f.allocator.limit = f.allocator.used;
  CHECK(f.Push(0, 0, 0, 1).answer.status == ReplyStatus::kResourceExhausted);
  f.allocator.limit = SIZE_MAX;
  CHECK(f.Push(1, 0, 0, 1).held);
  CHECK(f.Ask(0, {0}, 0, NormKind::kGradient, false).answer.status == ReplyStatus::kTooEarly);
  CHECK_FALSE(f.Push(0, 0, 0, 1).held);
  f.PushAll(0, 1);
  CHECK(f.Numbers(f.Ask(0, f.all, 0).view)[0] == 16 * 4);
}

TEST_CASE("norms of tables without clipping, and by observers, are refused") {
  FixtureOptions plain;
  plain.chunks = 6;
  NormFixture f(plain);
  CHECK(f.Ask(0, f.all, 0).answer.status == ReplyStatus::kMalformed);
  CHECK(f.Replicate(0, f.all, 0, {1, 0}).answer.status == ReplyStatus::kMalformed);
  NormFixture clipped(Clipped(1));
  CHECK(clipped.Ask(0, clipped.all, 0, NormKind::kTrust).answer.status == ReplyStatus::kMalformed);
  FixtureOptions observed = Clipped(1);
  observed.observers = 1;
  NormFixture o(observed);
  NormsRequest r;
  o.norm_groups = o.GroupsOf({0}, 0, NormKind::kGradient);
  r.groups = o.norm_groups;
  r.worker = 2000;
  r.table = kTable;
  CHECK(o.engine->Norms(r).answer.status == ReplyStatus::kPermissionDenied);
}

TEST_CASE("totals that are not finite bound finite numbers, and leave a NaN to the policy") {
  const double infinity = std::numeric_limits<double>::infinity();
  NormFixture infinite(Clipped(1));
  infinite.PushAll(0, 1);
  infinite.Replicate(0, infinite.all, 0, {infinity, 0});
  CHECK(infinite.Read(0) == Filled(16, 0));
  FixtureOptions apply = Clipped(1);
  apply.non_finite = v1::NON_FINITE_APPLY;
  NormFixture nan(apply);
  nan.PushAll(0, 1);
  nan.Replicate(0, nan.all, 0, {double{kNan}, 0});
  CHECK(nan.Read(0) == Filled(16, -2));  // not scaled: as by the norm of a chunk
}

TEST_CASE("lamb: partial norms are of weights and update, and measuring them changes nothing") {
  NormFixture f(Lamb());
  f.PushAll(0, 1);
  const PullOutcome parts = f.Ask(0, f.all, 0, NormKind::kTrust);
  REQUIRE(parts.kind == PullOutcome::Kind::kReady);
  const std::vector<double> numbers = f.Numbers(parts.view);
  REQUIRE(numbers.size() == 12);
  CHECK(numbers[0] == 16 * 4);                                  // weights of 2
  CHECK(numbers[1] == Approx(16 * 1.02 * 1.02).epsilon(1e-5));  // m / sqrt(v) = 1, + 0.01 * 2
  CHECK(f.Read(0) == Filled(16, 2));
  CHECK(f.Numbers(f.Ask(1, f.all, 0, NormKind::kTrust).view) == numbers);
  const NormTotals totals = {6 * numbers[0], 6 * numbers[1]};
  CHECK(f.Replicate(0, f.all, 0, totals, NormKind::kTrust).answer.status == kOk);
  for (uint32_t c = 0; c < 6; ++c) {
    CHECK(f.Read(c)[0] == Approx(2 - 0.1 * (2 / 1.02) * 1.02).epsilon(1e-5));
  }
}

TEST_CASE("lamb with clipping: the update's norm is measured after the gradient's total is known") {
  NormFixture f(Lamb(1));
  CHECK(f.Ask(1, f.all, 0, NormKind::kTrust).kind == PullOutcome::Kind::kDeferred);
  f.PushAll(0, 1);
  CHECK(f.Events().empty());
  CHECK(f.Replicate(0, f.all, 0, {1, 1}, NormKind::kTrust).answer.status ==
        ReplyStatus::kWrongStep);
  CHECK(f.Replicate(0, f.all, 0, {384, 0}).answer.status == kOk);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  const std::vector<double> numbers = f.Numbers(events[0].view);
  CHECK(f.Version(0) == 0);
  CHECK(f.Replicate(1, f.all, 0, {384, 0}).group_status[0] == ReplyStatus::kDuplicate);
  const NormTotals totals = {6 * numbers[0], 6 * numbers[1]};
  CHECK(f.Replicate(1, f.all, 0, totals, NormKind::kTrust).answer.status == kOk);
  CHECK(f.Version(0) == 1);
  CHECK(f.Replicate(0, f.all, 0, totals, NormKind::kTrust).group_status[0] ==
        ReplyStatus::kDuplicate);
}

TEST_CASE("lamb: the trust ratio is 1 where a norm is zero or not finite") {
  CHECK(TrustRatio(4, 16) == 0.5f);
  CHECK(TrustRatio(0, 4) == 1);
  CHECK(TrustRatio(4, 0) == 1);
  CHECK(TrustRatio(0, 0) == 1);
  CHECK(TrustRatio(4, std::numeric_limits<double>::infinity()) == 1);
  CHECK(TrustRatio(std::numeric_limits<double>::infinity(), 4) == 1);
  CHECK(TrustRatio(double{kNan}, 4) == 1);
  CHECK(TrustRatio(-1, 4) == 1);
}

}  // namespace norms_test
}  // namespace verbena::shard
