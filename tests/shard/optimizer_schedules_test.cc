// Every optimizer under every kind of schedule, against its formula in double precision: after some
// hundred steps its error is at most three times that of the same formula as a plain f32 loop.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "shard/optimizer/optimizer.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace schedules_test {
namespace optimizer_schedules_test {

constexpr size_t kElements = 64;
constexpr uint64_t kSteps = 400;

template <typename T>
struct Element {
  T w = T(0.5), a = 0, b = 0;
};
template <typename T>
using Elements = std::vector<Element<T>>;

template <typename T>
struct Rates {
  T now, before;  // of this apply, and of the last one with a rate above 0
  uint64_t t;
};

template <typename T>
using Formula = void (*)(const Rates<T>&, const std::vector<T>& g, Elements<T>* elements);

// Applies `update`, a formula for one element, to all.
template <typename T, typename Update>
void Each(const std::vector<T>& g, Elements<T>* elements, Update update) {
  for (size_t i = 0; i < g.size(); ++i) update(g[i], &(*elements)[i]);
}

template <typename T>
T AdamDirection(uint64_t t, T g, T epsilon, Element<T>* e) {
  const T b1 = T(0.9f);
  const T b2 = T(0.999f);
  e->a = b1 * e->a + (1 - b1) * g;
  e->b = b2 * e->b + (1 - b2) * g * g;
  const T mean = e->a / (1 - std::pow(b1, T(t)));
  return mean / (std::sqrt(e->b / (1 - std::pow(b2, T(t)))) + epsilon);
}

template <typename T>
void Lamb(const Rates<T>& r, const std::vector<T>& g, Elements<T>* elements) {
  std::vector<T> u;
  T weights = 0;
  T updates = 0;
  Each<T>(g, elements, [&](T x, Element<T>* e) {
    u.push_back(AdamDirection(r.t, x, T(1e-6), e) + T(0.01) * e->w);
    weights += e->w * e->w;
    updates += u.back() * u.back();
  });
  const T trust = weights > 0 && updates > 0 ? std::sqrt(weights) / std::sqrt(updates) : T(1);
  for (size_t i = 0; i < u.size(); ++i) (*elements)[i].w -= r.now * trust * u[i];
}

template <typename T>
void Ftrl(const Rates<T>& r, const std::vector<T>& g, Elements<T>* elements) {
  if (r.now == 0) return;
  Each<T>(g, elements, [&](T x, Element<T>* e) {
    const T l1 = T(0.25);
    const T n = e->b + x * x;
    const T sigma = (1 + std::sqrt(n)) / r.now - (1 + std::sqrt(e->b)) / r.before;
    e->a += x - sigma * e->w;
    e->b = n;
    const T sign = e->a < 0 ? T(-1) : T(1);
    e->w =
        std::abs(e->a) <= l1 ? T(0) : -(e->a - sign * l1) / ((1 + std::sqrt(n)) / r.now + T(0.125));
  });
}

template <typename T>
std::map<std::string, Formula<T>> Formulas() {
  using R = const Rates<T>&;
  using G = const std::vector<T>&;
  using E = Elements<T>*;
  return {
      {"sgd",
       [](R r, G g, E all) { Each<T>(g, all, [&](T x, Element<T>* e) { e->w -= r.now * x; }); }},
      {"momentum",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->a = T(0.9f) * e->a + x;
           e->w -= r.now * e->a;
         });
       }},
      {"nesterov",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->a = T(0.9f) * e->a + x;
           e->w -= r.now * (x + T(0.9f) * e->a);
         });
       }},
      {"adagrad",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->a += x * x;
           e->w -= r.now * x / (std::sqrt(e->a) + T(1e-10));
         });
       }},
      // Rows of one number, so that the mean of the squares is the square.
      {"rowwise_adagrad",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->a += x * x;
           e->w -= r.now * x / (std::sqrt(e->a) + T(1e-8));
         });
       }},
      {"rmsprop",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->a = T(0.9f) * e->a + (1 - T(0.9f)) * x * x;
           e->w -= r.now * x / (std::sqrt(e->a) + T(1e-8));
         });
       }},
      {"adam",
       [](R r, G g, E all) {
         Each<T>(g, all,
                 [&](T x, Element<T>* e) { e->w -= r.now * AdamDirection(r.t, x, T(1e-8), e); });
       }},
      {"adamw",
       [](R r, G g, E all) {
         Each<T>(g, all, [&](T x, Element<T>* e) {
           e->w -= r.now * T(0.01) * e->w;
           e->w -= r.now * AdamDirection(r.t, x, T(1e-8), e);
         });
       }},
      {"lamb", Lamb<T>},
      {"ftrl", Ftrl<T>},
  };
}

std::vector<v1::Schedule> Schedules() {
  std::vector<v1::Schedule> kinds(6);
  kinds[1].set_kind(v1::Schedule::STEP);
  kinds[1].set_period(60);
  kinds[1].set_factor(0.5);
  kinds[2].set_kind(v1::Schedule::COSINE);
  kinds[2].set_period(350);
  kinds[2].set_floor(1e-4);
  kinds[3].set_kind(v1::Schedule::PIECEWISE);  // up, down, a time without learning, and on
  for (const uint64_t b : {40, 90, 150, 160, 300}) kinds[3].add_boundaries(b);
  for (const double r : {0.1, 0.001, 0.0, 0.02, 0.005}) kinds[3].add_rates(r);
  kinds[4].set_kind(v1::Schedule::PIECEWISE);  // no learning at first
  kinds[4].add_boundaries(5);
  kinds[4].add_rates(0.05);
  kinds[5].set_kind(v1::Schedule::CONSTANT);
  std::vector<v1::Schedule> all;
  for (const v1::Schedule& kind : kinds) {
    all.push_back(kind);
    all.push_back(kind);
    all.back().set_warmup_steps(50);
  }
  return all;
}

v1::Optimizer SpecOf(const std::string& name, const v1::Schedule& schedule) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(schedule.boundaries_size() == 1 ? 0 : 0.05);
  *spec.mutable_schedule() = schedule;
  if (name == "ftrl") {
    (*spec.mutable_parameters())["l1"] = 0.25;
    (*spec.mutable_parameters())["l2"] = 0.125;
  }
  return spec;
}

template <typename T>
class Reference {
 public:
  Reference(const std::string& name, const v1::Optimizer& spec)
      : formula_(Formulas<T>().at(name)), schedule_(spec.rate(), spec.schedule()) {}
  void Step(uint64_t t, const std::vector<float>& g) {
    const T now = static_cast<T>(schedule_.RateAt(t));
    if (before_ == 0) before_ = now;
    formula_({now, before_, t}, std::vector<T>(g.begin(), g.end()), &elements_);
    if (now > 0) before_ = now;
  }
  T w(size_t i) const { return elements_[i].w; }

 private:
  const Formula<T> formula_;
  const Schedule schedule_;
  T before_ = 0;
  Elements<T> elements_ = Elements<T>(kElements);
};

// The product's, over the whole vector; a row-wise one has rows of one number.
class Ours {
 public:
  explicit Ours(const v1::Optimizer& spec) : optimizer_(*MakeOptimizer(spec)) {}
  void Step(uint64_t t, const std::vector<float>& g) {
    ApplyScalars scalars = optimizer_->Prepare(t);
    float* arrays[2] = {state_[0].data(), state_[1].data()};
    if (optimizer_->has_trust_ratio()) {
      SquaredNorm weights;
      SquaredNorm update;
      optimizer_->MeasureTrust(BestIsa(), scalars, w_.data(), arrays, g.data(), kElements, &weights,
                               &update);
      scalars.trust = TrustRatio(weights.Total(), update.Total());
    }
    const size_t block = optimizer_->row_wise() ? 1 : kElements;
    for (size_t i = 0; i < kElements; i += block) {
      float* at[2] = {arrays[0] + i, arrays[1] + i};
      optimizer_->Apply(BestIsa(), scalars, w_.data() + i, w_.data() + i, at, g.data() + i, block);
    }
  }
  float w(size_t i) const { return w_[i]; }

 private:
  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> w_ = std::vector<float>(kElements, 0.5f);
  std::vector<float> state_[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
};

void Compare(const std::string& name, const v1::Schedule& schedule, uint32_t seed) {
  const v1::Optimizer spec = SpecOf(name, schedule);
  Ours ours(spec);
  Reference<double> exact(name, spec);
  Reference<float> plain(name, spec);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.1f, 1);
  for (uint64_t t = 1; t <= kSteps; ++t) {
    std::vector<float> g(kElements);
    for (float& x : g) x = random() % 4 == 0 ? 0 : normal(random);
    ours.Step(t, g);
    exact.Step(t, g);
    plain.Step(t, g);
  }
  double error = 0;
  double loop = 0;
  double moved = 0;
  for (size_t i = 0; i < kElements; ++i) {
    error += std::pow(ours.w(i) - exact.w(i), 2);
    loop += std::pow(plain.w(i) - exact.w(i), 2);
    moved += std::abs(exact.w(i) - 0.5);
  }
  INFO(spec.ShortDebugString() << " seed " << seed);
  CHECK(moved > 1e-2);
  CHECK(std::sqrt(error) <= 3 * std::sqrt(loop));
}

TEST_CASE("every optimizer under every schedule follows its formula in double precision") {
  for (const auto& [name, formula] : Formulas<double>()) {
    for (const v1::Schedule& schedule : Schedules()) {
      for (uint32_t seed = 1; seed <= 3; ++seed) Compare(name, schedule, seed);
    }
  }
}

TEST_CASE("the formulas above cover all optimizers") {
  v1::Optimizer unknown;
  unknown.set_name("?");
  const std::string expected = "unknown optimizer \"?\"; known: ";
  std::vector<std::string> names;
  for (const auto& [name, formula] : Formulas<double>()) names.push_back("\"" + name + "\"");
  CHECK(CheckOptimizer(unknown).message() == expected + absl::StrJoin(names, ", "));
}

TEST_CASE("the schedules above cover all kinds, with warm-up and without") {
  const google::protobuf::EnumDescriptor* kinds = v1::Schedule::Kind_descriptor();
  for (int i = 0; i < kinds->value_count(); ++i) {
    INFO(kinds->value(i)->name());
    int with = 0, without = 0;
    for (const v1::Schedule& schedule : Schedules()) {
      if (schedule.kind() != kinds->value(i)->number()) continue;
      ++(schedule.warmup_steps() > 0 ? with : without);
    }
    CHECK(with > 0);
    CHECK(without > 0);
  }
}

// A row that is pushed seldom: a gradient of zero changes no weight of it, whatever the rate.
TEST_CASE("ftrl by row: the rate falls between two applies to a row") {
  constexpr uint32_t kDim = 8;
  v1::Schedule falling;
  falling.set_kind(v1::Schedule::COSINE);
  falling.set_period(200);
  falling.set_floor(1e-3);
  for (const v1::Consistency consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    RowOptions o;
    o.workers = 1;
    o.dim = kDim;
    o.consistency = consistency;
    o.optimizer = SpecOf("ftrl", falling);
    o.initializer.set_kind(v1::Initializer::CONSTANT);
    o.initializer.set_a(0.5);
    RowFixture f(o);
    REQUIRE(f.applied.ok());
    const std::vector<uint64_t> keys = f.KeysIn(1, 6);
    std::vector<Elements<double>> exact(keys.size(), Elements<double>(kDim));
    std::vector<double> before(keys.size());
    const Schedule schedule(o.optimizer.rate(), falling);
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.1f, 1);
    const bool sync = consistency == v1::CONSISTENCY_SYNC;
    for (uint64_t step = 0; step < 240; ++step) {
      const double rate = schedule.RateAt(step + 1);
      Rows rows;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (step % (1 + 7 * i) != 0) continue;
        Row g(kDim);
        for (float& x : g) x = normal(random);
        rows[keys[i]] = g;
        Ftrl<double>({rate, before[i] == 0 ? rate : before[i], 0},
                     std::vector<double>(g.begin(), g.end()), &exact[i]);
        before[i] = rate;
      }
      REQUIRE(f.PushStatus(0, 1, sync ? step : step + 1, rows) == ReplyStatus::kOk);
      if (sync) REQUIRE(f.EndStatus(0, 1, step, 1) == ReplyStatus::kOk);
    }
    const Rows result = f.Read(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      for (uint32_t k = 0; k < kDim; ++k) {
        CHECK(result.at(keys[i])[k] == Approx(exact[i][k].w).epsilon(1e-4).margin(1e-6));
      }
    }
  }
}

}  // namespace optimizer_schedules_test
}  // namespace schedules_test
}  // namespace verbena::shard
