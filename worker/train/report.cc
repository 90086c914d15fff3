#include "worker/train/report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

double SamplesPerSecond(const Totals& totals) {
  return totals.seconds > 0 ? static_cast<double>(totals.samples) / totals.seconds : 0;
}

// Milliseconds where it took less than a second.
std::string SecondsText(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.3f", seconds) : absl::StrFormat("%.1f", seconds);
}

// Further lines of the report.
std::string Rest(const Report& report) {
  std::string text;
  if (report.stopped_early) text += "stopped early: validation no longer got better\n";
  if (report.workers_lost > 0) absl::StrAppend(&text, "workers lost: ", report.workers_lost, "\n");
  if (report.quality) {
    const Quality& quality = *report.quality;
    absl::StrAppendFormat(&text, "on %d test %s:", quality.examples,
                          quality.bits_per_byte ? "bytes" : "examples");
    absl::StrAppend(&text, QualityText(quality), "\n");
  }
  if (report.parameters_hash) {
    absl::StrAppendFormat(&text, "parameters xxh64 %016x\n", *report.parameters_hash);
  }
  return text;
}

// The types of dense tables, unless all are f32.
std::string TypesText(const Options& options) {
  if (AllF32(options)) return "";
  const auto sent = [](const std::string& codec, const std::string& type) {
    return codec == "none" ? type : codec;
  };
  return absl::StrCat(", parameters ", sent(options.pull_codec, options.dtype), ", gradients ",
                      sent(options.push_codec, options.gradient_dtype));
}

}  // namespace

void AddReport(const Options& options, const Report& report, JsonWriter* json) {
  const Totals& totals = report.totals;
  json->Add("samples_per_s", SamplesPerSecond(totals));
  json->Add("loss", totals.loss);
  json->Add("bytes_pushed", totals.bytes_pushed);
  json->Add("bytes_pulled", totals.bytes_pulled);
  json->Add("steps", totals.steps);
  json->Add("steps_before", totals.steps_before);
  json->Add("samples", totals.samples);
  json->Add("seconds", totals.seconds);
  json->Add("workers", uint64_t{options.workers});
  json->Add("workers_lost", report.workers_lost);
  json->Add("format", options.format);
  if (options.format != "text") json->Add("model", ModelOf(options));
  json->Add("consistency", options.consistency);
  json->Add("dtype", options.dtype);
  json->Add("gradient_dtype", options.gradient_dtype);
  json->Add("push_codec", options.push_codec);
  json->Add("pull_codec", options.pull_codec);
  json->Add("optimizer", options.optimizer);
  json->Add("transport", report.transport);
  if (options.early_stop > 0) json->Add("stopped_early", report.stopped_early);
  if (report.quality) {
    json->Add("test_examples", report.quality->examples);
    json->Add("auc", report.quality->auc);
    json->Add("accuracy", report.quality->accuracy);
    json->Add("bits_per_byte", report.quality->bits_per_byte);
  }
  if (report.parameters_hash) {
    json->Add("parameters_xxh64", absl::StrFormat("%016x", *report.parameters_hash));
  }
}

const JsonObject& ReportFields() {
  static const auto& fields = *new JsonObject{
      "verbena-train",
      "The result of the job; throughput, steps and loss are those of all workers together.",
      {{"samples_per_s", "number", "Training examples (text: bytes) per second."},
       {"loss", "number",
        "Mean loss of an example, in nats, over the last twentieth of the steps."},
       {"bytes_pushed", "number", "Bytes of gradients in pushes."},
       {"bytes_pulled", "number", "Bytes of parameters in pulls."},
       {"steps", "number", "Steps of the run, with those before a resume."},
       {"steps_before", "number",
        "Those of them that the run had before these workers; samples and rates are of the rest."},
       {"samples", "number", "Training examples (text: bytes) of this run."},
       {"seconds", "number", "Duration of training, in seconds."},
       {"workers", "number", "Workers of the job (--workers)."},
       {"workers_lost", "number", "Workers that ended with an error."},
       {"format", "text", "--format."},
       {"model", "text, optional", "The model; not for text."},
       {"consistency", "text", "--consistency."},
       {"dtype", "text", "--dtype."},
       {"gradient_dtype", "text", "--gradient-dtype."},
       {"push_codec", "text", "--push-codec."},
       {"pull_codec", "text", "--pull-codec."},
       {"optimizer", "text", "--optimizer."},
       {"transport", "text", "Transport of the workers' lanes."},
       {"stopped_early", "boolean, optional", "Whether --early-stop ended the run; with it only."},
       {"test_examples", "number, optional", "Test examples (text: bytes); with test data only."},
       {"auc", "number, optional", "Area under the ROC curve, from 0 to 1; not for text."},
       {"accuracy", "number, optional", "Share of correct predictions, from 0 to 1; not for text."},
       {"bits_per_byte", "number, optional", "Mean cross entropy, in bits per byte; text only."},
       {"parameters_xxh64", "text, optional", "Hash of the final parameters; with --checksum."}}};
  return fields;
}

std::string FormatReport(const Options& options, const Report& report) {
  if (options.json) {
    JsonWriter json;
    AddReport(options, report, &json);
    return json.ToString() + "\n";
  }
  const Totals& totals = report.totals;
  const uint64_t before = std::min(totals.steps_before, totals.steps);
  if (totals.steps == before) {
    return absl::StrCat("nothing was left to train: the run has ", totals.steps, " steps\n") +
           Rest(report);
  }
  std::string text = absl::StrFormat(
      "trained %d steps%s in %s s with %d workers (%s, %s%s): %.0f samples/s, loss %.4f, pushed "
      "%.1f MB, pulled %.1f MB\n",
      totals.steps - before,
      before > 0 ? absl::StrCat(" (", before + 1, " to ", totals.steps, ")") : "",
      SecondsText(totals.seconds), options.workers, options.consistency, report.transport,
      TypesText(options), SamplesPerSecond(totals), totals.loss,
      static_cast<double>(totals.bytes_pushed) / 1e6,
      static_cast<double>(totals.bytes_pulled) / 1e6);
  return text + Rest(report);
}

bool WriteResult(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return true;
  }
  std::fprintf(stderr, "verbena-train: cannot write the result to standard output: %s\n",
               std::strerror(errno));
  return false;
}

}  // namespace verbena::worker
