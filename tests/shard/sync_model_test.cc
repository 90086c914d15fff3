// The engine's sync tables under random schedules, lost lanes, new epochs and departures, against
// the model of sync_model.h.
#include "tests/shard/sync_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

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
    std::vector<uint32_t> refused;  // of this step, not settled yet
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
    if (!w.refused.empty() && (w.to_push.empty() || Pick(2) == 0)) return SendRefused(r);
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
    ++next_operation_;
    if (IsBad(g)) {
      CHECK(out.answer.status == Status::kNonFinite);
      workers_[r].refused.push_back(c);
      return;
    }
    if (out.held) {
      held_[next_operation_ - 1] = {r, c, step};
    } else {
      CHECK(out.answer.status == Status::kOk);
    }
    model_.Pushed(r, c, step);
  }
  // The answer to a refused push was lost, or has come.
  void SendRefused(uint32_t r) {
    Worker& w = workers_[r];
    const uint32_t c = w.refused.back();
    w.refused.pop_back();
    if (Pick(3) == 0) return Send(r, c, w.step);
    const PushOutcome out =
        f_.engine->Push(f_.PushOf(kFirstWorker + r, c, w.step, {}, w.lane, next_operation_++));
    CHECK(out.answer.status == Status::kOk);
    model_.Pushed(r, c, w.step);
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

  // A lane dies: contributions held on it are sent again on a new one.
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
  for (uint32_t seed = 1; seed <= test::SeedCount(400); ++seed) {
    INFO("seed " << seed);
    SyncRun(MakePlan(seed, v1::CONSISTENCY_SYNC)).Run();
  }
}

}  // namespace
}  // namespace verbena::shard
