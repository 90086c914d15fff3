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
#include "proto/base/help_formatter.h"
#include "proto/base/number_values.h"
#include "proto/base/toml_config.h"
#include "proto/base/usage_error.h"
#include "proto/spec/option_value.h"
#include "proto/wire/record.h"
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
    "criteo: click logs; a line has a label, 13 integers and 26 categories, separated by tabs.\n"
    "text: a byte-level neural language model: embedded context bytes, one hidden layer, softmax.";
constexpr char kFooter[] =
    "Progress goes to stderr, results to stdout. Exit status: 0 trained, 1 failed, 2 wrong usage,\n"
    "128 + N ended by signal N. Workers that die are reported; the others continue.\n"
    "BYTES may have a unit: K, M, G, T and KiB to PiB are powers of 1024, KB to TB of 1000.";

// The range is in the option's description, too.
CLI::Validator From(int64_t least, int64_t most) { return InRange(least, most).description(""); }

void AddWhatToTrain(CLI::App* app, Options* o) {
  app->add_option("--format", o->format, "Format of the files")
      ->check(CLI::IsMember({"libsvm", "criteo", "text"}))
      ->required();
  app->add_option(
         "--model", o->model,
         "libsvm and criteo. logistic: logistic regression with dense weights (libsvm only); "
         "embedding-logistic: the same with weights in an embedding table; fm: "
         "factorization machine; mlp: embedding bags and a hidden layer. Default: libsvm "
         "logistic, criteo mlp")
      ->check(CLI::IsMember({"logistic", "embedding-logistic", "fm", "mlp"}));
  app->add_option("--data", o->data, "Training files, in this order: plain, gzip or zstd; or pipes")
      ->type_name("FILE")
      ->required();
  app->add_option("--test", o->test, "Test files")->type_name("FILE");
  app->add_option(
         "--holdout", o->holdout,
         "text and criteo without --test: the last share of the bytes or lines, 0 to 0.9, is the "
         "test data")
      ->capture_default_str();
  app->add_option(
         "--input-memory", o->input_memory,
         "Memory of a worker for training examples, in bytes, 65536 to 10^12; test examples get a "
         "quarter more. Inputs that fit are shuffled as a whole; others are read again in "
         "each epoch and shuffled in windows")
      ->transform(ByteSize(1 << 16, 1'000'000'000'000))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option("--spool-bytes", o->spool_bytes,
                  "Limit, in bytes, of the temporary files (in $TMPDIR or /tmp) to which pipes and "
                  "compressed inputs are copied once")
      ->transform(ByteSize(0, UINT64_MAX))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option(
         "--predictions", o->predictions,
         "Write a line for each test example, in file order: the probability of the positive "
         "class, or with text the bits of each byte")
      ->type_name("FILE");
  app->add_option("--log", o->log,
                  "Append lines of JSON about the run to this file: its beginning, progress every "
                  "half second, validations and the result, as docs/reference/json.md describes "
                  "them. If the file becomes unwritable, training continues without it")
      ->type_name("FILE");
  app->add_flag("--json", o->json, "Print the result as one JSON object on stdout");
  app->add_flag("--checksum", o->checksum,
                "Add parameters_xxh64, the xxHash64 of the final parameters, to the result");
  app->add_flag("--log-steps", o->log_steps,
                "Print a line on standard error after each step of a worker");
  app->add_flag("--count-models", o->count_models,
                "text: print only the bits per byte of counting models of order 0, 1 and 2 "
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

// Without a value the option has the text "true", as in configuration files.
CLI::Validator ResumeWord() {
  return CLI::Validator(
      [](std::string& word) -> std::string {
        if (word == "true" || word.empty()) word = "yes";
        if (word == "false") word = "no";
        if (word == "yes" || word == "no" || word == "auto") return "";
        return absl::StrCat("'", absl::CHexEscape(word),
                            "' is not allowed; allowed: yes, no, auto");
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

// A value of a table option in dense tables.
CLI::Validator WordOf(const char* option) {
  return CLI::IsMember(EnumWords(*FindTableOption(option), TableKind::kDense));
}

void AddCluster(CLI::App* app, Options* o) {
  app->add_option("--cluster", o->cluster, "Address of the coordinator, or of several")
      ->type_name("HOST:PORT[,...]");
  app->add_option("--workers", o->workers,
                  "Worker processes of the job, 1 to 1024. With --max-workers: the number with "
                  "which a run begins")
      ->check(From(1, 1024))
      ->capture_default_str();
  app->add_option(
         "--max-workers", o->max_workers,
         "The job is elastic, with up to so many workers, --workers to 1024: each process is one "
         "worker, joins the run of --job or begins it, and may leave it. Batches are those of any "
         "number of workers. For --consistency sync and --device cpu. 0: not elastic")
      ->check(From(0, 1024))
      ->capture_default_str();
  app->add_option(
         "--consistency", o->consistency,
         "sync: a step sums the gradients of all workers; async: each gradient is applied on "
         "arrival; ssp: as async, but no worker is more than --staleness steps ahead of the "
         "slowest when it reads")
      ->check(ConsistencyName())
      ->capture_default_str();
  app->add_option("--staleness", o->staleness,
                  "ssp: steps by which a worker may be ahead of the slowest; default: 4")
      ->check(From(0, kMaxStaleness));
  app->add_option(
         "--dtype", o->dtype,
         "Type of pulled dense parameters. The servers train them in f32 and send them rounded to "
         "the nearest; rows of embedding tables are sent as f32")
      ->check(WordOf("dtype"))
      ->capture_default_str();
  app->add_option("--gradient-dtype", o->gradient_dtype,
                  "Type of pushed dense gradients; they are summed in f32")
      ->check(WordOf("gradient_dtype"))
      ->capture_default_str();
  app->add_option(
         "--push-codec", o->push_codec,
         "Codec of gradients in pushes; the error of a dense gradient is added to the next one. "
         "sign and top_k: for dense gradients. Needs --gradient-dtype f32")
      ->check(WordOf("push_codec"))
      ->capture_default_str();
  app->add_option("--pull-codec", o->pull_codec,
                  "Codec of parameters in pulls; parameters on the servers are not changed. Needs "
                  "--dtype f32")
      ->check(WordOf("pull_codec"))
      ->capture_default_str();
  app->add_option(
         "--min-count", o->min_count,
         "A key of an embedding table gets a row with its N-th push, 1 to 255; earlier pushes are "
         "dropped")
      ->check(From(1, 255))
      ->capture_default_str();
  app->add_option("--row-dtype", o->row_dtype,
                  "Type of rows of embedding tables in the servers' memory; 16-bit rows are "
                  "rounded stochastically")
      ->check(WordOf("row_dtype"))
      ->capture_default_str();
  app->add_option(
         "--max-rows", o->max_rows,
         "Limit of rows of each embedding table; beyond it the least recently pushed rows are "
         "evicted. 0: no limit")
      ->capture_default_str();
  app->add_option(
         "--hot-bytes", o->hot_bytes,
         "Bytes of rows of each embedding table, with optimizer state, in the servers' memory; "
         "other rows are on their disks (verbenad --cold-dir). 0: all")
      ->transform(ByteSize(0, UINT64_MAX))
      ->type_name("BYTES")
      ->capture_default_str();
  app->add_option("--table-option", o->table_options,
                  "Another option of the tables, as 'verbena table options' lists them, such as "
                  "eviction.kind=lfu; set in the tables that may have it. May be given again")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app->add_option(
         "--device", o->device,
         "text: device that computes gradients and has them in its memory. cuda: the workers use "
         "the machine's GPUs in turn; cuda:N: that GPU; cuda:N,M: these GPUs together")
      ->check(DeviceName())
      ->capture_default_str();
  app->add_option("--transport", o->transport,
                  "Transport of the data; a named transport has no fallback")
      ->check(CLI::IsMember({"auto", "shm", "verbs", "ofi"}))
      ->capture_default_str();
  app->add_option(
         "--job", o->job,
         "Name of the job and prefix of its tables (1 to 100 characters of [A-Za-z0-9_./-]). The "
         "tables are kept, and a later run with this name continues from them. Default: a "
         "new name, and the tables are dropped")
      ->type_name("NAME")
      ->check(JobName());
  app->add_option_function<std::string>(
         "--resume",
         [o](const std::string& word) {
           o->resume = word != "no";
           o->resume_auto = word == "auto";
         },
         "Continue after the last step of the tables of --job, which were kept or restored from a "
         "checkpoint. yes (or no value): the tables must exist; auto: begin if there are none, and "
         "end with status 0 if all steps are made, so that the same command may be run again")
      ->type_name("yes|no|auto")
      ->expected(0, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->transform(ResumeWord());
  app->add_option(
         "--rank", o->rank,
         "Run only this worker of --workers; Slurm or you start the others. Needs --job. -1: all "
         "workers")
      ->check(From(-1, 1023))
      // The launcher appends it to the command line it was given.
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app->add_option("--timeout", o->timeout,
                  "Deadline of every call to the cluster, in seconds, 0.1 to 86400")
      ->type_name("SECONDS")
      ->capture_default_str();
  app->add_flag("--keep-tables", o->keep_tables, "Keep the tables even without --job");
  app->add_flag("--local", o->local,
                "The same training in one process without a cluster, for comparison");
}

void AddTls(CLI::App* app, TlsOptions* tls) {
  for (CLI::Option* option :
       {app->add_option("--tls-ca", tls->ca, "CA bundle (PEM) that verifies servers; turns TLS on"),
        app->add_option("--tls-cert", tls->cert, "Client certificate (PEM) for mutual TLS"),
        app->add_option("--tls-key", tls->key, "Private key (PEM) of --tls-cert")}) {
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
                      "Device and port; default: the nearest usable; a list: a rail for each")
          ->type_name("DEV[:PORT][,...]"),
      app->add_option("--rdma-address", rdma->address,
                      "Local address of that device, one for each rail; default: its first")
          ->type_name("IP[,...]"),
      app->add_option("--rdma-gid-index", rdma->gid_index,
                      "Index in the GID table, up to 65535; -1: that of the address")
          ->check(From(-1, 65535))
          ->capture_default_str(),
      app->add_option("--rdma-traffic-class", rdma->traffic_class,
                      "Traffic class of packets (DSCP << 2 | ECN), up to 255; -1: the system's")
          ->check(From(-1, 255))
          ->capture_default_str(),
      app->add_option("--rdma-service-level", rdma->service_level,
                      "Service level, up to 15; -1: that of the path")
          ->check(From(-1, 15))
          ->capture_default_str(),
      app->add_option("--rdma-mtu", rdma->path_mtu, "Path MTU in bytes; 0: that of the path")
          ->check(CLI::IsMember({"0", "256", "512", "1024", "2048", "4096"}))
          ->capture_default_str(),
      app->add_option("--rdma-timeout", rdma->timeout,
                      "The ACK timeout is 4.096 us x 2^N, N from 1 to 31")
          ->check(From(1, 31))
          ->capture_default_str(),
      app->add_option("--rdma-retries", rdma->retries,
                      "Retry count, 0 to 7, after which the lane is lost")
          ->check(From(0, 7))
          ->capture_default_str(),
      app->add_option("--rdma-memory-windows", rdma->memory_windows,
                      "Protect memory by memory windows, where the device has them")
          ->check(CLI::IsMember({"true", "false"}))
          ->capture_default_str(),
      app->add_option("--rdma-relaxed-ordering", rdma->relaxed_ordering,
                      "Let the device use PCIe relaxed ordering where it is safe")
          ->check(CLI::IsMember({"true", "false"}))
          ->capture_default_str(),
      app->add_option(
             "--rdma-gpu-direct", *gpu_direct,
             "With --device cuda: access of the RDMA device to GPU memory. auto: direct where it "
             "works; off: copies through host memory; required: direct, or calls fail")
          ->check(CLI::IsMember({"auto", "off", "required"}))
          ->capture_default_str(),
  };
  for (CLI::Option* option : options) option->group("RDMA (verbs)");
}

void AddFabric(CLI::App* app, FabricOptions* fabric) {
  app->add_option("--ofi-provider", fabric->provider,
                  "libfabric provider, as fi_info lists it; the same on servers and workers")
      ->type_name("NAME")
      ->group("libfabric (ofi)")
      ->capture_default_str();
  app->add_option(
         "--ofi-address", fabric->address,
         "Local address; default: the source address of connections to the coordinator; a list: "
         "a rail for each")
      ->type_name("IP[,...]")
      ->group("libfabric (ofi)");
}

void AddTraining(CLI::App* app, Options* o) {
  app->add_option("--optimizer", o->optimizer,
                  absl::StrCat("Optimizer of the servers: ", KnownOptimizers(),
                               "; any other optimizer of the servers needs --rate"))
      ->capture_default_str();
  app->add_option("--rate", o->rate,
                  "Learning rate, positive. Default: by optimizer and model; for adam with "
                  "logistic 0.01, with embedding-logistic and text 0.005, with fm and mlp 0.002");
  app->add_option("--schedule", o->schedule,
                  "constant, or cosine: the rate falls to 0 over this run's steps as half a cosine")
      ->check(CLI::IsMember({"constant", "cosine"}))
      ->capture_default_str();
  app->add_option("--warmup-steps", o->warmup_steps,
                  "Steps of the linear warm-up of the rate, 0 to 10^12")
      ->check(From(0, 1'000'000'000'000))
      ->capture_default_str();
  app->add_option(
      "--weight-decay", o->weight_decay,
      "The optimizer's weight_decay, 0 to 1000: L2 regularization, except with adamw and lamb. "
      "Default: the optimizer's, 0.01 with these two, else 0");
  app->add_option(
         "--clip-global-norm", o->clip_global_norm,
         "Limit of the L2 norm of a step's gradient over all parameters, up to 1e30; 0: none. For "
         "--consistency sync and models without embedding tables")
      ->capture_default_str();
  app->add_option("--epochs", o->epochs,
                  "Passes over the training data, above 0, up to 10^6. Default: logistic and "
                  "embedding-logistic 8, text 5, fm and mlp 4");
  app->add_option("--steps", o->steps, "Steps to train, 1 to 10^12; instead of --epochs")
      ->check(From(1, 1'000'000'000'000));
  app->add_option(
         "--batch", o->batch,
         "Examples of a step, of all workers together, 1 to 2^24. Default: text 1024, else 256")
      ->check(From(1, 1 << 24));
  app->add_option(
      "--l2", o->l2,
      "Weight of the L2 penalty, 0 to 1; on rows of embedding tables once for each use. "
      "Default: text 0.00006, else 0.00001");
  app->add_option("--seed", o->seed, "Seed of the initial parameters and the order of examples")
      ->capture_default_str();
  app->add_option(
         "--validate-every", o->validate_every,
         "Rank 0 evaluates the model on the test data after every N steps and prints the result "
         "on stderr; in sync and ssp the others wait, at most --timeout. 0: never")
      ->capture_default_str();
  app->add_option(
         "--validate-examples", o->validate_examples,
         "Number of examples (text: bytes) of the test data, from its start, in a validation")
      ->capture_default_str();
  app->add_option(
         "--early-stop", o->early_stop,
         "All workers stop after N validations in a row without a better result (AUC, or bits "
         "per byte). Needs --validate-every. 0: never")
      ->capture_default_str();
  app->add_option("--context", o->text.shape.context,
                  "text: bytes of context that predict the next, 1 to 256")
      ->check(From(1, 256))
      ->capture_default_str();
  app->add_option(
         "--embedding", o->embedding,
         "Numbers of the embedding of a byte (text, default 32) or a feature (mlp, 8), or factors "
         "of a feature (fm, 8); 1 to 256")
      ->check(From(1, 256));
  app->add_option("--hidden", o->hidden,
                  "Units of the hidden layer, 1 to 8192. Default: text 320, mlp 64")
      ->check(From(1, 8192));
  app->add_option(
         "--ngrams", o->text.ngrams,
         "text: an embedding table with a row of 256 numbers for each context of the last 2 to N "
         "bytes (at most 7), by hash, added to the input of the softmax; 0: none")
      ->check(From(0, 7))
      ->capture_default_str();
  app->add_option("--dropout", o->text.dropout,
                  "text: share of hidden units that are dropped in each training example, 0 to 0.9")
      ->capture_default_str();
}

void AddHidden(CLI::App* app, Options* o) {
  // An empty group keeps them out of the help.
  app->add_flag("--drop-tables", o->drop_tables)->group("");
  app->add_option("--worker-channel", o->channel)->group("");
  app->add_option("--input-index", o->input_index)->group("");
}

}  // namespace

Parsed ParseOptions(int argc, const char* const* argv) {
  Parsed parsed;
  Options o;
  CLI::App app(kAbout, "verbena-train");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_version_flag("--version", "verbena-train " VERBENA_VERSION_STRING);
  app.set_config(
         "--config", "",
         "Read options from this TOML file: the same names without the dashes. Options of the "
         "command line take precedence")
      ->type_name("FILE");
  const auto toml = std::make_shared<TomlConfig>(&app);
  app.config_formatter(toml);
  app.get_option("--config")->configurable(false);
  AddWhatToTrain(&app, &o);
  AddCluster(&app, &o);
  AddRdma(&app, &o.rdma, &o.gpu_direct);
  AddFabric(&app, &o.fabric);
  AddTls(&app, &o.tls);
  AddToken(&app, &o.token_file);
  AddTraining(&app, &o);
  AddHidden(&app, &o);
  CheckNumbers(&app);
  RefuseEmptyValues(&app);
  try {
    ParseArguments(&app, argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream ignored;
    parsed.exit_status = kExitOk;
    // Help and version are such errors, too.
    if (app.exit(error, std::cout, ignored) == 0) return parsed;
    std::fprintf(stderr, "verbena-train: %s\n%s", toml->WithPlace(UsageError(app, error)).c_str(),
                 UsageHint(app).c_str());
    parsed.exit_status = kExitUsage;
    return parsed;
  }
  const std::string problem = CheckOptions(o);
  if (!problem.empty()) {
    std::fprintf(stderr, "verbena-train: %s\n%s", toml->WithPlace(problem).c_str(),
                 UsageHint(app).c_str());
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
