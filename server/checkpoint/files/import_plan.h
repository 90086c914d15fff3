// Maps foreign tensors to tables: names, shapes, types, specifications.
//
// A tensor T of floating-point numbers becomes the dense table T of its shape; a scalar one of
// shape [1]. Tensors T.keys (integers) and T.values become the embedding table T, as Export()
// writes one.
//
// **Thread safety**: pure functions, except for the calls of a Disk.
//
// Invariants:
//  1. A plan can be imported as far as names, types and shapes show. Only disk errors, duplicate
//     keys and numbers that are too large are found later.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_PLAN_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/model_source.h"
#include "verbena/v1/table.pb.h"

namespace verbena::checkpoint {

struct ImportOptions {
  std::string from;                       // as ModelSource::Open() takes it
  std::string to;                         // a directory of checkpoints that has none yet
  std::string job = {};                   // empty: the one of `specs`, or else "default"
  v1::TableSpec defaults = {};            // of tables that `specs` has not; without name, shape
  std::vector<v1::TableSpec> specs = {};  // by names of tables; without shape: the tensor's
  std::vector<std::string> tables = {};   // of the source, before renaming; empty: all
  std::set<std::string> skipped = {};     // tensors
  std::map<std::string, std::string> renamed = {};  // table of the source -> its new name
  std::optional<v1::DType> dtype =
      {};                       // of dense tables; none: the specification's, or the tensor's
  std::string written_by = {};  // "verbena 0.1.0"
  std::string time = {};        // RFC 3339
  uint64_t file_bytes = 0;      // 0: the default of layout.h
};

struct ImportedTable {
  v1::TableSpec spec;   // normalised
  SourceTensor values;  // the parameters, or the values of rows
  SourceTensor keys;    // of rows; empty: a dense table, or the keys are the rows' places
  // Of a dense table, by array: the optimizer's state, kApplies and kMaster, as far as the source
  // has them.
  std::map<std::string, SourceTensor> arrays;
  uint64_t rows = 0;
};

struct ImportPlan {
  ModelSource source;
  std::vector<ImportedTable> tables;  // in the order of the files
  uint64_t bytes;                     // of the tensors that will be written

  uint64_t rows() const;
};

// INVALID_ARGUMENT, NOT_FOUND, DATA_LOSS name file, tensor, value and the allowed values.
absl::StatusOr<ImportPlan> PlanImport(Disk* disk, const ImportOptions& options);

// Specifications of tables as a manifest has them, from JSON: {"tables": [{"spec": {...}}, ...]},
// or a whole manifest.json. Each has a name.
absl::StatusOr<std::vector<v1::TableSpec>> ReadTableSpecs(Disk* disk, const std::string& path);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_PLAN_H_
