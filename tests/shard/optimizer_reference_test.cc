// Each optimizer against its paper's formula in double precision: after 1,000 steps its error is at
// most twice that of the same formula as a plain f32 loop.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace optimizer_reference_test {

constexpr size_t kReferenceElements = 400;
constexpr uint64_t kReferenceSteps = 1000;

using Parameters = std::vector<std::pair<std::string, double>>;

v1::Optimizer Spec(const std::string& name, double rate, const Parameters& parameters = {}) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(rate);
  for (const auto& [key, value] : parameters) (*spec.mutable_parameters())[key] = value;
  return spec;
}

// The operands of a formula: one element, in double or in float.
template <typename T>
struct Element {
  T w = T(0.5), a = 0, b = 0;
};

double Distance(const std::vector<float>& w, const std::vector<Element<double>>& exact) {
  double sum = 0;
  for (size_t i = 0; i < w.size(); ++i) sum += std::pow(w[i] - exact[i].w, 2);
  return std::sqrt(sum);
}

// `formula(t, g, &element)` is generic in the type of g.
template <typename Formula>
void Compare(const v1::Optimizer& spec, Formula formula) {
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(spec);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.1f, 1);
  std::vector<float> w(kReferenceElements, Element<float>().w);
  std::vector<float> state[2] = {std::vector<float>(kReferenceElements),
                                 std::vector<float>(kReferenceElements)};
  float* arrays[2] = {state[0].data(), state[1].data()};
  std::vector<Element<double>> exact(kReferenceElements);
  std::vector<Element<float>> plain(kReferenceElements);
  std::vector<float> g(kReferenceElements);
  for (uint64_t t = 1; t <= kReferenceSteps; ++t) {
    for (float& x : g) x = normal(random);
    optimizer->Apply(BestIsa(), optimizer->Prepare(t), w.data(), w.data(), arrays, g.data(),
                     kReferenceElements);
    for (size_t i = 0; i < kReferenceElements; ++i) {
      formula(t, double{g[i]}, &exact[i]);
      formula(t, g[i], &plain[i]);
    }
  }
  std::vector<float> loop(kReferenceElements);
  std::transform(plain.begin(), plain.end(), loop.begin(), [](const auto& e) { return e.w; });
  INFO(spec.ShortDebugString());
  const double moved = std::abs(exact[0].w - Element<double>().w);
  CHECK(moved > 1e-3);  // else there is nothing to compare
  CHECK(Distance(w, exact) > 0);
  CHECK(Distance(w, exact) <= 2 * Distance(loop, exact));
}

TEST_CASE("sgd, with and without weight decay") {
  Compare(Spec("sgd", 0.01), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    e->w -= T(0.01) * g;
  });
  Compare(Spec("sgd", 0.01, {{"weight_decay", 0.05}}), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    e->w -= T(0.01) * (g + T(0.05) * e->w);
  });
}

TEST_CASE("momentum (Sutskever et al. 2013, in its equivalent form), L2 and decoupled decay") {
  for (const double momentum : {0.9, 0.5}) {
    Compare(Spec("momentum", 0.01, {{"momentum", momentum}}), [=](uint64_t, auto g, auto* e) {
      using T = decltype(g);
      e->a = T(momentum) * e->a + g;
      e->w -= T(0.01) * e->a;
    });
  }
  Compare(Spec("momentum", 0.01, {{"weight_decay", 0.05}}), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    e->a = T(0.9) * e->a + (g + T(0.05) * e->w);
    e->w -= T(0.01) * e->a;
  });
  // SGDW: Loshchilov and Hutter 2019, algorithm 1.
  Compare(Spec("momentum", 0.01, {{"decoupled_weight_decay", 0.05}}),
          [](uint64_t, auto g, auto* e) {
            using T = decltype(g);
            e->a = T(0.9) * e->a + g;
            e->w = e->w - T(0.01) * T(0.05) * e->w - T(0.01) * e->a;
          });
}

TEST_CASE("nesterov (Sutskever et al. 2013, equations 3 and 4)") {
  // The paper's theta and v; the gradient is that at theta + momentum * v, which the table holds.
  Compare(Spec("nesterov", 0.01), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    const T theta = e->w - T(0.9) * e->a;
    e->a = T(0.9) * e->a - T(0.01) * g;
    e->w = theta + e->a + T(0.9) * e->a;
  });
}

TEST_CASE("adagrad (Duchi et al. 2011, figure 1)") {
  Compare(Spec("adagrad", 0.1), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    e->a += g * g;
    e->w -= T(0.1) * g / (std::sqrt(e->a) + T(1e-10));
  });
  Compare(Spec("adagrad", 0.1, {{"epsilon", 0.1}, {"weight_decay", 0.05}}),
          [](uint64_t, auto g, auto* e) {
            using T = decltype(g);
            const T with = g + T(0.05) * e->w;
            e->a += with * with;
            e->w -= T(0.1) * with / (std::sqrt(e->a) + T(0.1));
          });
}

TEST_CASE("rmsprop (Tieleman and Hinton 2012)") {
  for (const double decay : {0.9, 0.99}) {
    Compare(Spec("rmsprop", 0.001, {{"decay", decay}}), [=](uint64_t, auto g, auto* e) {
      using T = decltype(g);
      e->a = T(decay) * e->a + (1 - T(decay)) * g * g;
      e->w -= T(0.001) * g / (std::sqrt(e->a) + T(1e-8));
    });
  }
}

// Kingma and Ba 2015, algorithm 1; `decay` decoupled as in Loshchilov and Hutter 2019, algorithm 2,
// with rate * decay for the paper's lambda.
template <typename T>
void AdamStep(uint64_t t, T g, double rate, double b1, double b2, double epsilon, double decay,
              Element<T>* e) {
  e->a = T(b1) * e->a + (1 - T(b1)) * g;
  e->b = T(b2) * e->b + (1 - T(b2)) * g * g;
  const T mean = e->a / (1 - std::pow(T(b1), T(t)));
  const T square = e->b / (1 - std::pow(T(b2), T(t)));
  e->w -= T(rate) * (mean / (std::sqrt(square) + T(epsilon)) + T(decay) * e->w);
}

TEST_CASE("adam (Kingma and Ba 2015, algorithm 1)") {
  Compare(Spec("adam", 0.01),
          [](uint64_t t, auto g, auto* e) { AdamStep(t, g, 0.01, 0.9, 0.999, 1e-8, 0, e); });
  Compare(Spec("adam", 0.02, {{"beta1", 0.5}, {"beta2", 0.9}, {"epsilon", 0.001}}),
          [](uint64_t t, auto g, auto* e) { AdamStep(t, g, 0.02, 0.5, 0.9, 0.001, 0, e); });
  Compare(Spec("adam", 0.01, {{"weight_decay", 0.05}}), [](uint64_t t, auto g, auto* e) {
    using T = decltype(g);
    const T with = g + T(0.05) * e->w;
    AdamStep(t, with, 0.01, 0.9, 0.999, 1e-8, 0, e);
  });
}

TEST_CASE("adam without bias correction") {
  Compare(Spec("adam", 0.01, {{"bias_correction", 0}}), [](uint64_t, auto g, auto* e) {
    using T = decltype(g);
    e->a = T(0.9) * e->a + (1 - T(0.9)) * g;
    e->b = T(0.999) * e->b + (1 - T(0.999)) * g * g;
    e->w -= T(0.01) * e->a / (std::sqrt(e->b) + T(1e-8));
  });
}

TEST_CASE("adamw (Loshchilov and Hutter 2019, algorithm 2)") {
  Compare(Spec("adamw", 0.01),
          [](uint64_t t, auto g, auto* e) { AdamStep(t, g, 0.01, 0.9, 0.999, 1e-8, 0.01, e); });
  Compare(Spec("adamw", 0.01, {{"weight_decay", 0.3}, {"beta1", 0.8}}),
          [](uint64_t t, auto g, auto* e) { AdamStep(t, g, 0.01, 0.8, 0.999, 1e-8, 0.3, e); });
}

TEST_CASE("ftrl (McMahan et al. 2013, algorithm 1)") {
  const auto ftrl = [](double alpha, double beta, double l1, double l2) {
    return [=](uint64_t, auto g, auto* e) {
      using T = decltype(g);
      T& z = e->a;
      T& n = e->b;
      const T sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / T(alpha);
      z += g - sigma * e->w;
      n += g * g;
      const T sign = z < 0 ? T(-1) : T(1);
      e->w = std::abs(z) <= T(l1)
                 ? T(0)
                 : -(z - sign * T(l1)) / ((T(beta) + std::sqrt(n)) / T(alpha) + T(l2));
    };
  };
  Compare(Spec("ftrl", 0.1), ftrl(0.1, 1, 0, 0));
  Compare(Spec("ftrl", 0.05, {{"beta", 0.5}, {"l1", 2}, {"l2", 0.5}}), ftrl(0.05, 0.5, 2, 0.5));
}

TEST_CASE("the schedule's rate is used in the formula, also for weight decay") {
  const auto rate = [](uint64_t t) {
    const double base =
        0.001 + 0.009 * 0.5 * (1 + std::cos(std::numbers::pi * double(t - 1) / 800));
    return (t > 800 ? 0.001 : base) * std::min(1.0, double(t) / 50);
  };
  const auto cosine = [](v1::Optimizer spec) {
    v1::Schedule* schedule = spec.mutable_schedule();
    schedule->set_kind(v1::Schedule::COSINE);
    schedule->set_period(800);
    schedule->set_floor(0.001);
    schedule->set_warmup_steps(50);
    return spec;
  };
  Compare(cosine(Spec("adamw", 0.01)),
          [&](uint64_t t, auto g, auto* e) { AdamStep(t, g, rate(t), 0.9, 0.999, 1e-8, 0.01, e); });
  Compare(cosine(Spec("momentum", 0.01, {{"decoupled_weight_decay", 0.1}})),
          [&](uint64_t t, auto g, auto* e) {
            using T = decltype(g);
            e->a = T(0.9) * e->a + g;
            e->w = e->w - T(rate(t)) * T(0.1) * e->w - T(rate(t)) * e->a;
          });
}

TEST_CASE("with l1, ftrl gives weights that are exactly zero") {
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(Spec("ftrl", 0.1, {{"l1", 1}}));
  std::vector<float> w = {0.5f, 0, 0};
  std::vector<float> z(3);
  std::vector<float> n(3);
  float* state[2] = {z.data(), n.data()};
  const std::vector<float> g = {0, 0.5f, 5};
  optimizer->Apply(BestIsa(), optimizer->Prepare(1), w.data(), w.data(), state, g.data(), 3);
  CHECK(w[0] == 0);
  CHECK(w[1] == 0);
  CHECK(w[2] != 0);
}

TEST_CASE("a rate of zero changes no weight, whatever the optimizer") {
  for (const char* name : {"adagrad", "adam", "adamw", "ftrl", "lamb", "momentum", "nesterov",
                           "rmsprop", "rowwise_adagrad", "sgd"}) {
    INFO(name);
    const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(Spec(name, 0));
    const std::vector<float> w = {0.25f, -3, 1e-20f};
    std::vector<float> out(3, 9);
    std::vector<float> state[2] = {std::vector<float>(3), std::vector<float>(3)};
    float* arrays[2] = {state[0].data(), state[1].data()};
    const std::vector<float> g = {1, -2, 1e10f};
    optimizer->Apply(BestIsa(), optimizer->Prepare(1), w.data(), out.data(), arrays, g.data(), 3);
    CHECK(out == w);
  }
}

}  // namespace optimizer_reference_test
}  // namespace verbena::shard
