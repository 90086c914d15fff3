#include "worker/train/options_check.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/host_port.h"
#include "proto/spec/option_value.h"
#include "proto/wire/record.h"
#include "worker/train/options_defaults.h"

namespace verbena::worker {
namespace {

constexpr double kMostEpochs = 1e6;

std::string CheckRange(const char* name, double value, double low, double high, const char* want) {
  if (value >= low && value <= high) return "";
  return absl::StrCat(name, ": ", value, " is not allowed; allowed: ", want);
}

std::string CheckModel(const Options& o) {
  const std::string model = ModelOf(o);
  if (o.format == "text" && !o.model.empty()) {
    return absl::StrCat("--model: ", o.model,
                        " does not go with --format text, which has one model");
  }
  if (o.format == "criteo" && model == "logistic") {
    return "--model: logistic is for --format libsvm; with criteo it is embedding-logistic";
  }
  if (o.hidden && model != "text" && model != "mlp") {
    return absl::StrCat("--hidden: --model ", model, " has no hidden layer");
  }
  if (o.embedding && model != "text" && model != "mlp" && model != "fm") {
    return absl::StrCat("--embedding does not go with --model ", model);
  }
  return "";
}

std::string CheckDevice(const Options& o) {
  if (o.device == "cpu") {
    return o.gpu_direct == "auto" ? "" : "--rdma-gpu-direct is for --device cuda";
  }
  if (o.format != "text") {
    return absl::StrCat("--device: ", o.device, " is for --format text; other models run on cpu");
  }
  if (o.local) return "--local trains in the host's memory: --device does not go with it";
  if (AllF32(o)) return "";
  return absl::StrCat(
      "--device: with ", o.device,
      " parameters and gradients are sent as f32: --dtype, --gradient-dtype, --push-codec and "
      "--pull-codec do not go with it");
}

// A norm of the whole step: servers know it of dense sync tables alone.
std::string CheckStepNorms(const Options& o) {
  if (o.clip_global_norm == 0 && o.optimizer != "lamb") return "";
  const char* what = o.optimizer == "lamb" ? "--optimizer lamb" : "--clip-global-norm";
  if (o.consistency != "sync") {
    return absl::StrCat(what, " is for --consistency sync: only there a step has a norm");
  }
  if (HasEmbeddingTable(o)) {
    return absl::StrCat(what, " does not go with --model ", ModelOf(o),
                        ", which has an embedding table");
  }
  if (o.format == "text" && o.text.ngrams > 0) {
    return absl::StrCat(what, " does not go with --ngrams, which has an embedding table");
  }
  return "";
}

bool HasRows(const Options& o) {
  return HasEmbeddingTable(o) || (o.format == "text" && o.text.ngrams > 0);
}

std::string CheckMinCount(const Options& o) {
  if (o.min_count == 1) return "";
  return HasRows(o) ? "" : "--min-count is for models with an embedding table";
}

// Options that the model or another flag decides.
constexpr const char* kOwnOptions[] = {
    "name",          "job",        "shape",       "dim",       "dtype",     "gradient_dtype",
    "push_codec",    "pull_codec", "consistency", "staleness", "reduction", "optimizer.name",
    "optimizer.rate"};

std::string CheckTableOption(const std::string& text, bool has_rows) {
  const auto wrong = [&text](const std::string& problem) {
    return absl::StrCat("--table-option: ", absl::CHexEscape(text), problem);
  };
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const TableOption* option = FindTableOption(name);
  if (equals == std::string::npos || option == nullptr) {
    return wrong(" is not allowed; allowed: NAME=VALUE with a name of 'verbena table options'");
  }
  const bool own =
      std::find(std::begin(kOwnOptions), std::end(kOwnOptions), name) != std::end(kOwnOptions);
  if (own || GroupOf(*option) == "initializer") {
    return wrong(": this option follows from the model or has a flag of its own");
  }
  if (option->kind == TableKind::kEmbedding && !has_rows) {
    return wrong(" is for models with an embedding table");
  }
  v1::TableSpec spec;
  const absl::Status status = SetOption(*option, text.substr(equals + 1), &spec);
  return status.ok() ? "" : wrong(absl::StrCat(": ", std::string(status.message())));
}

std::string CheckTableOptions(const Options& o) {
  for (const std::string& text : o.table_options) {
    if (std::string problem = CheckTableOption(text, HasRows(o)); !problem.empty()) return problem;
  }
  return "";
}

std::string CheckRows(const Options& o) {
  if (HasRows(o)) return "";
  if (o.row_dtype != "f32") return "--row-dtype is for models with an embedding table";
  if (o.hot_bytes != 0) return "--hot-bytes is for models with an embedding table";
  return o.max_rows == 0 ? "" : "--max-rows is for models with an embedding table";
}

std::string CheckValidation(const Options& o) {
  if (o.early_stop > 0 && o.validate_every == 0) return "--early-stop needs --validate-every";
  if (o.validate_every == 0) return "";
  if (o.validate_examples == 0) return "--validate-examples: 0 is not allowed; allowed: 1 and more";
  const bool holds_out = o.format != "libsvm" && o.holdout > 0;
  if (o.test.empty() && !holds_out) return "--validate-every needs --test";
  return "";
}

// A rate and a length of training.
std::string CheckRates(const Options& o) {
  const std::optional<double> known_rate = RateOf(o);
  if (!known_rate) {
    return absl::StrCat("--optimizer: ", o.optimizer, " is none of ", KnownOptimizers(),
                        "; another one of the servers has no default rate here: give --rate");
  }
  const double rate = *known_rate;
  if (!(rate > 0) || !std::isfinite(rate)) {
    return absl::StrCat("--rate: ", rate, " is not allowed; a rate is a positive number");
  }
  const double epochs = o.epochs.value_or(1);
  if (!(epochs > 0) || epochs > kMostEpochs) {
    return absl::StrCat("--epochs: ", epochs, " is not allowed; allowed: above 0, to 1000000");
  }
  return "";
}

std::string CheckRanges(const Options& o) {
  for (const std::string& problem : {
           CheckRange("--holdout", o.holdout, 0, 0.9, "0 to 0.9"),
           CheckRange("--timeout", o.timeout, 0.1, 86400, "0.1 to 86400 seconds"),
           CheckRange("--weight-decay", o.weight_decay.value_or(0), 0, 1000, "0 to 1000"),
           CheckRange("--clip-global-norm", o.clip_global_norm, 0, 1e30, "0 to 1e30"),
           CheckRange("--l2", o.l2.value_or(0), 0, 1, "0 to 1"),
           CheckRange("--ngrams", o.text.ngrams == 0 ? 2 : o.text.ngrams, 2, 7, "0, 2 to 7"),
           CheckRange("--dropout", o.text.dropout, 0, 0.9, "0 to 0.9"),
       }) {
    if (!problem.empty()) return problem;
  }
  if (o.staleness && o.consistency != "ssp") return "--staleness is for --consistency ssp only";
  if (o.epochs && o.steps) return "--epochs and --steps exclude each other";
  return "";
}

std::string CheckElastic(const Options& o) {
  if (o.max_workers == 0) return "";
  if (o.max_workers < o.workers) {
    return absl::StrCat("--max-workers: ", o.max_workers,
                        " is not allowed; allowed with --workers ", o.workers, ": ", o.workers,
                        " to 1024, or 0");
  }
  if (o.job.empty()) return "--max-workers needs --job, a name that all workers of the job share";
  if (o.rank >= 0) return "--max-workers: workers get their ranks from the job; leave --rank out";
  if (o.consistency != "sync") return "--max-workers is for --consistency sync";
  if (o.device != "cpu") return "--max-workers is for --device cpu";
  return "";
}

std::string CheckLocal(const Options& o) {
  if (o.rank != -1) return "--local trains in one process: --rank does not go with it";
  if (o.resume) return "--local keeps no tables: --resume does not go with it";
  if (o.workers != 1) return "--local trains in one process: --workers does not go with it";
  if (o.max_workers != 0) return "--local has one worker: --max-workers does not go with it";
  if (o.schedule != "constant" || o.warmup_steps != 0) {
    return "--local has a constant rate: --schedule and --warmup-steps do not go with it";
  }
  if (o.clip_global_norm != 0) return "--local clips nothing: --clip-global-norm is for servers";
  if (o.weight_decay) return "--local has no weight decay but --l2";
  if (o.min_count != 1) return "--local admits every key: --min-count is for servers";
  if (o.max_rows != 0) return "--local keeps all rows: --max-rows is for servers";
  if (o.hot_bytes != 0) return "--local has its rows in memory: --hot-bytes is for servers";
  if (o.row_dtype != "f32") return "--local has rows of f32: --row-dtype is for servers";
  if (!o.table_options.empty()) return "--local has no tables: --table-option is for servers";
  if (!AllF32(o)) {
    return "--local sends nothing: --dtype, --gradient-dtype, --push-codec and --pull-codec are "
           "for a cluster";
  }
  return "";
}

std::string CheckCluster(const Options& o) {
  if (o.tls.cert.empty() != o.tls.key.empty()) {
    return "--tls-cert and --tls-key go together: a certificate and its key";
  }
  if (!o.tls.cert.empty() && o.tls.ca.empty()) {
    return "--tls-cert needs --tls-ca, which verifies servers";
  }
  if (const std::string problem = CheckElastic(o); !problem.empty()) return problem;
  if (const std::string problem = CheckStepNorms(o); !problem.empty()) return problem;
  if (const std::string problem = CheckMinCount(o); !problem.empty()) return problem;
  if (const std::string problem = CheckRows(o); !problem.empty()) return problem;
  if (const std::string problem = CheckTableOptions(o); !problem.empty()) return problem;
  if (o.cluster.empty())
    return "--cluster: needed, the HOST:PORT of the coordinator, or of several with commas";
  if (const auto parsed = SplitAddresses(o.cluster); !parsed.ok()) {
    return absl::StrCat("--cluster: ", parsed.status().message());
  }
  if (o.rank < -1 || o.rank >= static_cast<int>(o.workers)) {
    return absl::StrCat("--rank: ", o.rank, " is not allowed; allowed with --workers ", o.workers,
                        ": 0 to ", o.workers - 1);
  }
  if (o.rank >= 0 && o.job.empty()) {
    return "--rank needs --job, a name that all workers of the job share";
  }
  if (o.resume && o.job.empty()) return "--resume needs --job, the name of the job to continue";
  const bool holds_out = o.format != "libsvm" && o.holdout > 0;
  if (!o.predictions.empty() && o.test.empty() && !holds_out) {
    return "--predictions needs --test";
  }
  return "";
}

}  // namespace

std::string CheckOptions(const Options& o) {
  for (const auto check : {CheckRates, CheckModel, CheckDevice, CheckValidation, CheckRanges}) {
    if (const std::string problem = check(o); !problem.empty()) return problem;
  }
  if (o.count_models) {
    return o.format == "text" ? "" : "--count-models is for --format text only";
  }
  return o.local ? CheckLocal(o) : CheckCluster(o);
}

}  // namespace verbena::worker
