// Reads the tables of a checkpoint in windows, each with everything of its elements or rows:
// parameters, master copies, the optimizer's state.
//
// Arrays of one table that the same writer wrote have the same ranges, in the same order, so that
// they are read side by side, each in order, as its checksum wants.
//
// **Thread safety**: one thread at a time.
//
// Invariants:
//  1. Windows count only once Next() has said that there are no more: checksums are known at the
//     end.
#ifndef VERBENA_SERVER_SAVES_RESTORE_READER_H_
#define VERBENA_SERVER_SAVES_RESTORE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/record.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/disk.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/tensor_file.h"

namespace verbena::server {

struct RestoreWindow {
  size_t table = 0;  // of those that were asked for
  bool rows = false;
  uint64_t first = 0;    // element; not of rows
  uint64_t count = 0;    // elements or rows
  uint64_t applies = 0;  // of the elements
  // Elements: parameters, then master copies (if there are any) and state. Rows: as RowArrays().
  std::vector<std::vector<std::byte>> columns;
  bool master = false;                    // columns[1] is that
  ElementType dtype = ElementType::kF32;  // of the parameters
};

class RestoreReader {
 public:
  static constexpr uint64_t kRowsAtOnce = 4096;

  // `path`: of a committed checkpoint. `tables`: by their names there. Without `state` parameters
  // alone are read (of 16 bits as they are), and of rows keys and values. NOT_FOUND: no such table.
  static absl::StatusOr<std::unique_ptr<RestoreReader>> Open(checkpoint::Disk* disk,
                                                             const std::string& path,
                                                             const std::vector<std::string>& tables,
                                                             bool state);
  // False: that was all, and every checksum was right.
  absl::StatusOr<bool> Next(RestoreWindow* window);
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  // Tensors that are read side by side.
  struct Group {
    size_t table = 0;
    size_t link = 0;
    bool rows = false;
    bool master = false;
    ElementType dtype = ElementType::kF32;
    std::vector<const v1::CheckpointFile*> files;      // by column
    std::vector<const v1::CheckpointTensor*> tensors;  // by column
    std::vector<size_t> element_bytes;                 // of a row's, or one element's
    uint64_t count = 0;                                // rows
    std::vector<v1::CheckpointTensor::Range> ranges;   // elements
    uint64_t chunk_elements = 0;
  };
  // A group that is being read.
  struct Reading {
    std::vector<std::unique_ptr<checkpoint::SafetensorsReader>> files;
    std::vector<checkpoint::TensorCursor> cursors;
    size_t range = 0;
    uint64_t done = 0;  // of the range; of rows: of all
  };

  RestoreReader(checkpoint::Disk* disk, checkpoint::CheckpointReader reader)
      : disk_(disk), reader_(std::move(reader)) {}
  absl::Status Plan(const std::vector<std::string>& tables, bool state);
  absl::Status PlanDense(size_t index, const v1::CheckpointTable& table, bool state);
  absl::Status PlanRows(size_t index, const v1::CheckpointTable& table, bool state);
  absl::Status OpenGroup();
  absl::Status CloseGroup();
  absl::Status Read(uint64_t count, RestoreWindow* window);

  checkpoint::Disk* const disk_;
  const checkpoint::CheckpointReader reader_;
  std::vector<Group> groups_;
  std::vector<std::vector<uint64_t>> applies_;  // by table, of its chunks
  size_t group_ = 0;
  std::unique_ptr<Reading> reading_;
  uint64_t read_bytes_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_SAVES_RESTORE_READER_H_
