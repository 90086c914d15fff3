// Reads the tables of a checkpoint in windows. A window has all data of its elements or rows:
// parameters, master copies, the optimizer's state.
//
// Arrays of one table that the same writer wrote have the same ranges, in the same order. They form
// a group, and are read side by side. Each shard reads the windows that have some of its data, and
// verifies their blocks before it uses them. If the same shards restore that wrote, each reads only
// its own files.
//
// **Thread safety**: one thread at a time.
//
// Invariants:
//  1. A window has only bytes that were verified here.
//  2. A row is in no window if a later checkpoint of the chain replaces it, or has its whole
//     partition; a later window may have it again.
//  3. All readers of the same tables of the same checkpoint number the groups alike.
#ifndef VERBENA_SERVER_CHECKPOINT_RESTORE_READER_H_
#define VERBENA_SERVER_CHECKPOINT_RESTORE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/safetensors.h"
#include "server/checkpoint/files/tensor_file.h"

namespace verbena::server {

struct RestoreWindow {
  size_t table = 0;  // of those that were asked for
  bool rows = false;
  uint64_t first = 0;     // element; not of rows
  uint64_t count = 0;     // elements or rows
  uint64_t of_table = 0;  // rows, about
  uint64_t applies = 0;   // of the elements
  // Elements: parameters, then master copies (if there are any) and state. Rows: as in RowArrays().
  std::vector<std::vector<std::byte>> columns;
  bool master = false;                    // columns[1] is that
  ElementType dtype = ElementType::kF32;  // of the parameters
};

struct RestoreRead {
  struct Table {
    std::string name;  // in the checkpoint
    uint32_t id = 0;   // in the cluster
  };
  std::string path;  // of a committed checkpoint
  std::vector<Table> tables;
  // False: reads parameters alone (16-bit types unconverted), and of rows keys and values.
  bool state = true;
  std::vector<bool> ours;  // of the cluster's partitions: wanted
};

class RestoreReader {
 public:
  // Many rows of each partition, so that the cost per partition is small.
  static constexpr uint64_t kRowBytesAtOnce = 4 << 20;

  // NOT_FOUND: no such table.
  static absl::StatusOr<std::unique_ptr<RestoreReader>> Open(checkpoint::Disk* disk,
                                                             const RestoreRead& wanted);
  // A window with data of this shard, and perhaps of others. False: there is no more. The window's
  // contents are replaced: passing one that was read before reuses its memory.
  absl::StatusOr<bool> Next(RestoreWindow* window);
  uint64_t read_bytes() const { return read_bytes_; }  // or passed over
  size_t groups() const { return groups_.size(); }
  // Groups whose first element or row is ours, and that were read to their end.
  const std::vector<uint32_t>& checked() const { return checked_; }

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
    uint64_t at_once = 0;                              // rows
    uint64_t of_table = 0;                             // rows of its table, about
    std::vector<v1::CheckpointTensor::Range> ranges;   // elements
    uint64_t chunk_elements = 0;
  };
  // A group that is being read.
  struct Reading {
    std::vector<std::shared_ptr<const checkpoint::SafetensorsReader>> files;
    // By column; null until something of it is ours.
    std::vector<std::unique_ptr<checkpoint::TensorCursor>> cursors;
    bool first_ours = false;  // the first element or row
    size_t range = 0;
    uint64_t done = 0;  // of the range; of rows: of all
    uint64_t all = 0;   // elements or rows of the tensors that are behind us
  };

  RestoreReader(checkpoint::CheckpointReader reader, const RestoreRead& wanted)
      : wanted_(wanted), reader_(std::move(reader)) {}
  absl::Status Plan();
  absl::Status PlanDense(size_t index, const v1::CheckpointTable& table);
  absl::Status PlanRows(size_t index, const v1::CheckpointTable& table);
  absl::Status OpenGroup();
  absl::Status CloseGroup();
  // Advances to the next window of the group, and describes it in `window`.
  void NextOfGroup(RestoreWindow* window);
  // Fills the window if it has something of ours, which it returns.
  absl::StatusOr<bool> Read(RestoreWindow* window);
  absl::Status ReadColumn(size_t column, RestoreWindow* window);
  bool OursChunk(size_t table, uint64_t chunk) const;
  bool OursAny(size_t table, absl::Span<const std::byte> keys) const;
  // Removes rows that later checkpoints of the chain replace with whole partitions.
  void DropReplaced(RestoreWindow* window) const;

  const RestoreRead wanted_;
  const checkpoint::CheckpointReader reader_;
  std::vector<Group> groups_;
  std::vector<std::vector<uint64_t>> applies_;  // by table, of its chunks
  std::vector<checkpoint::RowFilter> filters_;  // by table
  size_t group_ = 0;
  std::unique_ptr<Reading> reading_;
  std::vector<uint32_t> checked_;
  uint64_t read_bytes_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_RESTORE_READER_H_
