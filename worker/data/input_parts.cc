#include "worker/data/input_parts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace verbena::worker {

absl::StatusOr<InputParts> SplitInputs(const Inputs& inputs, double holdout) {
  const uint64_t examples = inputs.data->examples();
  if (inputs.test != nullptr) {
    return InputParts{{inputs.data, 0, examples}, {inputs.test, 0, inputs.test->examples()}};
  }
  const auto held = static_cast<uint64_t>(std::llround(static_cast<double>(examples) * holdout));
  if (held >= examples) {
    return absl::InvalidArgumentError(
        absl::StrCat("holding out ", holdout, " of ", examples,
                     inputs.data->format() == ExampleFormat::kByte ? " bytes" : " lines",
                     " leaves nothing to train on or nothing to test on; give --test, or "
                     "--holdout 0"));
  }
  return InputParts{{inputs.data, 0, examples - held}, {inputs.data, examples - held, held}};
}

absl::StatusOr<std::string> ReadBytes(const InputPart& part) {
  std::string all, block;
  if (part.count == 0) return all;
  const uint64_t end = part.first + part.count;
  for (uint64_t b = part.index->BlockOf(part.first); b <= part.index->BlockOf(end - 1); ++b) {
    if (absl::Status status = part.index->Read(b, &block); !status.ok()) return status;
    const uint64_t first = part.index->FirstExampleOf(b);
    const uint64_t from = part.first > first ? part.first - first : 0;
    all.append(block, from, std::min(block.size(), end - first) - from);
  }
  return all;
}

}  // namespace verbena::worker
