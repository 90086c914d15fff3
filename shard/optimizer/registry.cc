#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/optimizer_spec.h"
#include "proto/spec/optimizer_values.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_options.h"
#include "shard/optimizer/optimizer.h"

// One line per optimizer: X(Name) stands for `OptimizerDefinition NameOptimizer()` in its own file.
#define VERBENA_OPTIMIZERS(X) \
  X(Adagrad)                  \
  X(Adam)                     \
  X(AdamW)                    \
  X(Ftrl)                     \
  X(Lamb)                     \
  X(Momentum)                 \
  X(Nesterov)                 \
  X(Rmsprop)                  \
  X(RowwiseAdagrad)           \
  X(Sgd)

namespace verbena::shard {

#define VERBENA_DECLARE(Name) OptimizerDefinition Name##Optimizer();
VERBENA_OPTIMIZERS(VERBENA_DECLARE)
#undef VERBENA_DECLARE

namespace {

using Values = absl::InlinedVector<double, 6>;
using Parameters = absl::InlinedVector<ParameterDefinition, 6>;

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
  return absl::StrCat(p.low_open ? "(" : "[", p.low, ", ", p.high, p.high_open ? ") in f32" : "]");
}

// Also checked as f32: a value that rounds to an excluded 1 would cause a division by zero.
bool Allowed(const ParameterDefinition& p, double value) {
  const auto rounded = static_cast<double>(static_cast<float>(value));
  return (p.low_open ? value > p.low : value >= p.low) &&
         (p.high_open ? rounded < p.high : value <= p.high);  // false for NaN
}

// Its own parameters, then the common ones it allows.
Parameters ParametersOf(const OptimizerDefinition& d) {
  Parameters parameters(d.parameters.begin(), d.parameters.end());
  if (d.decay != Decay::kNone) {
    const double fallback = d.decay == Decay::kDecoupled ? 0.01 : 0;
    parameters.push_back({"weight_decay", fallback, 0, 1000, false, false});
  }
  if (d.decay == Decay::kL2AndDecoupled) {
    parameters.push_back({"decoupled_weight_decay", 0, 0, 1000, false, false});
  }
  return parameters;
}

absl::StatusOr<Values> Resolve(const OptimizerDefinition& d, const v1::Optimizer& spec) {
  const std::string name(d.name);
  const Parameters parameters = ParametersOf(d);
  if (!(spec.rate() >= 0) || !std::isfinite(static_cast<float>(spec.rate()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer \"", name, "\": rate is ", spec.rate(), "; allowed: finite and not negative"));
  }
  Values values;
  for (const ParameterDefinition& p : parameters) values.push_back(p.fallback);
  for (const auto& [key, value] : spec.parameters()) {
    size_t i = 0;
    while (i < parameters.size() && parameters[i].name != key) ++i;
    if (i == parameters.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer \"", name, "\" has no parameter \"", key,
                       "\"; known: ", absl::StrJoin(parameters, ", ", kName)));
    }
    if (!Allowed(parameters[i], value)) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer \"", name, "\": parameter \"", key,
                                                     "\" is ", Number(value),
                                                     "; allowed: ", Range(parameters[i])));
    }
    values[i] = value;
  }
  return values;
}

}  // namespace

absl::Status CheckOptimizer(const v1::Optimizer& spec) {
  const absl::StatusOr<const OptimizerDefinition*> definition = Find(spec);
  if (!definition.ok()) return definition.status();
  absl::Status status = Resolve(**definition, spec).status();
  v1::Optimizer normal = spec;
  if (status.ok()) status = NormalizeOptimizer(&normal);
  return status;
}

absl::Status CheckTableOptimizer(const v1::TableSpec& spec) {
  const absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(spec.optimizer());
  if (!optimizer.ok()) return optimizer.status();
  if (!(*optimizer)->row_wise() || spec.dim() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "optimizer \"", spec.optimizer().name(), "\" keeps one number for each row and table \"",
      spec.name(), "\" is dense (dim is 0); allowed: embedding tables. Hint: \"adagrad\""));
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& spec) {
  if (absl::Status status = CheckOptimizer(spec); !status.ok()) return status;
  const OptimizerDefinition& d = **Find(spec);
  const Values values = *Resolve(d, spec);
  const size_t own = d.parameters.size();
  std::unique_ptr<Optimizer> optimizer = d.make(absl::MakeConstSpan(values).first(own));
  CommonTerms& terms = optimizer->terms_;
  terms.schedule = Schedule(spec.rate(), spec.schedule());
  terms.changed = spec.changed();
  terms.clip_value = static_cast<float>(spec.clip_value());
  terms.clip_chunk_norm = spec.clip_chunk_norm();
  terms.clip_global_norm = spec.clip_global_norm();
  switch (d.decay) {
    case Decay::kNone:
      break;
    case Decay::kL2AndDecoupled:
      terms.decoupled_weight_decay = values[own + 1];
      [[fallthrough]];
    case Decay::kL2:
      terms.weight_decay = static_cast<float>(values[own]);
      break;
    case Decay::kDecoupled:
      terms.decoupled_weight_decay = values[own];
      break;
  }
  return optimizer;
}

std::vector<v1::OptimizerValue> ChangeableValues(const v1::Optimizer& spec) {
  std::vector<v1::OptimizerValue> values;
  const auto add = [&](std::string_view name, double least, double greatest) {
    v1::OptimizerValue& value = values.emplace_back();
    value.set_name(std::string(name));
    value.set_least(least);
    value.set_greatest(greatest);
  };
  constexpr double kMost = std::numeric_limits<float>::max();
  // A piecewise schedule lists its rates.
  if (spec.schedule().kind() != v1::Schedule::PIECEWISE) {
    add("rate", spec.schedule().floor(), kMost);
  }
  const absl::StatusOr<const OptimizerDefinition*> definition = Find(spec);
  if (!definition.ok()) return values;
  for (const ParameterDefinition& p : ParametersOf(**definition)) {
    add(p.name, p.low, p.high);
    values.back().set_above_least(p.low_open);
    values.back().set_below_greatest(p.high_open);
  }
  const auto least_clip = [](std::string_view option) { return FindTableOption(option)->min; };
  if (spec.clip_value() > 0) add("clip_value", least_clip("optimizer.clip_value"), kMost);
  if (spec.clip_chunk_norm() > 0) {
    add("clip_chunk_norm", least_clip("optimizer.clip_chunk_norm"), kMost);
  }
  return values;
}

void ChangeOptimizer(absl::Span<const NamedValue> values, v1::Optimizer* spec) {
  spec->set_changed(true);
  for (const NamedValue& v : values) {
    const std::string name(NameOf(v));
    if (name == "rate") {
      spec->set_rate(v.value);
    } else if (name == "clip_value") {
      spec->set_clip_value(v.value);
    } else if (name == "clip_chunk_norm") {
      spec->set_clip_chunk_norm(v.value);
    } else {
      (*spec->mutable_parameters())[name] = v.value;
    }
  }
}

}  // namespace verbena::shard
