// Measures of a binary classifier.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_TRAIN_METRICS_H_
#define VERBENA_WORKER_TRAIN_METRICS_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace verbena::worker {

uint64_t CountNotFinite(absl::Span<const float> numbers);

// Area under the ROC curve: the probability that a positive example scores above a negative one,
// ties counting half. nullopt when there are no positives or no negatives, or a score is not
// finite. `labels` are 0 or 1.
std::optional<double> AreaUnderCurve(absl::Span<const float> scores,
                                     absl::Span<const float> labels);

// Share of examples whose probability is on its label's side of 1/2. nullopt when there are none.
std::optional<double> Accuracy(absl::Span<const float> probabilities,
                               absl::Span<const float> labels);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_METRICS_H_
