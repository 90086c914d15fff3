// Reads a committed checkpoint with its bases, and verifies all that it reads.
//
// **Thread safety**: const methods may be called by any threads at once.
//
// Invariants:
//  1. No byte is passed on before the checksum of its block was compared; in a checkpoint of format
//     version 1, that of its tensor.
//  2. Errors name file, tensor and offset.
//  3. Work is proportional to the data read: a file's header is parsed once for all of its tensors,
//     and no lookup scans a manifest.
//  4. If a checkpoint of the chain has a partition whole, rows of older ones in it do not count.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_READER_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/manifest_index.h"
#include "server/checkpoint/files/open_tensor_files.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

// Some rows of an embedding table: `columns` are the arrays of RowArrays(), keys first, with
// `count` rows each.
struct RowBatch {
  uint64_t count = 0;
  std::vector<absl::Span<const std::byte>> columns;

  absl::Span<const uint64_t> keys() const {
    return {reinterpret_cast<const uint64_t*>(columns[0].data()), count};
  }
  // 0: the row was dropped, and the checkpoint's base may have it.
  absl::Span<const uint32_t> applies() const {
    return {reinterpret_cast<const uint32_t*>(columns[kAppliesColumn].data()), count};
  }
};

// Selects the rows of an incremental checkpoint's chain that count: for each partition those of the
// latest checkpoint that has it whole, and of later ones.
class RowFilter {
 public:
  // All rows count.
  RowFilter() = default;
  // `first_links`: by partition, the oldest link whose rows count.
  RowFilter(uint32_t table, std::vector<size_t> first_links);
  bool Counts(size_t link, uint64_t key) const;
  // False: all rows of that link count.
  bool Drops(size_t link) const { return link < newest_first_; }

 private:
  uint32_t table_ = 0;
  std::vector<size_t> first_links_;
  size_t newest_first_ = 0;
};

// A file with rows of one table.
struct RowFile {
  size_t link = 0;  // of the chain: 0 is the oldest
  const v1::CheckpointFile* file = nullptr;
  uint64_t rows = 0;
};

class CheckpointReader {
 public:
  // `path`: a committed checkpoint; its bases are in the same directory. FAILED_PRECONDITION: a
  // later format. DATA_LOSS: it is damaged, or its base is missing or a different one. NOT_FOUND:
  // no checkpoint there.
  static absl::StatusOr<CheckpointReader> Open(Disk* disk, const std::string& path);

  const std::string& path() const { return links_.back().path; }
  const v1::CheckpointManifest& manifest() const { return links_.back().manifest; }
  const std::string& checksum() const { return links_.back().checksum; }
  // The number of checkpoints in the chain: itself and its bases.
  size_t links() const { return links_.size(); }
  const v1::CheckpointManifest& manifest_of(size_t link) const { return links_[link].manifest; }
  const std::string& path_of(size_t link) const { return links_[link].path; }
  // Null: it has no such table.
  const v1::CheckpointTable* FindTable(const std::string& name) const;
  // The index of that link's own manifest.
  const ManifestIndex& index(size_t link) const { return *links_[link].index; }
  // `file` is of the link's manifest. The file stays open while others are read.
  absl::StatusOr<std::shared_ptr<const SafetensorsReader>> OpenFile(
      size_t link, const v1::CheckpointFile& file) const;
  // Bytes of all files of all links.
  uint64_t bytes() const;

  // Checks that all files exist with their sizes, without reading them.
  absl::Status CheckSizes() const;
  // Verifies every byte of every file. `read` is called with the bytes read since its last call;
  // its error ends this.
  using Progress = std::function<absl::Status(uint64_t bytes)>;
  absl::Status Verify(const Progress& read) const;
  // Verifies one file of one link, so that several processes can share the work.
  absl::Status VerifyFile(size_t link, const v1::CheckpointFile& file, const Progress& read) const;

  // An array of a dense table, in pieces of whole elements. If servers wrote parts of it, the
  // pieces come in any order, each element once.
  using TakeElements =
      std::function<absl::Status(uint64_t first, absl::Span<const std::byte> bytes)>;
  absl::Status ReadArray(const std::string& table, const std::string& array,
                         const TakeElements& take) const;

  // Files of an embedding table's rows. Among the rows that RowFilterOf() passes, a key may be in
  // several links: the row of the latest link counts.
  std::vector<RowFile> RowFiles(const std::string& table) const;
  RowFilter RowFilterOf(const std::string& table) const;
  using TakeRows = std::function<absl::Status(const RowBatch& rows)>;
  absl::Status ReadRowFile(const RowFile& file, const TakeRows& take) const;
  // All rows in their current state, each key once. Memory: 8 bytes and more for each row of an
  // incremental checkpoint; none for a full one.
  absl::Status ReadRows(const std::string& table, const TakeRows& take) const;
  // The number of keys. For an incremental checkpoint this reads all keys.
  absl::StatusOr<uint64_t> CountRows(const std::string& table) const;

 private:
  struct Link {
    std::string path;
    v1::CheckpointManifest manifest;
    std::string checksum;
    // Index of `manifest`, whose entries stay in place when the link is moved.
    std::unique_ptr<const ManifestIndex> index;
  };
  explicit CheckpointReader(Disk* disk)
      : disk_(disk), files_(std::make_unique<OpenTensorFiles>(disk)) {}

  Disk* disk_;
  std::vector<Link> links_;  // oldest first
  std::unique_ptr<OpenTensorFiles> files_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_READER_H_
