#include "worker/train/validation.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace verbena::worker {
namespace {

// Higher is better. None: nothing was measured (such as AUC where all labels are the same), or not
// all predictions are numbers.
std::optional<double> Goodness(const Quality& quality) {
  if (quality.not_finite > 0) return std::nullopt;
  if (quality.auc) return quality.auc;
  if (quality.accuracy) return quality.accuracy;
  if (quality.bits_per_byte) return -*quality.bits_per_byte;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Quality> EvaluateWith(Model* model, RowStore* rows, Evaluation evaluation) {
  std::vector<const float*> of_tables(model->tables().size());
  evaluation.rows = [&](const Batch& batch) -> absl::StatusOr<Rows> {
    for (size_t t = 0; t < of_tables.size(); ++t) {
      rows->Lookup(RowStore::kEvaluationSlot, t, batch.keys[t]);
    }
    absl::Status status = rows->WaitLookups(RowStore::kEvaluationSlot);
    if (!status.ok()) return status;
    for (size_t t = 0; t < of_tables.size(); ++t) {
      of_tables[t] = rows->rows(RowStore::kEvaluationSlot, t);
    }
    return Rows(of_tables);
  };
  return model->Evaluate(evaluation);
}

std::string QualityText(const Quality& quality) {
  std::string text;
  if (quality.auc) absl::StrAppendFormat(&text, " AUC %.4f", *quality.auc);
  if (quality.accuracy) absl::StrAppendFormat(&text, " accuracy %.4f", *quality.accuracy);
  if (quality.bits_per_byte) {
    absl::StrAppendFormat(&text, " %.4f bits per byte", *quality.bits_per_byte);
  }
  if (quality.not_finite > 0) {
    absl::StrAppend(&text, " ", quality.not_finite, " of ", quality.examples,
                    " predictions are not numbers");
  }
  return text;
}

absl::Status Diverged(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("training has diverged: ", what,
                   "; a lower --rate, --warmup-steps or --clip-global-norm may help"));
}

absl::Status CheckConverged(const Quality& quality) {
  if (quality.not_finite == 0) return absl::OkStatus();
  return Diverged(absl::StrCat(quality.not_finite, " of ", quality.examples,
                               " predictions on the test data are not numbers"));
}

std::string ValidationText(const Validation& validation) {
  return absl::StrCat("validation after step ", validation.step, ":",
                      QualityText(validation.quality), validation.best ? " (best so far)" : "");
}

bool Patience::Add(const Quality& quality) {
  const std::optional<double> goodness = Goodness(quality);
  const bool best = goodness && (!best_ || *goodness > *best_);
  if (best) best_ = goodness;
  worse_ = best ? 0 : worse_ + 1;
  return best;
}

}  // namespace verbena::worker
