// Finds the examples of files, in one pass that keeps none of them.
//
// Files that can be read only once, or only from their start, are copied first (spool.h).
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_DATA_INPUT_INDEXER_H_
#define VERBENA_WORKER_DATA_INPUT_INDEXER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/input_index.h"
#include "worker/data/keyed_examples.h"
#include "worker/data/spool.h"

namespace verbena::worker {

struct IndexOptions {
  ExampleFormat format = ExampleFormat::kByte;
  // Parse every line: finds the greatest index, and errors.
  bool parse = false;
  uint64_t block_bytes = 256 * 1024;
  // Not empty: pipes are refused, with this reason.
  std::string refuse_pipes = {};
  // From time to time: the file, and bytes of it that were copied or looked through. Its error
  // ends the pass.
  std::function<absl::Status(const std::string& file, uint64_t bytes)> progress = {};
};

class InputIndexer {
 public:
  // The longest line of a format with lines: a line is in memory as a whole.
  static constexpr uint64_t kMaxLineBytes = 1 << 20;

  // `spool` outlives the call.
  static absl::StatusOr<std::shared_ptr<const InputIndex>> Index(
      const std::vector<std::string>& paths, const IndexOptions& options, Spool* spool);

 private:
  InputIndexer(const IndexOptions& options, Spool* spool);

  absl::Status AddFile(const std::string& path);
  // Opens it, or a copy of it.
  absl::Status Open(const std::string& path, InputIndex::File* file, rdma::UniqueFd* fd);
  void AddBytes();
  absl::Status AddLines(int fd);
  absl::Status AddLine(std::string_view line);
  absl::Status Parse(std::string_view lines);
  bool IsExample(std::string_view line) const;
  absl::Status Progress(uint64_t bytes) const;

  const IndexOptions& options_;
  Spool& spool_;
  std::shared_ptr<InputIndex> index_;
  // Position in the file being read:
  uint64_t line_ = 1, offset_ = 0;
  KeyedExamples parsed_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_INPUT_INDEXER_H_
