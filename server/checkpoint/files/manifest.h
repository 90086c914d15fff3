// manifest.json, the description of a checkpoint: writing and parsing.
//
// The text is JSON of v1.CheckpointManifest, whose last member, `"checksum"`, is the XXH3-64 of all
// bytes before the line that it stands on.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. A manifest from ParseManifest() is consistent: names of files stay inside the directory,
//     tables have specifications that this build can serve, the tensors of a dense table's array
//     cover it once, the numbers of elements fit. tensor_file.h checks that the files match.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

inline constexpr uint32_t kFormatVersion = 2;
// From this version on an incremental checkpoint names the partitions that it has whole.
inline constexpr uint32_t kWholePartitionsVersion = 2;
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kIndexName[] = "model.safetensors.index.json";
inline constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

// Arrays of a table.
inline constexpr char kParameters[] = "parameters";
inline constexpr char kMaster[] = "master";    // f32 copies of 16-bit parameters
inline constexpr char kApplies[] = "applies";  // of each chunk (U64), or of each row (U32)
inline constexpr char kKeys[] = "keys";        // of rows, U64
inline constexpr char kValues[] = "values";    // of rows

// INVALID_ARGUMENT: ParseManifest() would refuse it.
absl::StatusOr<std::string> ManifestText(const v1::CheckpointManifest& manifest);

// `path` is for messages. FAILED_PRECONDITION: a later format; names both versions. DATA_LOSS:
// changed since it was written, or no manifest; names the field.
absl::StatusOr<v1::CheckpointManifest> ParseManifest(const std::string& path,
                                                     std::string_view text);

// The checksum that a manifest's text ends with; empty: it is none.
std::string ManifestChecksum(std::string_view text);

// Whether this build has names for its state.
bool IsKnownOptimizer(const std::string& name);
// Names of a table's optimizer state per number, in the order of its state arrays, as in PyTorch.
std::vector<std::string> StateNames(const v1::Optimizer& optimizer);
// The arrays that a shard keeps of each chunk of a dense table beside the parameters, in its order:
// StateNames(), then kMaster for 16-bit parameters. Empty for an embedding table.
std::vector<std::string> StateArrays(const v1::TableSpec& spec);
// Whether it is one number for each row.
bool StateIsRowWise(const v1::Optimizer& optimizer);

// A dense table's arrays, in the order of a checkpoint: parameters first.
struct ArraySpec {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
  uint64_t block_bytes = 0;  // of a chunk of it
};
std::vector<ArraySpec> DenseArrays(const v1::TableSpec& spec);
// An embedding table's arrays for so many rows: keys first.
std::vector<ArraySpec> RowArrays(const v1::TableSpec& spec, uint64_t rows);
inline constexpr size_t kAppliesColumn = 2;  // of those

// The name of a dense table's array in a file: the table's own for its parameters.
std::string DenseTensorName(const std::string& table, const std::string& array);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_H_
