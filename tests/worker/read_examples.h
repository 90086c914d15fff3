// Reads examples from files as the trainer does, all of them at once.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_WORKER_READ_EXAMPLES_H_
#define VERBENA_TESTS_WORKER_READ_EXAMPLES_H_

#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/input_indexer.h"
#include "worker/data/libsvm_reader.h"
#include "worker/data/streamed_input.h"

namespace verbena::worker {

inline constexpr uint64_t kTestSpoolBytes = uint64_t{1} << 30;

struct ReadOptions {
  IndexOptions index = {};
  uint64_t memory = uint64_t{1} << 30;
  uint64_t max_index = LibsvmParser::kMaxIndex;
};

inline absl::StatusOr<KeyedExamples> ReadExamples(const std::vector<std::string>& paths,
                                                  const ReadOptions& options) {
  Spool spool(kTestSpoolBytes);
  const auto index = InputIndexer::Index(paths, options.index, &spool);
  if (!index.ok()) return index.status();
  const uint64_t rows = (*index)->examples();
  const auto set = StreamExamples({*index, 0, rows}, options.memory, options.max_index);
  if (!set.ok()) return set.status();
  std::vector<uint64_t> ids(rows);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  KeyedExamples examples;
  absl::Status status = (*set)->Fetch(ids, &examples);
  examples.features = (*set)->shape().features;
  if (!status.ok()) return status;
  return examples;
}

// For a model with a dense weight an index.
inline absl::StatusOr<KeyedExamples> ReadLibsvm(const std::vector<std::string>& paths) {
  return ReadExamples(paths, {.index = {.format = ExampleFormat::kLibsvm, .parse = true},
                              .max_index = LibsvmParser::kMaxDenseIndex});
}

inline absl::StatusOr<KeyedExamples> ReadCriteo(const std::vector<std::string>& paths) {
  return ReadExamples(paths, {.index = {.format = ExampleFormat::kCriteo}});
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_READ_EXAMPLES_H_
