#include "worker/train/options_defaults.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/train/options.h"

namespace verbena::worker {
namespace {

constexpr uint32_t kDefaultStaleness = 4;

// Defaults by model. Found by trying: see worker/README.md.
struct ModelDefaults {
  const char* model;
  double epochs, l2;
  uint64_t batch;
  int embedding, hidden;
};
constexpr ModelDefaults kModelDefaults[] = {
    {"text", 5, 6e-5, 1024, 32, 320},
    {"logistic", 8, 1e-5, 256, 0, 0},
    {"embedding-logistic", 8, 1e-5, 256, 1, 0},
    {"fm", 4, 1e-5, 256, 8, 0},
    {"mlp", 4, 1e-5, 256, 8, 64},
};

const ModelDefaults& DefaultsOf(const Options& options) {
  const std::string model = ModelOf(options);
  for (const ModelDefaults& d : kModelDefaults) {
    if (model == d.model) return d;
  }
  return kModelDefaults[0];
}

// Which optimizers there are, the servers know: these are the ones with a default rate.
struct DefaultRates {
  const char* optimizer;
  double logistic, text, embedding_logistic, deep;  // deep: fm and mlp
};
constexpr DefaultRates kDefaultRates[] = {
    {"adagrad", 0.1, 0.1, 0.1, 0.05},     {"adam", 0.01, 0.005, 0.005, 0.002},
    {"adamw", 0.01, 0.005, 0.005, 0.002}, {"ftrl", 1, 1, 0.5, 0.1},
    {"lamb", 0.01, 0.005, 0.005, 0.002},  {"momentum", 0.05, 0.05, 0.05, 0.02},
    {"nesterov", 0.05, 0.05, 0.05, 0.02}, {"rmsprop", 0.003, 0.003, 0.003, 0.001},
    {"sgd", 0.5, 0.5, 0.5, 0.2},
};

// The options that have flags of their own, then those of --table-option.
std::vector<std::pair<std::string, std::string>> TableOptionsOf(const Options& o) {
  std::vector<std::pair<std::string, std::string>> all = {{"dtype", o.dtype},
                                                          {"gradient_dtype", o.gradient_dtype},
                                                          {"push_codec", o.push_codec},
                                                          {"pull_codec", o.pull_codec},
                                                          {"row_dtype", o.row_dtype}};
  if (o.row_dtype != "f32") all.emplace_back("stochastic_rounding", "true");
  if (o.min_count > 1) {
    all.emplace_back("admission.kind", "min_count");
    all.emplace_back("admission.min_count", absl::StrCat(o.min_count));
  }
  if (o.max_rows > 0) {
    all.emplace_back("eviction.kind", "lru");
    all.emplace_back("eviction.max_rows", absl::StrCat(o.max_rows));
  }
  if (o.hot_bytes > 0) all.emplace_back("cold_tier.hot_bytes", absl::StrCat(o.hot_bytes));
  for (const std::string& text : o.table_options) {
    const size_t equals = text.find('=');
    all.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

}  // namespace

std::optional<double> RateOf(const Options& o) {
  if (o.rate) return o.rate;
  const std::string model = ModelOf(o);
  for (const DefaultRates& d : kDefaultRates) {
    if (o.optimizer != d.optimizer) continue;
    if (model == "text") return d.text;
    if (model == "logistic") return d.logistic;
    return model == "embedding-logistic" ? d.embedding_logistic : d.deep;
  }
  return std::nullopt;
}

std::string KnownOptimizers() {
  return absl::StrJoin(kDefaultRates, ", ", [](std::string* out, const DefaultRates& d) {
    absl::StrAppend(out, d.optimizer);
  });
}

std::string ModelOf(const Options& options) {
  if (options.format == "text") return "text";
  if (!options.model.empty()) return options.model;
  return options.format == "criteo" ? "mlp" : "logistic";
}

bool HasEmbeddingTable(const Options& options) {
  const std::string model = ModelOf(options);
  return model != "text" && model != "logistic";
}

uint32_t EmbeddingOf(const Options& options) {
  return static_cast<uint32_t>(options.embedding.value_or(DefaultsOf(options).embedding));
}

uint32_t HiddenOf(const Options& options) {
  return static_cast<uint32_t>(options.hidden.value_or(DefaultsOf(options).hidden));
}

double L2Of(const Options& options) { return options.l2.value_or(DefaultsOf(options).l2); }

uint64_t BatchOf(const Options& options) {
  return options.batch.value_or(DefaultsOf(options).batch);
}

uint64_t StepsOf(const Options& options, uint64_t examples) {
  if (options.steps) return *options.steps;
  const uint64_t batch = std::min(BatchOf(options), examples);
  const auto per_epoch = static_cast<double>((examples + batch - 1) / batch);
  const double epochs = options.epochs.value_or(DefaultsOf(options).epochs);
  return static_cast<uint64_t>(std::llround(std::clamp(epochs * per_epoch, 1.0, 1e12)));
}

bool AllF32(const Options& options) {
  return options.dtype == "f32" && options.gradient_dtype == "f32" &&
         options.push_codec == "none" && options.pull_codec == "none";
}

TrainingSpec TrainingSpecOf(const Options& options, uint64_t steps) {
  TrainingSpec spec;
  if (options.consistency == "async") spec.consistency = Consistency::kAsync;
  if (options.consistency == "ssp") {
    spec.consistency = Consistency::kSsp;
    spec.staleness = options.staleness.value_or(kDefaultStaleness);
  }
  spec.optimizer = options.optimizer;
  spec.rate = RateOf(options).value_or(0);
  spec.weight_decay = options.weight_decay;
  spec.clip_global_norm = options.clip_global_norm;
  // In async and ssp every worker's push is an apply of its own.
  const uint64_t applies = spec.consistency == Consistency::kSync ? 1 : options.workers;
  spec.warmup_applies = options.warmup_steps * applies;
  if (options.schedule == "cosine") spec.cosine_applies = steps * applies;
  spec.seed = options.seed;
  spec.sum = options.max_workers > 0;  // the number of a step's workers is not known before
  spec.table_options = TableOptionsOf(options);
  return spec;
}

}  // namespace verbena::worker
