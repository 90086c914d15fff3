// The assignment of tensors to the files of a checkpoint, and the names of the files.
//
//     model-00001-of-00002.safetensors      parameters of dense tables, by the tables' names
//     model.safetensors.index.json          which file has which of them, as Hugging Face has it
//     optimizer-00001-of-00002.safetensors  TABLE.master, TABLE.exp_avg, ..., TABLE.applies
//     rows-0003-2-00001.safetensors         rows of the table with the number 3: writer 2's first
//     slices-2-00001.safetensors            parts of dense tables: writer 2's first
//
// Loaders of other projects need a whole tensor in one file. So one writer gets the whole array of
// a dense table: it has the array's chunks, or receives them. The arrays are spread over the
// writers, so that these write at once, each to its own files. Writers that cannot receive each
// other's chunks write slices. Then the manifest has each slice's elements, Compact() and Export()
// join them, and there is no index before that.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. All planners of the same tables for the same writers get the same files.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_LAYOUT_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/checkpoint/files/manifest.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

// A file is closed when the next tensor would exceed this size; one larger tensor has a file of its
// own. At 2 GiB, a file takes a fast disk seconds, so that writers and readers share the work
// evenly and a failed file costs little. A server of 1 TiB has 512 of them, and other tools (old
// ones, 32-bit offsets) need not handle more.
inline constexpr uint64_t kDefaultFileBytes = uint64_t{2} << 30;

struct PlannedFile {
  std::string name;
  size_t writer = 0;
  std::vector<v1::CheckpointTensor> tensors;  // for TensorFileWriter
  uint64_t bytes = 0;                         // of the tensors
};

// All arrays of the dense tables among `specs` (normalised), spread over `writers`.
std::vector<PlannedFile> PlanDense(const std::vector<v1::TableSpec>& specs, uint64_t file_bytes,
                                   size_t writers);

// The arrays of a dense table in one writer's part: `chunks` ascend. Tensor i of the result is the
// part of array i of DenseArrays(); its block b is the b-th of `chunks` (of "applies": 8 bytes for
// each).
std::vector<v1::CheckpointTensor> PartitionTensors(const v1::TableSpec& spec,
                                                   absl::Span<const uint32_t> chunks,
                                                   size_t writer);
std::string PartitionFileName(size_t writer, size_t file);

// The tensors of a file with `rows` rows of an embedding table, in the order of RowArrays().
std::vector<v1::CheckpointTensor> RowTensors(const v1::TableSpec& spec, uint64_t rows);
// The number of rows in a file of that size; at least 1.
uint64_t RowsInFile(const v1::TableSpec& spec, uint64_t file_bytes);
// `table`: its place in the manifest.
std::string RowFileName(size_t table, size_t writer, size_t file);

// The content of model.safetensors.index.json; empty: no dense tables, or slices of them.
std::string IndexText(const v1::CheckpointManifest& manifest);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_LAYOUT_H_
