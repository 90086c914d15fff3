// Where the examples of a list of files lie: the files cut into blocks of whole lines, and the
// number of the first example of each block. With it, any example is found by its number.
//
// Takes 16 bytes a block: 64 MiB a terabyte with blocks of 256 KiB.
//
// **Thread safety**: immutable once made; Read() and LineOf() may be called by several threads.
#ifndef VERBENA_WORKER_DATA_INPUT_INDEX_H_
#define VERBENA_WORKER_DATA_INPUT_INDEX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"

namespace verbena::worker {

// An example is a byte, or a line of the format.
enum class ExampleFormat : uint32_t { kByte, kLibsvm, kCriteo };

class InputIndex {
 public:
  struct File {
    std::string name;
    rdma::UniqueFd copy;     // to be read instead of the file; none: the file
    uint64_t begin = 0;      // behind a byte order mark
    uint64_t end = 0;        // its size
    int64_t changed_ns = 0;  // when it was changed last, as of the indexing
    uint64_t first_block = 0;
  };
  struct Block {
    uint64_t begin = 0;  // in its file
    uint64_t first_example = 0;
  };

  ExampleFormat format() const { return format_; }
  uint64_t examples() const { return examples_; }
  uint64_t bytes() const { return bytes_; }  // of all files
  uint64_t features() const { return features_; }
  uint64_t blocks() const { return blocks_.size(); }
  const std::vector<File>& files() const { return files_; }

  uint64_t BlockOf(uint64_t example) const;  // example < examples()
  uint64_t FirstExampleOf(uint64_t block) const { return blocks_[block].first_example; }
  uint64_t ExamplesOf(uint64_t block) const;
  const File& FileOf(uint64_t block) const;

  // The block's bytes. FAILED_PRECONDITION: the file is not the one that was indexed.
  absl::Status Read(uint64_t block, std::string* out) const;
  // The number of the block's first line. Reads the file up to there.
  absl::StatusOr<uint64_t> LineOf(uint64_t block) const;

  // For another process of the same executable that has the descriptors of the copies, too.
  std::string ToBytes() const;
  // INVALID_ARGUMENT: these are no such bytes. Takes the descriptors over.
  static absl::StatusOr<std::shared_ptr<const InputIndex>> FromBytes(const std::string& bytes);

 private:
  friend class InputIndexer;

  uint64_t EndOf(uint64_t block) const;
  absl::StatusOr<rdma::UniqueFd> Open(const File& file) const;

  ExampleFormat format_ = ExampleFormat::kByte;
  uint64_t examples_ = 0;
  uint64_t bytes_ = 0;
  uint64_t features_ = 0;  // one more than the greatest libsvm index; 0: not looked for
  std::vector<File> files_;
  std::vector<Block> blocks_;
};

// When the file was changed last; 0: unknown.
int64_t ChangedNs(int fd);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_INPUT_INDEX_H_
