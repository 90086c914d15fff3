// Which examples of the inputs are for training and which for the test.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_DATA_INPUT_PARTS_H_
#define VERBENA_WORKER_DATA_INPUT_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/input_index.h"

namespace verbena::worker {

struct Inputs {
  std::shared_ptr<const InputIndex> data;
  std::shared_ptr<const InputIndex> test;  // may be null
};

// Examples [first, first + count) of an index.
struct InputPart {
  std::shared_ptr<const InputIndex> index;
  uint64_t first = 0;
  uint64_t count = 0;
};

struct InputParts {
  InputPart train, test;  // `test` may have no examples
};

// The test's inputs, or where there are none the last `holdout` share of the examples, are for the
// test. INVALID_ARGUMENT: nothing is left to train on.
absl::StatusOr<InputParts> SplitInputs(const Inputs& inputs, double holdout);

// All bytes of a part whose examples are bytes.
absl::StatusOr<std::string> ReadBytes(const InputPart& part);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_INPUT_PARTS_H_
