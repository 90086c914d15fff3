// The swarm's model of checkpoints: those that were reported complete, the content that each must
// have, and the tables that were made from them.
//
// A shard's cut of a table is read out of its engine at the moment when the shard begins the save.
// The checkpoint must equal this cut, byte for byte. A sync table must have the values of the
// manifest's step, by the model: shards begin such a save before they come to the step. A restored
// table must equal the checkpoint before anybody uses it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_SAVED_H_
#define VERBENA_TESTS_CLUSTER_SWARM_SAVED_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "tests/cluster/replica_compare.h"
#include "tests/cluster/swarm_checks.h"
#include "tests/cluster/swarm_world.h"
#include "tests/server/checkpoint/sim_disk.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {

// By unit of a table: the least value that a checkpoint must have, and the life that it is of.
struct SavedUnits {
  uint32_t generation = 0;  // of the steps of a sync table
  std::vector<std::pair<double, uint32_t>> units;
};
using SavedLeast = std::map<uint32_t, SavedUnits>;  // by table

struct SavedTable {
  uint32_t id = 0;
  uint64_t steps = 0;  // of a sync table
  v1::TableSpec spec;
  TableContent content;
};

struct SavedCheckpoint {
  std::string path;
  std::string job;
  std::map<std::string, SavedTable> tables;  // by name
};

class SwarmSaved {
 public:
  SwarmSaved(SwarmWorld* world, checkpoint::test::SimDisk* disk) : world_(world), disk_(*disk) {}

  // ---- as it happens ----
  // The values that are acknowledged now.
  std::shared_ptr<const SavedLeast> Acknowledged() const;
  // A save that asked for the view at `least` has sent requests with this id.
  void CheckpointSent(uint64_t save, std::shared_ptr<const SavedLeast> least);
  void CheckpointBegun(const v1::BeginCheckpointRequest& request, const shard::Engine& engine);
  void RestoreBegun(const v1::BeginRestoreRequest& request);
  // The checkpoint was reported complete.
  void Reported(const std::string& path) { reported_.insert(path); }
  // From now on a new checkpoint in the directory of `from` must be a save's or equal `from`. Null:
  // it must be a save's.
  void Compacts(std::shared_ptr<const SavedCheckpoint> from) { compacts_ = std::move(from); }
  // A removal of old checkpoints begins: those that it may take.
  void Prunes(const std::string& root, const checkpoint::Retention& retention);
  // A bit of a file of this checkpoint is wrong, or right again.
  void Damage(const std::string& path, bool damaged);
  bool damaged(const std::string& path) const { return damaged_.contains(path); }
  bool damaged_any() const { return !damaged_.empty(); }
  void ForgetDamage() { damaged_.clear(); }

  // ---- checks ----
  // Compares tables that are served since the last call with the checkpoints of their restores.
  void FollowRestores(const SwarmChecks& checks);
  // Looks at all checkpoints of a directory: at each new one's content, and with `verify` at every
  // byte of the others, too.
  void Look(const std::string& root, bool verify);
  void LookAll(bool verify);

  const std::set<std::string>& roots() const { return roots_; }
  // Complete ones of a directory whose content is known, oldest first.
  std::vector<std::shared_ptr<const SavedCheckpoint>> Known(const std::string& root) const;
  // Whether a bit is wrong of the checkpoint, or of one that it may be based on.
  bool Doubtful(const std::string& path) const;
  // How often a shard was asked to begin one.
  uint64_t restores_begun() const { return restores_begun_; }
  int checked() const { return checked_; }
  int compared() const { return compared_; }

 private:
  // A save that shards have begun.
  struct Begun {
    uint64_t id = 0;
    std::string directory;
    std::shared_ptr<const SavedLeast> least;
    // Content by table and partition. Two shards may both take themselves for its primary.
    std::map<uint32_t, std::map<uint32_t, std::vector<TableContent>>> cut;
  };

  // A compaction may have made it, if one was in progress when it was first seen: while a bit is
  // wrong, it is looked at only later.
  void NoteSource(const std::string& path, const std::string& checksum);
  void LookAtNew(const std::string& root, const checkpoint::Listed& listed);
  // A file of the checkpoint that its manifest does not list, and that nobody would remove. Empty:
  // none.
  std::string Unlisted(const std::string& path, const v1::CheckpointManifest& manifest) const;
  absl::StatusOr<SavedCheckpoint> ReadAll(const checkpoint::CheckpointReader& reader) const;
  std::string CompareWithCut(const SavedCheckpoint& saved, const Begun& begun) const;
  std::string CheckValues(const SavedTable& table, const SavedLeast& least) const;
  void CheckServed(SwarmTable* table, const v1::ClusterView& view, const SwarmChecks& checks);
  std::map<uint32_t, TableContent> ByPartition(uint32_t id, const v1::TableSpec& spec,
                                               const TableContent& content) const;
  std::vector<float> ValuesOf(const SwarmTable& table, const SavedTable& saved) const;

  SwarmWorld* const world_;
  checkpoint::test::SimDisk& disk_;
  std::set<std::string> roots_;
  std::map<uint64_t, std::shared_ptr<const SavedLeast>> sent_;
  std::deque<Begun> begun_;
  std::shared_ptr<const SavedCheckpoint> compacts_;
  std::set<std::string> reported_, may_go_, damaged_;  // paths
  // By path, and the manifest's checksum: names that a crash took away are used again.
  std::map<std::string, std::pair<std::string, std::shared_ptr<const SavedCheckpoint>>> known_;
  // By path: the manifest's checksum, and the source of a compaction when it was first seen.
  std::map<std::string, std::pair<std::string, std::shared_ptr<const SavedCheckpoint>>> sources_;
  // By the id of a table that is being restored: the checkpoint, and the table's name there.
  std::map<uint32_t, std::pair<std::shared_ptr<const SavedCheckpoint>, std::string>> restores_;
  uint64_t revision_ = 0, restores_begun_ = 0;
  int checked_ = 0, compared_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_SAVED_H_
