#include "worker/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/byte_size.h"
#include "proto/base/empty_values.h"
#include "proto/base/toml_config.h"
#include "verbena/version.h"
#include "worker/train/options_check.h"
#include "worker/train/options_defaults.h"

namespace verbena::worker {
namespace {

constexpr char kAbout[] =
    "Trains a model on a Verbena cluster with worker processes on this machine.\n\n"
    "  verbena-train --cluster 127.0.0.1:7000 --format text --data FILE... --workers 2\n"
    "  verbena-train --cluster 127.0.0.1:7000 --format libsvm --data a9a --test a9a.t --json\n\n"
    "libsvm: examples LABEL INDEX:VALUE ... (labels 0, 1, -1, +1).\n"
    "criteo: click logs, a line a label, 13 integers and 26 categories between tabs.\n"
    "text: a byte-level neural language model: embedded context bytes, one hidden layer, softmax.";
constexpr char kFooter[] =
    "Progress goes to stderr, results to stdout. Exit status: 0 trained, 1 failed, 2 wrong usage,\n"
    "128 + N ended by signal N. Workers that die are reported; the others go on. BYTES may have a\n"
    "unit: K, M, G, T and KiB to PiB are powers of 1024, KB to TB of 1000.";

void AddWhatToTrain(CLI::App* app, Options* o) {
  app->add_option("--format", o->format, "Format of the files")
      ->check(CLI::IsMember({"libsvm", "criteo", "text"}))
      ->required();
  app->add_option("--model", o->model,
                  "libsvm and criteo: logistic (libsvm only): logistic regression, dense; "
                  "embedding-logistic: the same, its weights rows of an embedding table; fm: "
                  "factorization machine; mlp: embedding bags and a hidden layer. Default: libsvm "
                  "logistic, criteo mlp")
      ->check(CLI::IsMember({"logistic", "embedding-logistic", "fm", "mlp"}));
  app->add_option("--data", o->data,
                  "Files to train on, in this order: plain, gzip or zstd; or pipes")
      ->required();
  app->add_option("--test", o->test, "Files to measure the result on");
  app->add_option("--holdout", o->holdout,
                  "text and criteo without --test: this share of the bytes or lines, at the end, "
                  "is held out for the test")
      ->capture_default_str();
  app->add_option("--input-memory", o->input_memory,
                  "Bytes of examples that a worker keeps in memory. Inputs that take less are kept "
                  "whole and shuffled whole; others are read again in each epoch, and shuffled in "
                  "windows")
      ->transform(ByteSize(1 << 16, 1'000'000'000'000))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option("--spool-bytes", o->spool_bytes,
                  "Pipes and compressed inputs are read once, into a temporary file in $TMPDIR or "
                  "/tmp: at most so many bytes of all together")
      ->transform(ByteSize(0, UINT64_MAX))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option("--predictions", o->predictions,
                  "Write one line per test example in file order: the probability of the positive "
                  "class, or with text the bits that each byte costs");
  app->add_flag("--json", o->json, "Print the result as one JSON object on stdout");
  app->add_flag("--checksum", o->checksum,
                "Add parameters_xxh64, the xxHash64 of the final parameters, to the result");
  app->add_flag("--count-models", o->count_models,
                "text: only print the bits per byte of counting models of order 0, 1 and 2 "
                "(interpolated, Witten-Bell) on the same bytes; needs no cluster");
}

// "cuda:0" or "cuda:0,2,3": numbers of at most three digits, none twice.
bool IsCudaList(const std::string& name) {
  if (name.rfind("cuda:", 0) != 0) return false;
  std::set<int> seen;
  for (const auto part : absl::StrSplit(name.substr(5), ',')) {
    const std::string number(part);
    const bool digits = !number.empty() && number.size() <= 3 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || !seen.insert(std::stoi(number)).second) return false;
  }
  return true;
}

CLI::Validator DeviceName() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        if (name == "cpu" || name == "cuda" || IsCudaList(name)) return "";
        return absl::StrCat("'", name,
                            "' is not allowed; allowed: cpu, cuda, cuda:N, cuda:N,M,... with N "
                            "from 0 to 999, each once");
      },
      "cpu|cuda|cuda:N[,...]");
}

// Also the prefix of the tables' names, which may have 128 characters.
CLI::Validator JobName() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        const bool good = std::all_of(name.begin(), name.end(), [](unsigned char c) {
          return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
        });
        if (good && !name.empty() && name.size() <= 100) return "";
        return absl::StrCat("'", absl::CHexEscape(name),
                            "' is not allowed; allowed: 1 to 100 characters of [A-Za-z0-9_./-], "
                            "as tables' names begin with it");
      },
      "");
}

CLI::Validator ConsistencyName() {
  return CLI::Validator(
      [](std::string& name) -> std::string {
        if (name == "sync" || name == "ssp" || name == "async") return "";
        return absl::StrCat(absl::CHexEscape(name), " not in {sync,ssp,async}",
                            name.rfind("ssp:", 0) == 0 ? "; --staleness has the steps of ssp" : "");
      },
      "{sync,ssp,async}");
}

void AddCluster(CLI::App* app, Options* o) {
  app->add_option("--cluster", o->cluster, "HOST:PORT of the coordinator");
  app->add_option("--workers", o->workers, "Worker processes of the job")->capture_default_str();
  app->add_option("--consistency", o->consistency,
                  "sync: a step takes every worker's gradient; async: each is applied as it comes; "
                  "ssp: as async, but no worker reads more than --staleness steps ahead")
      ->check(ConsistencyName())
      ->capture_default_str();
  app->add_option("--staleness", o->staleness,
                  "ssp: steps that a worker may be ahead of the slowest (default 4)");
  app->add_option(
         "--dtype", o->dtype,
         "Type of dense parameters in pulls. The servers train them in f32 in any case, and "
         "send them rounded to the nearest; rows of embedding tables are f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app->add_option("--gradient-dtype", o->gradient_dtype,
                  "Type of dense gradients in pushes; they are summed in f32")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app->add_option("--push-codec", o->push_codec,
                  "Codec of gradients in pushes; the error of dense gradients is added to the next "
                  "ones. sign, top_k: for dense gradients. With "
                  "--gradient-dtype f32")
      ->check(
          CLI::IsMember({"none", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", "sign", "top_k"}))
      ->capture_default_str();
  app->add_option(
         "--pull-codec", o->pull_codec,
         "Codec of parameters in pulls; the servers keep them as they are. With --dtype f32")
      ->check(CLI::IsMember({"none", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2"}))
      ->capture_default_str();
  app->add_option("--min-count", o->min_count,
                  "A key of an embedding table gets a row at its N-th push, as the servers count; "
                  "earlier pushes are dropped. 1 to 255")
      ->capture_default_str();
  app->add_option("--row-dtype", o->row_dtype,
                  "Type of rows of embedding tables in the servers' memory; 16-bit rows are "
                  "rounded stochastically")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app->add_option(
         "--max-rows", o->max_rows,
         "Rows of each embedding table that the servers keep; beyond that they drop the rows "
         "pushed longest ago. 0: all")
      ->capture_default_str();
  app->add_option("--hot-bytes", o->hot_bytes,
                  "Bytes of rows of each embedding table that the servers keep in memory, with "
                  "optimizer state; the others are on their disks (verbenad --cold-dir). 0: all")
      ->transform(ByteSize(0, UINT64_MAX))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option(
         "--device", o->device,
         "text: the device that computes gradients, and has them in its memory: cpu; cuda, a "
         "GPU for each worker in turn; cuda:N, that GPU; cuda:N,M, these GPUs together")
      ->check(DeviceName())
      ->capture_default_str();
  app->add_option("--transport", o->transport, "Transport of the data; a named one has no fallback")
      ->check(CLI::IsMember({"auto", "shm", "verbs", "ofi"}))
      ->capture_default_str();
  app->add_option("--job", o->job,
                  "Name of the job and prefix of its tables, which are then kept: a later run with "
                  "it continues from them. Default: a new name, and the tables are dropped")
      ->check(JobName());
  app->add_flag("--resume", o->resume,
                "Continue after the last step of --job's tables, which were kept or restored from "
                "a checkpoint. There must be such tables");
  app->add_option("--rank", o->rank,
                  "Be this one worker of --workers (for launching them separately, such as by "
                  "Slurm; needs --job). Default: launch all of them")
      // The launcher appends it to the command line it was given.
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app->add_option("--timeout", o->timeout, "Deadline of every call to the cluster, seconds")
      ->capture_default_str();
  app->add_flag("--keep-tables", o->keep_tables, "Keep the tables even without --job");
  app->add_flag("--local", o->local,
                "Train in one process without a cluster: the reference to compare with");
}

void AddTls(CLI::App* app, TlsOptions* tls) {
  for (CLI::Option* option :
       {app->add_option("--tls-ca", tls->ca, "CA bundle (PEM) that verifies servers; turns TLS on"),
        app->add_option("--tls-cert", tls->cert,
                        "File of the certificate to show to servers (mutual TLS)"),
        app->add_option("--tls-key", tls->key, "File of its private key")}) {
    option->type_name("FILE")->group("TLS");
  }
}

void AddToken(CLI::App* app, std::string* token_file) {
  app->add_option("--token-file", *token_file,
                  "File of this job's token, where the cluster requires one")
      ->type_name("FILE");
}

void AddRdma(CLI::App* app, RdmaOptions* rdma, std::string* gpu_direct) {
  std::vector<CLI::Option*> options = {
      app->add_option("--rdma-device", rdma->device,
                      "Device, or DEVICE:PORT, to use; several, with a comma between: a rail each. "
                      "Default: the nearest usable one"),
      app->add_option("--rdma-address", rdma->address,
                      "Local address of that device, one for each rail. Default: its first"),
      app->add_option("--rdma-gid-index", rdma->gid_index,
                      "Entry of the GID table; -1: the one that belongs to the address")
          ->capture_default_str(),
      app->add_option("--rdma-traffic-class", rdma->traffic_class,
                      "DSCP << 2 | ECN of packets, for PFC and ECN; -1: the system's")
          ->capture_default_str(),
      app->add_option("--rdma-service-level", rdma->service_level,
                      "Service level; -1: that of the path")
          ->capture_default_str(),
      app->add_option("--rdma-mtu", rdma->path_mtu,
                      "Path MTU in bytes, 256 to 4096; 0: that of the path")
          ->check(CLI::IsMember({"0", "256", "512", "1024", "2048", "4096"}))
          ->capture_default_str(),
      app->add_option("--rdma-timeout", rdma->timeout, "N: the ACK timeout is 4.096 us x 2^N")
          ->capture_default_str(),
      app->add_option("--rdma-retries", rdma->retries, "Retry count, after which the lane is lost")
          ->capture_default_str(),
      app->add_option("--rdma-memory-windows", rdma->memory_windows,
                      "Guard memory by memory windows, where the device has them")
          ->check(CLI::IsMember({"true", "false"}))
          ->capture_default_str(),
      app->add_option("--rdma-relaxed-ordering", rdma->relaxed_ordering,
                      "Let the device use PCIe relaxed ordering where that is safe")
          ->check(CLI::IsMember({"true", "false"}))
          ->capture_default_str(),
      app->add_option("--rdma-gpu-direct", *gpu_direct,
                      "With --device cuda: access of the device to the GPU's memory: auto: direct "
                      "where it works; off: by copies; required: direct, or calls fail")
          ->check(CLI::IsMember({"auto", "off", "required"}))
          ->capture_default_str(),
  };
  for (CLI::Option* option : options) option->group("RDMA (verbs)");
}

void AddFabric(CLI::App* app, FabricOptions* fabric) {
  app->add_option("--ofi-provider", fabric->provider,
                  "libfabric's provider, as fi_info lists it; the servers' must be the same")
      ->group("libfabric (ofi)")
      ->capture_default_str();
  app->add_option("--ofi-address", fabric->address,
                  "Local IP address; several, with a comma between: a rail each. Default: the one "
                  "that leads to the coordinator")
      ->group("libfabric (ofi)");
}

void AddTraining(CLI::App* app, Options* o) {
  app->add_option("--optimizer", o->optimizer,
                  absl::StrCat("Optimizer of the servers: ", KnownOptimizers(),
                               "; any other that they know needs --rate"))
      ->capture_default_str();
  app->add_option("--rate", o->rate,
                  "Learning rate, positive. Default: by optimizer and model; for adam with "
                  "logistic 0.01, with embedding-logistic and text 0.005, with fm and mlp 0.002");
  app->add_option("--schedule", o->schedule,
                  "How the servers change the rate: constant; cosine: falls to 0 over this run's "
                  "steps, as half a cosine")
      ->check(CLI::IsMember({"constant", "cosine"}))
      ->capture_default_str();
  app->add_option("--warmup-steps", o->warmup_steps,
                  "The rate rises to its value over so many steps")
      ->capture_default_str();
  app->add_option("--weight-decay", o->weight_decay,
                  "The optimizer's weight_decay: L2, except with adamw and lamb. Default: the "
                  "optimizer's own, 0.01 with these two, else 0");
  app->add_option("--clip-global-norm", o->clip_global_norm,
                  "The greatest L2 norm of a step's gradient, over all parameters; 0: any. For "
                  "--consistency sync")
      ->capture_default_str();
  app->add_option("--epochs", o->epochs,
                  "Passes over the training data. Default: logistic and embedding-logistic 8, text "
                  "5, fm and mlp 4");
  app->add_option("--steps", o->steps, "Steps to train; instead of --epochs");
  app->add_option("--batch", o->batch,
                  "Examples a step, of all workers together. Default: text 1024, else 256");
  app->add_option("--l2", o->l2,
                  "Weight of the L2 penalty; on rows of embedding tables once for each use. "
                  "Default: text 0.00006, else 0.00001");
  app->add_option("--seed", o->seed, "Seed of the initial parameters and the order of examples")
      ->capture_default_str();
  app->add_option("--validate-every", o->validate_every,
                  "Rank 0 measures the model on the test data after every so many steps and prints "
                  "the result; others wait meanwhile, at most --timeout")
      ->capture_default_str();
  app->add_option("--validate-examples", o->validate_examples,
                  "Examples (text: bytes) of the test data, from its start, for a validation")
      ->capture_default_str();
  app->add_option("--early-stop", o->early_stop,
                  "All workers stop once so many validations in a row were no better than the "
                  "best; 0: never")
      ->capture_default_str();
  app->add_option("--context", o->text.shape.context, "text: bytes that predict the next")
      ->capture_default_str();
  app->add_option("--embedding", o->embedding,
                  "Floats that stand for a byte (text, default 32) or a feature (mlp, 8); factors "
                  "of a feature (fm, 8)");
  app->add_option("--hidden", o->hidden, "Units of the hidden layer. Default: text 320, mlp 64");
  app->add_option(
         "--ngrams", o->text.ngrams,
         "text: also rows of an embedding table for the last 2 to N bytes, hashed; 0: none")
      ->capture_default_str();
  app->add_option("--dropout", o->text.dropout,
                  "text: share of hidden units left out of each training example")
      ->capture_default_str();
}

void AddHidden(CLI::App* app, Options* o) {
  // An empty group keeps them out of the help.
  app->add_flag("--drop-tables", o->drop_tables)->group("");
  app->add_flag("--log-steps", o->log_steps)->group("");
  app->add_option("--pause-after-step", o->pause_after_step)->group("");
  app->add_option("--pause-in-step", o->pause_in_step)->group("");
  app->add_option("--pause-until", o->pause_until)->group("");
  app->add_option("--pause-rank", o->pause_rank)->group("");
  app->add_option("--worker-channel", o->channel)->group("");
  app->add_option("--input-index", o->input_index)->group("");
}

}  // namespace

Parsed ParseOptions(int argc, const char* const* argv) {
  Parsed parsed;
  Options o;
  CLI::App app(kAbout, "verbena-train");
  app.footer(kFooter);
  app.set_version_flag("--version", "verbena-train " VERBENA_VERSION_STRING);
  app.set_config("--config", "", "TOML file with the same names; the command line goes first");
  const auto toml = std::make_shared<TomlConfig>(&app);
  app.config_formatter(toml);
  app.get_option("--config")->configurable(false);
  app.get_formatter()->column_width(28);
  AddWhatToTrain(&app, &o);
  AddCluster(&app, &o);
  AddRdma(&app, &o.rdma, &o.gpu_direct);
  AddFabric(&app, &o.fabric);
  AddTls(&app, &o.tls);
  AddToken(&app, &o.token_file);
  AddTraining(&app, &o);
  AddHidden(&app, &o);
  RefuseEmptyValues(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream ignored;
    parsed.exit_status = kExitOk;
    // Help and version are such errors, too.
    if (app.exit(error, std::cout, ignored) == 0) return parsed;
    std::fprintf(stderr, "verbena-train: %s\nRun with --help for more information.\n",
                 toml->WithPlace(error.what()).c_str());
    parsed.exit_status = kExitUsage;
    return parsed;
  }
  const std::string problem = CheckOptions(o);
  if (!problem.empty()) {
    std::fprintf(stderr, "verbena-train: %s\nRun with --help for more information.\n",
                 toml->WithPlace(problem).c_str());
    parsed.exit_status = kExitUsage;
    return parsed;
  }
  o.text.shape.embedding = static_cast<int>(EmbeddingOf(o));
  o.text.shape.hidden = static_cast<int>(HiddenOf(o));
  o.text.l2 = L2Of(o);
  parsed.options = std::move(o);
  return parsed;
}

}  // namespace verbena::worker
