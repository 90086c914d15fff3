// The result of a run, for people and for programs.
//
// **Thread safety**: pure functions, but for `WriteResult`: one thread.
#ifndef VERBENA_WORKER_TRAIN_REPORT_H_
#define VERBENA_WORKER_TRAIN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/json.h"
#include "proto/base/json_fields.h"
#include "worker/models/model.h"
#include "worker/train/options.h"
#include "worker/train/trainer.h"

namespace verbena::worker {

struct Report {
  Totals totals;  // of all workers; steps, seconds and loss as of the whole job
  uint64_t workers_lost = 0;
  bool stopped_early = false;
  std::string transport;
  std::optional<Quality> quality;
  std::optional<uint64_t> parameters_hash;
};

// One JSON object, or a few lines; ends with a line end.
std::string FormatReport(const Options& options, const Report& report);
// Adds the members of that object.
void AddReport(const Options& options, const Report& report, JsonWriter* json);
// Their descriptions, for docs/reference/json.md.
const JsonObject& ReportFields();

// Writes a result to standard output. If that fails, on a full disk for example, reports that on
// standard error and returns false.
bool WriteResult(const std::string& text);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_REPORT_H_
