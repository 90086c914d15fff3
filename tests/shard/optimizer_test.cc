#include "shard/optimizer/optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

namespace verbena::shard {
namespace {

v1::Optimizer SpecOf(const std::string& name, double rate,
                     const std::vector<std::pair<std::string, double>>& parameters = {}) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(rate);
  for (const auto& [key, value] : parameters) (*spec.mutable_parameters())[key] = value;
  return spec;
}

TEST_CASE("a wrong optimizer specification is refused with its name and the allowed values") {
  const auto message = [](const v1::Optimizer& spec) {
    const absl::Status status = CheckOptimizer(spec);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(MakeOptimizer(spec).status() == status);
    return std::string(status.message());
  };
  CHECK(message(SpecOf("lion", 1)) ==
        "unknown optimizer \"lion\"; known: \"adagrad\", \"adam\", \"adamw\", \"ftrl\", \"lamb\", "
        "\"momentum\", \"nesterov\", \"rmsprop\", \"rowwise_adagrad\", \"sgd\"");
  CHECK(message(SpecOf("sgd", -0.5)) ==
        "optimizer \"sgd\": rate is -0.5; allowed: finite and not negative");
  CHECK_FALSE(message(SpecOf("sgd", std::nan(""))).empty());
  CHECK_FALSE(message(SpecOf("sgd", 1e300)).empty());
  CHECK(message(SpecOf("sgd", 1, {{"momentum", 0.9}})) ==
        "optimizer \"sgd\" has no parameter \"momentum\"; known: \"weight_decay\"");
  CHECK(message(SpecOf("momentum", 1, {{"beta1", 0.9}})) ==
        "optimizer \"momentum\" has no parameter \"beta1\"; known: \"momentum\", "
        "\"weight_decay\", \"decoupled_weight_decay\"");
  CHECK(message(SpecOf("adam", 1, {{"beta3", 0.9}})) ==
        "optimizer \"adam\" has no parameter \"beta3\"; known: \"beta1\", \"beta2\", "
        "\"epsilon\", \"bias_correction\", \"weight_decay\"");
  CHECK(message(SpecOf("adam", 1, {{"beta1", 1}})) ==
        "optimizer \"adam\": parameter \"beta1\" is 1; allowed: [0, 1) in f32");
  CHECK_FALSE(message(SpecOf("momentum", 1, {{"momentum", std::nan("")}})).empty());
  CHECK_FALSE(message(SpecOf("adam", 1, {{"epsilon", 0}})).empty());
  CHECK(message(SpecOf("adam", 1, {{"beta2", 0.99999999}})) ==
        "optimizer \"adam\": parameter \"beta2\" is 0.99999999; allowed: [0, 1) in f32");
  CHECK(message(SpecOf("sgd", 1, {{"weight_decay", -1}})) ==
        "optimizer \"sgd\": parameter \"weight_decay\" is -1; allowed: [0, 1000]");
  CHECK(message(SpecOf("adamw", 1, {{"weight_decay", 2000}})) ==
        "optimizer \"adamw\": parameter \"weight_decay\" is 2000; allowed: [0, 1000]");
  CHECK(message(SpecOf("ftrl", 1, {{"l1", -1}})) ==
        "optimizer \"ftrl\": parameter \"l1\" is -1; allowed: [0, 1e+30]");
  CHECK(message(SpecOf("ftrl", 1, {{"weight_decay", 0.1}})) ==
        "optimizer \"ftrl\" has no parameter \"weight_decay\"; known: \"beta\", \"l1\", \"l2\"");
  CHECK(message(SpecOf("rmsprop", 1, {{"decay", 1}})) ==
        "optimizer \"rmsprop\": parameter \"decay\" is 1; allowed: [0, 1) in f32");
}

TEST_CASE("an invalid schedule or clipping is refused by the shard, too") {
  v1::Optimizer spec = SpecOf("adam", 0.1);
  spec.mutable_schedule()->set_kind(v1::Schedule::STEP);  // of period 0
  CHECK(MakeOptimizer(spec).status().code() == absl::StatusCode::kInvalidArgument);
  spec = SpecOf("adam", 0.1);
  spec.set_clip_value(std::nan(""));
  CHECK(CheckOptimizer(spec).message() ==
        "optimizer.clip_value is nan; allowed: a finite number >= 1e-30, or 0: no clipping");
}

TEST_CASE("a step without pushes is skipped only if a zero gradient changes nothing") {
  const auto ignores = [](const v1::Optimizer& spec) {
    return (*MakeOptimizer(spec))->ignores_zero();
  };
  CHECK(ignores(SpecOf("sgd", 1)));
  CHECK(ignores(SpecOf("adagrad", 1)));
  CHECK_FALSE(ignores(SpecOf("sgd", 1, {{"weight_decay", 0.1}})));
  CHECK_FALSE(ignores(SpecOf("momentum", 1)));
  CHECK_FALSE(ignores(SpecOf("ftrl", 1)));
}

TEST_CASE("valid optimizer specifications are accepted") {
  CHECK(CheckOptimizer(SpecOf("", 0.1)).ok());
  CHECK(CheckOptimizer(SpecOf("sgd", 0)).ok());
  CHECK(CheckOptimizer(SpecOf("momentum", 0.1, {{"momentum", 0}})).ok());
  CHECK(CheckOptimizer(SpecOf("adam", 0.1, {{"epsilon", 1e-4}})).ok());
}

TEST_CASE("a row-wise optimizer is for embedding tables only") {
  v1::TableSpec spec;
  spec.set_name("tower");
  *spec.mutable_optimizer() = SpecOf("rowwise_adagrad", 0.1);
  CHECK(CheckTableOptimizer(spec).message() ==
        "optimizer \"rowwise_adagrad\" keeps one number for each row and table \"tower\" is dense "
        "(dim is 0); allowed: embedding tables. Hint: \"adagrad\"");
  spec.set_dim(16);
  CHECK(CheckTableOptimizer(spec).ok());
  *spec.mutable_optimizer() = SpecOf("sgd", -1);
  CHECK(CheckTableOptimizer(spec) == CheckOptimizer(spec.optimizer()));
}

}  // namespace
}  // namespace verbena::shard
