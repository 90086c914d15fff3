// Exports a checkpoint for other programs: safetensors, one file or several with an index, or a
// NumPy file for each array.
//
// **Thread safety**: one thread a call.
//
// Invariants:
//  1. Existing files are never overwritten; a file with its final name is complete and durable.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_EXPORT_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_EXPORT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {

enum class ExportFormat {
  kSafetensors,  // one file
  kSharded,      // a directory of safetensors files of bounded size, with Hugging Face's index
  kNpy,          // a directory of .npy files
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kSafetensors;
  std::string to;                                   // that is not there yet
  uint64_t file_bytes = 0;                          // kSharded: 0 is the default of layout.h
  std::vector<std::string> tables = {};             // empty: all
  std::map<std::string, std::string> renamed = {};  // table -> its name in the export
  std::optional<TensorType> dtype = std::nullopt;   // of parameters and values; none: as they are
  bool optimizer = false;                           // its state, master copies and counts too
};

// An array as it is written.
struct ExportedTensor {
  std::string name;   // there
  std::string table;  // in the checkpoint
  std::string array;
  TensorType from = TensorType::kF32, type = TensorType::kF32;
  std::vector<uint64_t> shape;
  uint64_t elements = 0;

  uint64_t bytes() const { return elements * BytesOf(type); }
};

struct ExportReport {
  std::vector<std::string> files;  // names, in `to`; one file: it itself
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of the tensors
};

// The tensors that Export() would write. NOT_FOUND: a table that is not in the checkpoint.
// INVALID_ARGUMENT: two arrays of one name, or no such conversion.
absl::StatusOr<std::vector<ExportedTensor>> PlanExport(const CheckpointReader& reader,
                                                       const ExportOptions& options);

// `plan` is the result of PlanExport(). `written` is called with the bytes of the plan; its error
// ends the export. ALREADY_EXISTS: `to` is there.
absl::StatusOr<ExportReport> Export(Disk* disk, const CheckpointReader& reader,
                                    const ExportOptions& options,
                                    const std::vector<ExportedTensor>& plan,
                                    const CheckpointReader::Progress& written);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_EXPORT_H_
