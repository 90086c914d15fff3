// Models of random bits, saved as daemons would save them, and compared with the data that is read.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_
#define VERBENA_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/disk.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint::test {

using Bytes = std::vector<std::byte>;

// Tables "tower/w" [37, 20] f32 adam, "tower/bias" [5] bf16 momentum, "head" [130] f16 sgd, "items"
// of 4 and "users" of 3 numbers, adagrad and row-wise adagrad. Every bit is random.
struct Model {
  explicit Model(uint64_t seed);
  // Instead of those, so many dense tables "many/0", ... of 130 f16 numbers.
  static Model OfManyTables(uint64_t seed, size_t tables);
  // Other bits: everything dense, and some rows, which are named in `changed`; new rows too.
  void Train();

  uint64_t step = 0;
  std::vector<v1::TableSpec> specs;
  std::map<std::string, uint32_t> ids;                        // 0 where it is not set
  std::map<std::string, std::map<std::string, Bytes>> dense;  // table, array
  // Table, key: the row's other arrays, one behind the other.
  std::map<std::string, std::map<uint64_t, Bytes>> rows;
  std::map<std::string, std::map<uint64_t, Bytes>> changed;  // since the last Train()
  std::mt19937_64 random;

 private:
  Bytes Random(size_t bytes);
};

inline constexpr uint32_t kModelPartitions = 8;

struct CheckpointStartOptions {
  size_t writers = 1;
  bool slices = false;           // dense tables in parts
  uint64_t file_bytes = 4096;    // small, so that there are several
  const Listed* base = nullptr;  // set: incremental, with Model::changed
  std::string job = "demo";
  // Partitions that an incremental checkpoint saves with all rows: their server had no changes.
  std::set<uint32_t> whole = {};
};

// The partition of a row of a table of the model.
uint32_t PartitionOf(const Model& model, const std::string& table, uint64_t key);

// Begin to Commit; after an error Abandon(). Returns the checkpoint's name.
absl::StatusOr<std::string> Save(Disk* disk, CheckpointDirectory* directory, const Model& model,
                                 const CheckpointStartOptions& options = {});
// The same into `root`, which is opened for it.
absl::StatusOr<std::string> Save(Disk* disk, const std::string& root, const Model& model,
                                 const CheckpointStartOptions& options = {});

// Empty: every bit of the checkpoint is the model's, and it verifies.
std::string Differs(const CheckpointReader& reader, const Model& model);
std::string Differs(Disk* disk, const std::string& path, const Model& model);

// Makes a committed checkpoint, which nothing is based on, one of format version 1.
void MakeVersion1(Disk* disk, const std::string& path);

}  // namespace verbena::checkpoint::test

#endif  // VERBENA_TESTS_SERVER_CHECKPOINT_CHECKPOINT_FIXTURE_H_
