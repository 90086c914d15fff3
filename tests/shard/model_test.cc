// The engine under random schedules, against a model simple enough to be believed: contributions
// are kept as they came and a step's result is computed by a plain loop once the step is complete.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

struct Plan {
  uint32_t seed;
  FixtureOptions options;
  bool departures;
};

Plan MakePlan(uint32_t seed, v1::Consistency consistency) {
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Plan plan;
  plan.seed = seed;
  plan.departures = pick(2) == 0;
  FixtureOptions& o = plan.options;
  o.consistency = consistency;
  o.workers = 1 + pick(4);
  o.partitions = 1 + pick(3);
  o.chunks = 1 + pick(5);
  o.chunk_elements = 16;
  o.last_elements = 1 + pick(16);
  o.reduction = pick(2) == 0 ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
  o.optimizer = consistency == v1::CONSISTENCY_SYNC && pick(2) == 0 ? "momentum" : "sgd";
  o.rate = 0.5;
  o.initial = 3;
  // Departures reach into a step that waits for a buffer, which the model does not know about.
  o.spares = plan.departures ? 64 : pick(3);
  return plan;
}

// What a worker pushes: a function of who, where and when. Integers add without rounding in any
// order, so async has one right answer too; sync gets fractions, where the order shows.
std::vector<float> Gradient(const Plan& plan, uint32_t rank, uint32_t chunk, uint64_t sequence,
                            uint32_t n) {
  std::mt19937 random(plan.seed * 7919 + rank * 131 + chunk * 17 + static_cast<uint32_t>(sequence));
  std::vector<float> g(n);
  for (float& x : g) {
    x = static_cast<float>(static_cast<int>(random() % 201) - 100);
    if (plan.options.consistency == v1::CONSISTENCY_SYNC) x /= 7;
  }
  if (random() % 16 == 0) g[random() % n] = kNan;
  return g;
}

bool IsBad(const std::vector<float>& g) {
  return std::any_of(g.begin(), g.end(), [](float x) { return !(x == x); });
}

// ---- sync ----

class SyncModel {
 public:
  explicit SyncModel(const Plan& plan) : plan_(plan), o_(plan.options) {
    chunks_.resize(o_.chunks);
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      const uint32_t n = c + 1 == o_.chunks ? o_.last_elements : o_.chunk_elements;
      chunks_[c].history.push_back(Filled(n, static_cast<float>(o_.initial)));
      chunks_[c].velocity = Filled(n, 0);
      chunks_[c].partition = PartitionOfChunk(kTable, c, o_.partitions);
    }
  }
  void Pushed(uint32_t rank, uint32_t c, uint64_t step) { chunks_[c].pushed[step].insert(rank); }
  void Forgotten(uint32_t rank, uint32_t c, uint64_t step) { chunks_[c].pushed[step].erase(rank); }
  void Ended(uint32_t rank, uint32_t partition, uint64_t step,
             const std::vector<uint32_t>& listed) {
    ended_.insert({rank, partition, step});
    for (const uint32_t c : listed) chunks_[c].promised.insert({rank, step});
  }
  void Departed(uint32_t rank) { departed_.insert(rank); }
  bool departed(uint32_t rank) const { return departed_.count(rank) > 0; }

  // Commits whatever is complete.
  void Run() {
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      while (TryCommit(c)) {
      }
    }
  }
  uint64_t version(uint32_t c) const { return chunks_[c].history.size() - 1; }
  const std::vector<float>& at(uint32_t c, uint64_t version) const {
    return chunks_[c].history[version];
  }

 private:
  struct ChunkModel {
    uint32_t partition = 0;
    std::vector<std::vector<float>> history;  // by version
    std::vector<float> velocity;
    std::map<uint64_t, std::set<uint32_t>> pushed;     // step -> ranks that have arrived
    std::set<std::pair<uint32_t, uint64_t>> promised;  // (rank, step) counted by an end-step
  };

  bool TryCommit(uint32_t c) {
    ChunkModel& m = chunks_[c];
    const uint64_t step = m.history.size() - 1;
    const std::set<uint32_t>& pushed = m.pushed[step];
    uint32_t listed = 0;
    for (uint32_t r = 0; r < o_.workers; ++r) {
      if (pushed.count(r) > 0) {
        ++listed;
      } else if (!departed(r)) {
        if (ended_.count({r, m.partition, step}) == 0 || m.promised.count({r, step}) > 0) {
          return false;
        }
        ++listed;
      }
    }
    if (listed == 0) return false;
    Commit(&m, c, step, pushed, listed);
    return true;
  }

  void Commit(ChunkModel* m, uint32_t c, uint64_t step, const std::set<uint32_t>& ranks,
              uint32_t listed) {
    const auto n = static_cast<uint32_t>(m->velocity.size());
    std::vector<float> sum = Filled(n, 0);
    bool first = true;
    for (const uint32_t r : ranks) {
      const std::vector<float> g = Gradient(plan_, r, c, step, n);
      if (IsBad(g)) continue;
      for (uint32_t i = 0; i < n; ++i) sum[i] = first ? g[i] : sum[i] + g[i];
      first = false;
    }
    std::vector<float> w = m->history.back();
    for (uint32_t i = 0; i < n; ++i) {
      float g = sum[i];
      if (o_.reduction == v1::REDUCTION_MEAN) g = g / static_cast<float>(listed);
      if (o_.optimizer == "momentum") {
        m->velocity[i] = 0.9f * m->velocity[i] + g;
        g = m->velocity[i];
      }
      w[i] = w[i] - 0.5f * g;
    }
    m->history.push_back(w);
  }

  const Plan plan_;
  const FixtureOptions o_;
  std::vector<ChunkModel> chunks_;
  std::set<std::tuple<uint32_t, uint32_t, uint64_t>> ended_;
  std::set<uint32_t> departed_;
};

class SyncRun {
 public:
  explicit SyncRun(const Plan& plan)
      : plan_(plan), o_(plan.options), f_(plan.options), model_(plan), random_(plan.seed + 1) {
    workers_.resize(o_.workers);
    for (uint32_t r = 0; r < o_.workers; ++r) {
      workers_[r].lane = next_lane_++;
      StartStep(r);
    }
  }

  void Run() {
    for (int i = 0; i < 400; ++i) {
      Act();
      Check();
    }
    // Faults stop; everybody finishes two more steps.
    while (!pins_.empty()) Release(0);
    uint64_t goal = 0;
    for (const Worker& w : workers_) goal = std::max(goal, w.step + 2);
    for (int i = 0; i < 5000 && !Reached(goal); ++i) {
      for (uint32_t r = 0; r < o_.workers; ++r) {
        if (!model_.departed(r) && workers_[r].step < goal) Work(r);
      }
      Check();
    }
    CHECK(Reached(goal));
    CHECK(f_.engine->counters().held == 0);
  }

 private:
  struct Held {
    uint32_t rank, chunk;
    uint64_t step;
  };
  struct Worker {
    uint32_t lane = 0;
    uint64_t step = 0;
    std::vector<uint32_t> to_push;  // of this step, in order
    std::vector<uint32_t> chosen;   // all of this step
    std::set<uint32_t> ended;       // partitions
  };
  struct Pinned {
    ChunkView view;
    std::vector<float> values;
  };

  uint32_t Pick(size_t n) { return static_cast<uint32_t>(random_() % n); }

  void StartStep(uint32_t r) {
    Worker& w = workers_[r];
    w.chosen.clear();
    w.ended.clear();
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      if (Pick(4) != 0) w.chosen.push_back(c);
    }
    std::shuffle(w.chosen.begin(), w.chosen.end(), random_);
    w.to_push = w.chosen;
  }

  bool Reached(uint64_t goal) {
    for (uint32_t r = 0; r < o_.workers; ++r) {
      if (!model_.departed(r) && workers_[r].step < goal) return false;
    }
    return true;
  }

  std::vector<uint32_t> ChosenIn(uint32_t r, uint32_t partition) {
    std::vector<uint32_t> in;
    for (const uint32_t c : workers_[r].chosen) {
      if (f_.PartitionOf(c) == partition) in.push_back(c);
    }
    return in;
  }

  // The next thing rank r would do: push, end the step on a partition, or go to the next step.
  void Work(uint32_t r) {
    Worker& w = workers_[r];
    if (!w.to_push.empty()) {
      const uint32_t c = w.to_push.back();
      w.to_push.pop_back();
      Send(r, c, w.step);
      return;
    }
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      if (w.ended.count(p) > 0) continue;
      End(r, p);
      return;
    }
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      if (f_.Version(c) <= w.step) return;
    }
    ++w.step;
    StartStep(r);
  }

  void Send(uint32_t r, uint32_t c, uint64_t step) {
    const std::vector<float> g = Gradient(plan_, r, c, step, f_.elements(c));
    const PushOutcome out =
        f_.engine->Push(f_.PushOf(kFirstWorker + r, c, step, g, workers_[r].lane, next_operation_));
    if (out.held) {
      held_[next_operation_] = {r, c, step};
    } else {
      CHECK(out.answer.status == (IsBad(g) ? Status::kNonFinite : Status::kOk));
    }
    ++next_operation_;
    model_.Pushed(r, c, step);
  }

  void End(uint32_t r, uint32_t p) {
    Worker& w = workers_[r];
    const std::vector<uint32_t> in = ChosenIn(r, p);
    Group g = {p,
               0,
               f_.view.partitions(static_cast<int>(p)).epoch(),
               w.step,
               static_cast<uint32_t>(in.size()),
               0};
    // One more than were sent: refused, with no effect.
    ++g.count;
    const bool has_chunks = HasChunks(p);
    Status s = EndGroup(r, g);
    if (has_chunks && s != Status::kDuplicate) CHECK(s == Status::kTooEarly);
    --g.count;
    s = EndGroup(r, g);
    CHECK((s == Status::kOk || s == Status::kDuplicate));
    w.ended.insert(p);
    model_.Ended(r, p, w.step, in);
  }
  bool HasChunks(uint32_t p) {
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      if (f_.PartitionOf(c) == p) return true;
    }
    return false;
  }
  Status EndGroup(uint32_t r, const Group& g) {
    return f_.engine->EndStep({{workers_[r].lane, 0, 0}, kFirstWorker + r, kTable, {&g, 1}, 0})
        .group_status[0];
  }

  // A lane dies: what was held on it is sent again on a new one.
  void LoseLane(uint32_t r) {
    f_.engine->ForgetLane(workers_[r].lane);
    workers_[r].lane = next_lane_++;
    std::vector<Held> again;
    for (auto it = held_.begin(); it != held_.end();) {
      if (it->second.rank == r) {
        model_.Forgotten(r, it->second.chunk, it->second.step);
        again.push_back(it->second);
        it = held_.erase(it);
      } else {
        ++it;
      }
    }
    if (Pick(2) == 0) Check();
    for (const Held& h : again) Resend(h);
  }
  void Resend(const Held& h) {
    const std::vector<float> g = Gradient(plan_, h.rank, h.chunk, h.step, f_.elements(h.chunk));
    const PushOutcome out = f_.engine->Push(f_.PushOf(kFirstWorker + h.rank, h.chunk, h.step, g,
                                                      workers_[h.rank].lane, next_operation_));
    if (out.held) {
      held_[next_operation_] = h;
    } else {
      CHECK((out.answer.status == Status::kOk || out.answer.status == Status::kDuplicate));
    }
    ++next_operation_;
    model_.Pushed(h.rank, h.chunk, h.step);
  }

  void NewEpoch() {
    v1::Partition* p = f_.view.mutable_partitions(static_cast<int>(Pick(o_.partitions)));
    p->set_epoch(p->epoch() + 1);
    REQUIRE(f_.Apply().ok());
    DrainEvents();
  }

  void Depart(uint32_t r) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < o_.workers; ++i) live += model_.departed(i) ? 0 : 1;
    if (live < 2 || model_.departed(r)) return;
    for (auto it = held_.begin(); it != held_.end(); ++it) {
      if (it->second.rank == r) model_.Forgotten(r, it->second.chunk, it->second.step);
    }
    model_.Departed(r);
    f_.Depart(r);
    DrainEvents();
    if (Pick(2) == 0) f_.engine->ForgetLane(workers_[r].lane);
  }

  void DrainEvents() {
    std::vector<Held> again;
    for (const Event& e : f_.Events()) {
      REQUIRE(e.kind == Event::Kind::kPushDone);
      const auto it = held_.find(e.token.operation);
      REQUIRE(it != held_.end());
      const Held h = it->second;
      held_.erase(it);
      if (e.answer.status == Status::kWrongEpoch) {
        model_.Forgotten(h.rank, h.chunk, h.step);
        again.push_back(h);
      } else {
        CHECK(e.answer.status == (model_.departed(h.rank) ? Status::kExpired : Status::kOk));
      }
    }
    for (const Held& h : again) {
      if (!model_.departed(h.rank)) Resend(h);
    }
  }
  void Act() {
    const uint32_t r = Pick(o_.workers);
    const uint32_t what = Pick(40);
    if (what < 30) {
      if (!model_.departed(r)) Work(r);
    } else if (what < 33) {
      const uint32_t c = Pick(o_.chunks);
      const PullOutcome out = f_.Pull(f_.job()->members(0).incarnation(), c, 0);
      REQUIRE(out.kind == PullOutcome::Kind::kReady);
      pins_.push_back({out.view, Fixture::Values(out.view)});
      CHECK(SameBits(pins_.back().values, model_.at(c, out.view.version)));
    } else if (what < 37) {
      if (!pins_.empty()) Release(Pick(pins_.size()));
    } else if (what == 37) {
      if (!model_.departed(r)) LoseLane(r);
    } else if (what == 38) {
      NewEpoch();
    } else if (plan_.departures && Pick(8) == 0) {
      Depart(r);
    }
  }

  void Release(size_t i) {
    CHECK(SameBits(Fixture::Values(pins_[i].view), pins_[i].values));
    f_.engine->Unpin(pins_[i].view.pin);
    pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(i));
  }

  void Check() {
    DrainEvents();
    model_.Run();
    for (uint32_t c = 0; c < o_.chunks; ++c) {
      uint64_t version = 0;
      const std::vector<float> values = f_.Read(c, &version);
      REQUIRE(version <= model_.version(c));
      if (pins_.empty()) REQUIRE(version == model_.version(c));
      REQUIRE(SameBits(values, model_.at(c, version)));
    }
  }

  const Plan plan_;
  const FixtureOptions o_;
  Fixture f_;
  SyncModel model_;
  std::mt19937 random_;
  std::vector<Worker> workers_;
  std::map<uint32_t, Held> held_;  // by operation
  std::vector<Pinned> pins_;
  uint32_t next_operation_ = 1;
  uint32_t next_lane_ = 1;
};

TEST_CASE("sync equals the model under random schedules and faults") {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    SyncRun(MakePlan(seed, v1::CONSISTENCY_SYNC)).Run();
  }
}

// ---- async ----

struct AsyncWorker {
  uint32_t lane = 0;
  struct Sent {
    uint32_t chunk;
    uint64_t sequence;
    uint32_t operation;
    bool settled;
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
          CHECK(status ==
                (IsBad(gradient(r, s.chunk, s.sequence)) ? Status::kNonFinite : Status::kOk));
        }
      }
    }
  };
  const auto post = [&](uint32_t r, AsyncWorker::Sent* s) {
    s->operation = operation++;
    const PushOutcome out =
        f.engine->Push(f.PushOf(kFirstWorker + r, s->chunk, s->sequence,
                                gradient(r, s->chunk, s->sequence), workers[r].lane, s->operation));
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
      sent.push_back({c, sent.size() + 1, 0, false});
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
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    RunAsync(MakePlan(seed, v1::CONSISTENCY_ASYNC));
  }
}

}  // namespace
}  // namespace verbena::shard
