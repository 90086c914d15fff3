// The engine's async tables under random schedules and lost lanes: integer gradients have one right
// sum, whatever the order they are applied in.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "tests/shard/model_plan.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

struct AsyncWorker {
  uint32_t lane = 0;
  struct Sent {
    uint32_t chunk;
    uint64_t sequence;
    uint32_t operation;
    bool settled;
    bool refused;  // so an empty push takes its sequence
  };
  std::vector<std::vector<Sent>> sent;  // by partition, in order of sequence
};

void RunAsync(const Plan& plan) {
  const FixtureOptions& o = plan.options;
  Fixture f(o);
  std::mt19937 random(plan.seed + 2);
  const auto pick = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
  std::vector<AsyncWorker> workers(o.workers);
  uint32_t lane = 1;
  uint32_t operation = 1;
  for (AsyncWorker& w : workers) {
    w.lane = lane++;
    w.sent.resize(o.partitions);
  }
  std::vector<uint64_t> pins;
  const auto gradient = [&](uint32_t r, uint32_t c, uint64_t sequence) {
    return Gradient(plan, r, c, sequence, f.elements(c));
  };
  const auto settle = [&](uint32_t op, Status status) {
    for (uint32_t r = 0; r < o.workers; ++r) {
      for (auto& sent : workers[r].sent) {
        for (auto& s : sent) {
          if (s.operation != op) continue;
          REQUIRE_FALSE(s.settled);
          s.settled = true;
          CHECK(status == Status::kOk);
          CHECK(s.refused == IsBad(gradient(r, s.chunk, s.sequence)));
        }
      }
    }
  };
  const auto push = [&](uint32_t r, AsyncWorker::Sent* s) {
    s->operation = operation++;
    const std::vector<float> numbers =
        s->refused ? std::vector<float>{} : gradient(r, s->chunk, s->sequence);
    return f.engine->Push(
        f.PushOf(kFirstWorker + r, s->chunk, s->sequence, numbers, workers[r].lane, s->operation));
  };
  const auto post = [&](uint32_t r, AsyncWorker::Sent* s) {
    PushOutcome out = push(r, s);
    if (!out.held && out.answer.status == Status::kNonFinite) {
      CHECK(IsBad(gradient(r, s->chunk, s->sequence)));
      s->refused = true;
      out = push(r, s);
    }
    if (out.held) return;
    if (s->settled) {
      CHECK(out.answer.status == Status::kDuplicate);
      return;
    }
    settle(s->operation, out.answer.status);
  };
  const auto drain = [&] {
    for (const Event& e : f.Events()) {
      REQUIRE(e.kind == Event::Kind::kPushDone);
      settle(e.token.operation, e.answer.status);
    }
  };
  for (int i = 0; i < 300; ++i) {
    const uint32_t r = pick(o.workers);
    const uint32_t what = pick(20);
    if (what < 12) {
      const uint32_t c = pick(o.chunks);
      auto& sent = workers[r].sent[f.PartitionOf(c)];
      sent.push_back({c, sent.size() + 1, 0, false, false});
      post(r, &sent.back());
    } else if (what < 15) {
      pins.push_back(f.Pull(kFirstWorker, pick(o.chunks), 0).view.pin);
    } else if (what < 19) {
      if (!pins.empty()) {
        f.engine->Unpin(pins.back());
        pins.pop_back();
      }
    } else {
      // The lane dies; some settled records' replies were lost with it, so they come again too.
      drain();
      f.engine->ForgetLane(workers[r].lane);
      workers[r].lane = lane++;
      for (auto& sent : workers[r].sent) {
        size_t from = 0;
        while (from < sent.size() && sent[from].settled) ++from;
        for (size_t k = from - std::min<size_t>(from, pick(3)); k < sent.size(); ++k) {
          post(r, &sent[k]);
        }
      }
    }
    drain();
  }
  for (const uint64_t pin : pins) f.engine->Unpin(pin);
  drain();
  CHECK(f.engine->counters().held == 0);
  for (uint32_t c = 0; c < o.chunks; ++c) {
    std::vector<double> sum(f.elements(c));
    uint64_t applies = 0;
    for (uint32_t r = 0; r < o.workers; ++r) {
      for (const auto& s : workers[r].sent[f.PartitionOf(c)]) {
        REQUIRE(s.settled);
        const std::vector<float> g = gradient(r, s.chunk, s.sequence);
        if (s.chunk != c || IsBad(g)) continue;
        ++applies;
        for (size_t k = 0; k < g.size(); ++k) sum[k] += double{g[k]};
      }
    }
    const double divisor = o.reduction == v1::REDUCTION_MEAN ? o.workers : 1;
    uint64_t version = 0;
    const std::vector<float> values = f.Read(c, &version);
    CHECK(version == applies);
    for (size_t k = 0; k < values.size(); ++k) {
      CHECK(double{values[k]} == Approx(3 - 0.5 * sum[k] / divisor).margin(0.01));
    }
  }
}

TEST_CASE("async applies every push exactly once under random schedules and lost lanes") {
  for (uint32_t seed = 1; seed <= test::SeedCount(300); ++seed) {
    INFO("seed " << seed);
    RunAsync(MakePlan(seed, v1::CONSISTENCY_ASYNC));
  }
}

}  // namespace
}  // namespace verbena::shard
