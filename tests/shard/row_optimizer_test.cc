// Optimizers row by row, through the engine: against their papers' formulas in double precision,
// with each row's own count of applies; after 1,000 steps the error is at most twice that of the
// same formula as a plain f32 loop.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "shard/optimizer/optimizer.h"
#include "tests/shard/isas.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace row_optimizer_test {

using Status = ReplyStatus;

constexpr uint32_t kDim = 24;
constexpr size_t kRows = 12;
constexpr uint64_t kSteps = 1000;

v1::Optimizer Spec(const std::string& name, double rate,
                   const std::vector<std::pair<std::string, double>>& parameters = {}) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(rate);
  for (const auto& [key, value] : parameters) (*spec.mutable_parameters())[key] = value;
  return spec;
}

// The operands of a formula: one row, in double or in float.
template <typename T>
struct RowOf {
  std::vector<T> w = std::vector<T>(kDim, T(0.5)), a = std::vector<T>(kDim),
                 b = std::vector<T>(kDim);
  uint64_t t = 0;  // applies
};

// `formula(t, g, &row)` is generic in the type of g's elements. Row i is in every (1 + i)-th push:
// a row that is pushed seldom has a small t and no less.
template <typename Formula>
void Compare(const v1::Optimizer& optimizer, v1::Consistency consistency, Formula formula) {
  INFO(optimizer.ShortDebugString());
  RowOptions o;
  o.workers = 1;
  o.dim = kDim;
  o.consistency = consistency;
  o.optimizer = optimizer;
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  o.initializer.set_a(0.5);
  RowFixture f(o);
  REQUIRE(f.applied.ok());
  const std::vector<uint64_t> keys = f.KeysIn(1, kRows);
  std::vector<RowOf<double>> exact(kRows);
  std::vector<RowOf<float>> plain(kRows);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.1f, 1);
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  for (uint64_t step = 0; step < kSteps; ++step) {
    Rows rows;
    for (size_t i = 0; i < kRows; ++i) {
      if (step % (1 + i) != 0) continue;
      Row g(kDim);
      for (float& x : g) x = normal(random);
      rows[keys[i]] = g;
      formula(++exact[i].t, std::vector<double>(g.begin(), g.end()), &exact[i]);
      formula(++plain[i].t, g, &plain[i]);
    }
    REQUIRE(f.PushStatus(0, 1, sync ? step : step + 1, rows) == Status::kOk);
    if (sync) REQUIRE(f.EndStatus(0, 1, step, 1) == Status::kOk);
  }
  double ours = 0;
  double loop = 0;
  const Rows result = f.Read(keys);
  for (size_t i = 0; i < kRows; ++i) {
    CHECK(std::abs(exact[i].w[0] - 0.5) > 1e-4);  // else there is nothing to compare
    for (uint32_t k = 0; k < kDim; ++k) {
      ours += std::pow(double{result.at(keys[i])[k]} - exact[i].w[k], 2);
      loop += std::pow(double{plain[i].w[k]} - exact[i].w[k], 2);
    }
  }
  CHECK(ours > 0);
  CHECK(std::sqrt(ours) <= 2 * std::sqrt(loop));
}

template <typename Formula>
void CompareBoth(const v1::Optimizer& optimizer, Formula formula) {
  Compare(optimizer, v1::CONSISTENCY_ASYNC, formula);
  Compare(optimizer, v1::CONSISTENCY_SYNC, formula);
}

// A formula of one element, for every element of a row.
template <typename Formula>
auto Each(Formula formula) {
  return [=](uint64_t t, const auto& g, auto* row) {
    for (uint32_t i = 0; i < kDim; ++i) formula(t, g[i], &row->w[i], &row->a[i], &row->b[i]);
  };
}

TEST_CASE("sgd, momentum, nesterov and adagrad by row") {
  CompareBoth(Spec("sgd", 0.01), Each([](uint64_t, auto g, auto* w, auto*, auto*) {
                using T = decltype(g);
                *w -= T(0.01) * g;
              }));
  // A row that no push names keeps its velocity, too.
  CompareBoth(Spec("momentum", 0.01), Each([](uint64_t, auto g, auto* w, auto* v, auto*) {
                using T = decltype(g);
                *v = T(0.9) * *v + g;
                *w -= T(0.01) * *v;
              }));
  CompareBoth(Spec("nesterov", 0.01), Each([](uint64_t, auto g, auto* w, auto* v, auto*) {
                using T = decltype(g);
                *v = T(0.9) * *v + g;
                *w -= T(0.01) * (g + T(0.9) * *v);
              }));
  CompareBoth(Spec("adagrad", 0.1), Each([](uint64_t, auto g, auto* w, auto* h, auto*) {
                using T = decltype(g);
                *h += g * g;
                *w -= T(0.1) * g / (std::sqrt(*h) + T(1e-10));
              }));
}

TEST_CASE("row-wise adagrad (Mudigere et al. 2022)") {
  for (const double decay : {0.0, 0.05}) {
    CompareBoth(Spec("rowwise_adagrad", 0.1, {{"weight_decay", decay}}),
                [=](uint64_t, auto g, auto* row) {
                  using T = typename decltype(g)::value_type;
                  T squares = 0;
                  for (uint32_t i = 0; i < kDim; ++i) {
                    g[i] += T(decay) * row->w[i];
                    squares += g[i] * g[i];
                  }
                  row->a[0] += squares / T(kDim);
                  for (uint32_t i = 0; i < kDim; ++i) {
                    row->w[i] -= T(0.1) * g[i] / (std::sqrt(row->a[0]) + T(1e-8));
                  }
                });
  }
}

TEST_CASE("rmsprop by row") {
  CompareBoth(Spec("rmsprop", 0.001), Each([](uint64_t, auto g, auto* w, auto* v, auto*) {
                using T = decltype(g);
                *v = T(0.9) * *v + (1 - T(0.9)) * g * g;
                *w -= T(0.001) * g / (std::sqrt(*v) + T(1e-8));
              }));
}

TEST_CASE("adam and adamw by row, with bias correction by the row's own applies") {
  for (const bool decoupled : {false, true}) {
    const double decay = decoupled ? 0.01 : 0;
    CompareBoth(Spec(decoupled ? "adamw" : "adam", 0.01),
                Each([=](uint64_t t, auto g, auto* w, auto* m, auto* v) {
                  using T = decltype(g);
                  *m = T(0.9) * *m + (1 - T(0.9)) * g;
                  *v = T(0.999) * *v + (1 - T(0.999)) * g * g;
                  const T mean = *m / (1 - std::pow(T(0.9), T(t)));
                  const T square = *v / (1 - std::pow(T(0.999), T(t)));
                  *w -= T(0.01) * (mean / (std::sqrt(square) + T(1e-8)) + T(decay) * *w);
                }));
  }
}

TEST_CASE("ftrl by row") {
  CompareBoth(Spec("ftrl", 0.1), Each([](uint64_t, auto g, auto* w, auto* z, auto* n) {
                using T = decltype(g);
                const T sigma = (std::sqrt(*n + g * g) - std::sqrt(*n)) / T(0.1);
                *z += g - sigma * *w;
                *n += g * g;
                *w = -*z / ((T(1) + std::sqrt(*n)) / T(0.1));
              }));
}

TEST_CASE("a schedule counts the applies of the partition, not of the row") {
  RowOptions o;
  o.workers = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  o.optimizer.mutable_schedule()->set_kind(v1::Schedule::PIECEWISE);
  o.optimizer.mutable_schedule()->add_boundaries(3);
  o.optimizer.mutable_schedule()->add_rates(0.25);
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  for (uint64_t s = 1; s <= 3; ++s) f.PushValue(0, 0, s, {keys[0]}, 1);
  f.PushValue(0, 0, 4, keys, 1);  // the first apply to keys[1]
  CHECK(f.ReadRow(keys[0]) == f.Filled(-3.25f));
  CHECK(f.ReadRow(keys[1]) == f.Filled(-0.25f));
}

TEST_CASE("clipping by norm is by row") {
  RowOptions o;
  o.workers = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  o.optimizer.set_clip_chunk_norm(1);
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  f.PushStatus(0, 0, 1, {{keys[0], {3, 0, 4, 0}}, {keys[1], {0, 0.5f, 0, 0}}});
  CHECK(f.ReadRow(keys[0])[0] == Approx(-0.6));
  CHECK(f.ReadRow(keys[0])[2] == Approx(-0.8));
  CHECK(f.ReadRow(keys[1]) == Row{0, -0.5f, 0, 0});
}

TEST_CASE("decay applies only to rows of the push") {
  RowOptions o;
  o.workers = 1;
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  o.initializer.set_a(8);
  (*o.optimizer.mutable_parameters())["weight_decay"] = 0.25;
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  f.PushValue(0, 0, 1, keys, 0);
  f.PushValue(0, 0, 2, {keys[0]}, 0);
  CHECK(f.ReadRow(keys[0]) == f.Filled(4.5f));
  CHECK(f.ReadRow(keys[1]) == f.Filled(6));
}

TEST_CASE("row-wise adagrad gives the same bits in every instruction set") {
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(Spec("rowwise_adagrad", 0.1));
  CHECK(optimizer->row_wise());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const size_t dim : {1, 7, 16, 33, 1024}) {
    Row g(dim);
    for (float& x : g) x = normal(random);
    Row expected;
    for (const Isa isa : SupportedIsas()) {
      Row w(dim, 1);
      float square = 0.5f;
      float* state[1] = {&square};
      for (uint64_t t = 1; t <= 3; ++t) {
        optimizer->Apply(isa, optimizer->Prepare(t), w.data(), w.data(), state, g.data(), dim);
      }
      w.push_back(square);
      if (expected.empty()) expected = w;
      CHECK(SameBits(w, expected));
    }
  }
}

}  // namespace row_optimizer_test
}  // namespace verbena::shard
