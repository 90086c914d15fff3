#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shard/optimizer/optimizer.h"

// One line per optimizer: X(Name) stands for `OptimizerDefinition NameOptimizer()` in its own file.
#define VERBENA_OPTIMIZERS(X) \
  X(Adam)                     \
  X(Momentum)                 \
  X(Sgd)

namespace verbena::shard {

#define VERBENA_DECLARE(Name) OptimizerDefinition Name##Optimizer();
VERBENA_OPTIMIZERS(VERBENA_DECLARE)
#undef VERBENA_DECLARE

namespace {

using Values = absl::InlinedVector<double, 4>;

absl::Span<const OptimizerDefinition> Registry() {
#define VERBENA_DEFINE(Name) Name##Optimizer(),
  static const OptimizerDefinition kDefinitions[] = {VERBENA_OPTIMIZERS(VERBENA_DEFINE)};
#undef VERBENA_DEFINE
  return kDefinitions;
}

const auto kName = [](std::string* out, const auto& definition) {
  absl::StrAppend(out, "\"", std::string(definition.name), "\"");
};

absl::StatusOr<const OptimizerDefinition*> Find(const v1::Optimizer& spec) {
  const std::string name = spec.name().empty() ? "sgd" : spec.name();
  for (const OptimizerDefinition& d : Registry()) {
    if (d.name == name) return &d;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown optimizer \"", name, "\"; known: ", absl::StrJoin(Registry(), ", ", kName)));
}

std::string Range(const ParameterDefinition& p) {
  return absl::StrCat(p.low_open ? "(" : "[", p.low, ", ", p.high, p.high_open ? ")" : "]");
}

bool Allowed(const ParameterDefinition& p, double value) {
  return (p.low_open ? value > p.low : value >= p.low) &&
         (p.high_open ? value < p.high : value <= p.high);  // false for NaN
}

absl::StatusOr<Values> Resolve(const OptimizerDefinition& d, const v1::Optimizer& spec) {
  const std::string name(d.name);
  if (!(spec.rate() >= 0) || !std::isfinite(static_cast<float>(spec.rate()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer \"", name, "\": rate is ", spec.rate(), "; allowed: finite and not negative"));
  }
  Values values;
  for (const ParameterDefinition& p : d.parameters) values.push_back(p.fallback);
  for (const auto& [key, value] : spec.parameters()) {
    size_t i = 0;
    while (i < d.parameters.size() && d.parameters[i].name != key) ++i;
    if (i == d.parameters.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer \"", name, "\" has no parameter \"", key,
          "\"; known: ", d.parameters.empty() ? "none" : absl::StrJoin(d.parameters, ", ", kName)));
    }
    if (!Allowed(d.parameters[i], value)) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer \"", name, "\": parameter \"", key,
                                                     "\" is ", value,
                                                     "; allowed: ", Range(d.parameters[i])));
    }
    values[i] = value;
  }
  return values;
}

}  // namespace

absl::Status CheckOptimizer(const v1::Optimizer& spec) {
  const absl::StatusOr<const OptimizerDefinition*> definition = Find(spec);
  if (!definition.ok()) return definition.status();
  return Resolve(**definition, spec).status();
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& spec) {
  const absl::StatusOr<const OptimizerDefinition*> definition = Find(spec);
  if (!definition.ok()) return definition.status();
  absl::StatusOr<Values> values = Resolve(**definition, spec);
  if (!values.ok()) return values.status();
  return (*definition)->make(spec.rate(), *values);
}

}  // namespace verbena::shard
