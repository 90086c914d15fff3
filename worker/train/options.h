// The command line and configuration file of verbena-train.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_TRAIN_OPTIONS_H_
#define VERBENA_WORKER_TRAIN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbena/rdma_options.h"
#include "verbena/tls_options.h"
#include "worker/models/text_model.h"
#include "worker/stores/parameter_store.h"

namespace verbena::worker {

// Exit statuses of verbena-train, beside 128 + signal when one ended it.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

struct Options {
  std::string cluster;
  std::string format;
  std::string model;  // empty: the format's default
  std::vector<std::string> data;
  std::vector<std::string> test;
  double holdout = 0.1;
  uint64_t input_memory = uint64_t{96} << 20;  // bytes of examples that a worker keeps
  uint64_t spool_bytes = uint64_t{64} << 30;   // of copies of pipes and compressed files
  uint32_t workers = 1;
  uint32_t max_workers = 0;  // not 0: an elastic job, of which this process is one worker
  std::string consistency = "sync";
  std::optional<uint32_t> staleness;  // ssp
  std::string dtype = "f32";
  std::string gradient_dtype = "f32";
  std::string push_codec = "none";
  std::string pull_codec = "none";
  uint32_t min_count = 1;
  uint64_t max_rows = 0;
  uint64_t hot_bytes = 0;
  std::string row_dtype = "f32";
  std::vector<std::string> table_options;  // NAME=VALUE
  std::string optimizer = "adam";
  std::optional<double> rate;
  std::string schedule = "constant";
  uint64_t warmup_steps = 0;
  std::optional<double> weight_decay;
  double clip_global_norm = 0;
  std::optional<double> epochs;
  std::optional<uint64_t> batch;
  std::optional<uint64_t> steps;
  std::optional<double> l2;
  uint64_t seed = 1;
  std::string device = "cpu";       // "cuda", "cuda:N", "cuda:N,M"
  std::string gpu_direct = "auto";  // "off", "required"
  std::string transport = "auto";
  RdmaOptions rdma;
  FabricOptions fabric;
  TlsOptions tls;
  std::string token_file;
  std::string job;  // empty: a name of its own for this run
  int rank = -1;    // -1: launch all workers
  double timeout = 30;
  std::string predictions;
  std::string log;
  bool json = false;
  bool checksum = false;
  bool log_steps = false;
  bool keep_tables = false;
  bool resume = false;
  bool resume_auto = false;  // with `resume`: if there is something to resume
  bool local = false;
  bool count_models = false;
  uint64_t validate_every = 0;
  uint64_t validate_examples = 100000;
  uint64_t early_stop = 0;
  std::optional<int> embedding, hidden;  // default: by model
  TextModelOptions text;

  // For the processes that the launcher starts; not in the help.
  bool drop_tables = false;  // after the evaluation
  int channel = -1;
  int input_index = -1;  // the launcher's; see inputs.h
};

struct Parsed {
  std::optional<Options> options;
  int exit_status = kExitOk;  // when there are none: --help, --version or an error was printed
};

// Prints help to stdout and errors to stderr.
Parsed ParseOptions(int argc, const char* const* argv);

// With the defaults of the format and the model filled in. ModelOf() is "text" for text.
std::string ModelOf(const Options& options);
bool HasEmbeddingTable(const Options& options);
uint32_t EmbeddingOf(const Options& options);
uint32_t HiddenOf(const Options& options);
double L2Of(const Options& options);
uint64_t BatchOf(const Options& options);
uint64_t StepsOf(const Options& options, uint64_t examples);
// Whether dense tables have only f32, in both directions.
bool AllF32(const Options& options);
// For a run of this many steps.
TrainingSpec TrainingSpecOf(const Options& options, uint64_t steps);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_OPTIONS_H_
