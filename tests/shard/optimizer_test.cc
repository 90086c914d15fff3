#include "shard/optimizer/optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace verbena::shard {
namespace {

v1::Optimizer Spec(const std::string& name, double rate,
                   const std::vector<std::pair<std::string, double>>& parameters = {}) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(rate);
  for (const auto& [key, value] : parameters) (*spec.mutable_parameters())[key] = value;
  return spec;
}

// 200 steps of `optimizer` on random gradients, against the textbook in double precision.
template <typename Step>
void Compare(const v1::Optimizer& spec, Step step) {
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(spec);
  constexpr size_t kN = 50;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.1f, 1);
  std::vector<float> w(kN, 0.5f);
  std::vector<double> reference(kN, 0.5);
  std::vector<float> state[2] = {std::vector<float>(kN), std::vector<float>(kN)};
  std::vector<double> m(kN);
  std::vector<double> v(kN);
  float* arrays[2] = {state[0].data(), state[1].data()};
  for (uint64_t t = 1; t <= 200; ++t) {
    std::vector<float> g(kN);
    for (float& x : g) x = normal(random);
    optimizer->Apply(BestIsa(), optimizer->Prepare(t), w.data(), w.data(), arrays, g.data(), kN);
    for (size_t i = 0; i < kN; ++i) step(t, double{g[i]}, &reference[i], &m[i], &v[i]);
  }
  for (size_t i = 0; i < kN; ++i) {
    CHECK(double{w[i]} == Approx(reference[i]).epsilon(2e-5).margin(2e-5));
  }
}

TEST_CASE("sgd follows its formula") {
  Compare(Spec("sgd", 0.01),
          [](uint64_t, double g, double* w, double*, double*) { *w -= 0.01 * g; });
}

TEST_CASE("momentum follows its formula, with its default and with a given value") {
  Compare(Spec("momentum", 0.01), [](uint64_t, double g, double* w, double* m, double*) {
    *m = 0.9 * *m + g;
    *w -= 0.01 * *m;
  });
  Compare(Spec("momentum", 0.01, {{"momentum", 0.5}}),
          [](uint64_t, double g, double* w, double* m, double*) {
            *m = 0.5 * *m + g;
            *w -= 0.01 * *m;
          });
}

TEST_CASE("adam follows its formula, bias correction included") {
  const auto adam = [](double rate, double b1, double b2, double epsilon) {
    return [=](uint64_t t, double g, double* w, double* m, double* v) {
      *m = b1 * *m + (1 - b1) * g;
      *v = b2 * *v + (1 - b2) * g * g;
      const double mean = *m / (1 - std::pow(b1, static_cast<double>(t)));
      const double square = *v / (1 - std::pow(b2, static_cast<double>(t)));
      *w -= rate * mean / (std::sqrt(square) + epsilon);
    };
  };
  Compare(Spec("adam", 0.01), adam(0.01, 0.9, 0.999, 1e-8));
  Compare(Spec("adam", 0.02, {{"beta1", 0.5}, {"beta2", 0.9}, {"epsilon", 0.001}}),
          adam(0.02, 0.5, 0.9, 0.001));
}

TEST_CASE("a wrong optimizer specification is refused with the name and what is allowed") {
  const auto message = [](const v1::Optimizer& spec) {
    const absl::Status status = CheckOptimizer(spec);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(MakeOptimizer(spec).status() == status);
    return std::string(status.message());
  };
  CHECK(message(Spec("adamw", 1)) ==
        "unknown optimizer \"adamw\"; known: \"adam\", \"momentum\", \"sgd\"");
  CHECK(message(Spec("sgd", -0.5)) ==
        "optimizer \"sgd\": rate is -0.5; allowed: finite and not negative");
  CHECK_FALSE(message(Spec("sgd", std::nan(""))).empty());
  CHECK_FALSE(message(Spec("sgd", 1e300)).empty());
  CHECK(message(Spec("sgd", 1, {{"momentum", 0.9}})) ==
        "optimizer \"sgd\" has no parameter \"momentum\"; known: none");
  CHECK(message(Spec("adam", 1, {{"beta3", 0.9}})) ==
        "optimizer \"adam\" has no parameter \"beta3\"; known: \"beta1\", \"beta2\", \"epsilon\"");
  CHECK(message(Spec("adam", 1, {{"beta1", 1}})) ==
        "optimizer \"adam\": parameter \"beta1\" is 1; allowed: [0, 1)");
  CHECK_FALSE(message(Spec("momentum", 1, {{"momentum", std::nan("")}})).empty());
  CHECK_FALSE(message(Spec("adam", 1, {{"epsilon", 0}})).empty());
}

TEST_CASE("what is right is accepted") {
  CHECK(CheckOptimizer(Spec("", 0.1)).ok());
  CHECK(CheckOptimizer(Spec("sgd", 0)).ok());
  CHECK(CheckOptimizer(Spec("momentum", 0.1, {{"momentum", 0}})).ok());
  CHECK(CheckOptimizer(Spec("adam", 0.1, {{"epsilon", 1e-4}})).ok());
}

}  // namespace
}  // namespace verbena::shard
