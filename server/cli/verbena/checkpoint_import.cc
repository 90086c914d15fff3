#include "server/cli/verbena/checkpoint_import.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/json.h"
#include "proto/spec/option_value.h"
#include "server/checkpoint/files/import.h"
#include "server/cli/validators.h"
#include "server/cli/verbena/checkpoint_progress.h"
#include "server/cli/verbena/text_table.h"
#include "shard/optimizer/optimizer.h"

namespace verbena::cli {
namespace {

using checkpoint::ImportedTable;
using checkpoint::PosixDisk;

std::vector<std::string> WordsOf(const char* option) { return EnumWords(*FindTableOption(option)); }

bool IsWordOf(const char* option, const std::string& word) {
  const std::vector<std::string> words = WordsOf(option);
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Accepts texts for which `good` returns true.
template <typename Good>
CLI::Validator Allowed(Good good, const std::string& allowed) {
  CLI::Validator check;
  check.description("");
  check.operation([good, allowed](std::string& text) -> std::string {
    if (good(text)) return "";
    return absl::StrCat("'", Printable(text), "' is not allowed: ", allowed);
  });
  return check;
}

CLI::Validator KnownOptimizer() {
  CLI::Validator check;
  check.description("");
  check.operation([](std::string& text) -> std::string {
    v1::Optimizer optimizer;
    optimizer.set_name(text);
    return Printable(std::string(shard::CheckOptimizer(optimizer).message()));
  });
  return check;
}

void AddDefaults(CLI::App* action, ImportCommand* command) {
  v1::TableSpec* defaults = &command->options.defaults;
  action
      ->add_option_function<std::string>(
          "--consistency",
          [defaults](const std::string& word) {
            (void)SetOption(*FindTableOption("consistency"), word, defaults);
          },
          "Consistency of tables without a specification: sync, async or ssp (default: sync)")
      ->type_name("KIND")
      ->check(Allowed([](const std::string& word) { return IsWordOf("consistency", word); },
                      absl::StrJoin(WordsOf("consistency"), ", ")));
  CLI::Option* rate =
      action
          ->add_option_function<std::string>(
              "--rate",
              [defaults](const std::string& text) {
                double value = 0;
                (void)absl::SimpleAtod(text, &value);
                defaults->mutable_optimizer()->set_rate(value);
              },
              "Learning rate of these tables (default: 0, for tables that are only pulled)")
          ->type_name("R")
          ->check(Allowed(
              [](const std::string& text) {
                double value = 0;
                return absl::SimpleAtod(text, &value) && value >= 0 &&
                       std::isfinite(static_cast<float>(value));
              },
              "a finite number that is not negative"));
  action
      ->add_option_function<std::string>(
          "--optimizer",
          [defaults](const std::string& name) { defaults->mutable_optimizer()->set_name(name); },
          "Optimizer of these tables, with its defaults; needs --rate (default: sgd)")
      ->type_name("NAME")
      ->check(KnownOptimizer())
      ->needs(rate);
  action
      ->add_option_function<std::string>(
          "--dtype",
          [command](const std::string& word) {
            v1::TableSpec spec;
            (void)SetOption(*FindTableOption("dtype"), absl::AsciiStrToLower(word), &spec);
            command->options.dtype = spec.dtype();
          },
          "Type of dense tables: f32, bf16 or f16; required for F64 tensors (default: as the "
          "tensors)")
      ->type_name("DTYPE")
      ->check(Allowed(
          [](const std::string& word) { return IsWordOf("dtype", absl::AsciiStrToLower(word)); },
          absl::StrJoin(WordsOf("dtype"), ", ")));
}

std::string Json(const ImportCommand& command, const std::string& from, const std::string& made,
                 const checkpoint::ImportPlan& plan, double seconds) {
  JsonArray names;
  for (const ImportedTable& table : plan.tables) names.Add(table.spec.name());
  JsonWriter object;
  object.Add("source", from);
  object.Add("checkpoint", checkpoint::Join(command.options.to, made));
  object.Add("job", plan.tables.front().spec.job());
  object.Add("tables", names);
  object.Add("rows", plan.rows());
  object.Add("bytes", plan.bytes);
  object.Add("seconds", seconds);
  return object.ToString() + "\n";
}

}  // namespace

void AddImport(CLI::App* action, ImportCommand* command) {
  checkpoint::ImportOptions* options = &command->options;
  action
      ->add_option("--to", options->to,
                   "Directory for the checkpoint, which must have no checkpoints")
      ->type_name("DIRECTORY")
      ->required();
  action
      ->add_option("--job", options->job,
                   "Job of the tables (default: as in --spec, else 'default')")
      ->type_name("JOB")
      ->check(server::NotEmpty("a job's name"));
  action
      ->add_option("--spec", command->spec_file,
                   "Specifications of tables in the format of a checkpoint's manifest.json: "
                   "{\"tables\": [{\"spec\": {\"name\": ..., \"optimizer\": ...}}, ...]}")
      ->type_name("FILE");
  action
      ->add_option("--table", options->tables,
                   "Only this tensor, or T of T.keys and T.values; may be repeated (default: all)")
      ->type_name("T")
      ->allow_extra_args(false);
  action
      ->add_option_function<std::vector<std::string>>(
          "--skip",
          [options](const std::vector<std::string>& names) {
            options->skipped.insert(names.begin(), names.end());
          },
          "Omit this tensor; may be repeated")
      ->type_name("TENSOR")
      ->allow_extra_args(false);
  // No table has a '=' in its name, and a tensor may.
  action
      ->add_option_function<std::vector<std::string>>(
          "--rename",
          [options](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const size_t equals = pair.rfind('=');
              options->renamed[pair.substr(0, equals)] = pair.substr(equals + 1);
            }
          },
          "Import a tensor as a table of another name; may be repeated")
      ->type_name("T=TABLE")
      ->allow_extra_args(false)
      ->check(Allowed(
          [](const std::string& text) {
            const size_t equals = text.rfind('=');
            return equals != 0 && equals != std::string::npos && equals + 1 < text.size();
          },
          "T=TABLE"));
  AddDefaults(action, command);
}

absl::StatusOr<std::string> RunImport(const ImportCommand& command, const std::string& from,
                                      bool progress, bool json, int signal_fd) {
  checkpoint::ImportOptions options = command.options;
  options.from = from;
  options.written_by = "verbena " VERBENA_VERSION;
  options.time = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  if (!command.spec_file.empty()) {
    auto specs = checkpoint::ReadTableSpecs(PosixDisk(), command.spec_file);
    if (!specs.ok()) return specs.status();
    options.specs = *std::move(specs);
  }
  const absl::StatusOr<checkpoint::ImportPlan> plan = checkpoint::PlanImport(PosixDisk(), options);
  if (!plan.ok()) return plan.status();
  // A cluster would refuse it, after all has been written.
  for (const ImportedTable& table : plan->tables) {
    absl::Status status = shard::CheckTableOptimizer(table.spec);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", table.spec.name(), "': ", std::string(status.message())));
    }
  }
  Progress shown(progress, "importing", plan->bytes, signal_fd);
  const absl::StatusOr<std::string> made =
      checkpoint::Import(PosixDisk(), options, *plan, shown.Callback());
  if (!made.ok()) return made.status();
  if (json) return Json(command, from, *made, *plan, shown.seconds());
  const size_t tables = plan->tables.size();
  return absl::StrCat(Printable(checkpoint::Join(options.to, *made)), ": ", tables,
                      tables == 1 ? " table" : " tables", " of job '",
                      Printable(plan->tables.front().spec.job()), "', ", Count(plan->rows()),
                      " rows, ", Bytes(plan->bytes),
                      "; 'verbena checkpoint restore' makes a cluster load it\n");
}

}  // namespace verbena::cli
