// A directory of checkpoints: names, commit, listing and pruning.
//
//     checkpoint-00000042/                       committed; numbers grow
//     checkpoint-00000043.0123456789abcdef.tmp/  an attempt: being written, or left by a writer
//     that
//                                                ended early
//     checkpoint-00000007.trash/                 being removed, or left so; also of an attempt
//     LOCK                                       held by a process that saves or prunes; has its id
//
// A number may be used again after an attempt was abandoned, and the attempt's writer may not know
// yet. So each attempt has a directory with a new, unique name. A late writer finds no directory,
// or writes into removed files; its writes reach no other attempt.
//
// A checkpoint becomes durable in five steps: (1) each writer syncs each of its files before it
// reports that it is done; (2) the manifest, which has all files' checksums, is written and synced;
// (3) the directory with the files' entries is synced; (4) it is renamed to its final name, which
// is the commit; (5) the parent directory is synced, and the checkpoint has succeeded. After a
// crash at any point there is either no directory of the final name or one with everything in it.
//
// **Thread safety**: one thread an object; functions may be called at any time, also while another
// process writes or prunes checkpoints there.
//
// Invariants:
//  1. A directory was complete and durable when it got its final name, and is never written to
//     after.
//  2. A removed checkpoint loses its final name first, durably, and after all checkpoints based on
//     it. So a checkpoint with a final name can be restored as far as the disk keeps its data.
//  3. The directory of an attempt has files of that attempt alone.
//  4. A job's newest checkpoint and its bases are never removed; neither are possible bases of a
//     checkpoint whose manifest cannot be read now. With Retention::keep_former_runs the same holds
//     for the newest checkpoint of its greatest step, and of the run before the last one.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_DIRECTORY_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/disk.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

struct Listed {
  std::string name;
  uint64_t number = 0;
  absl::StatusOr<v1::CheckpointManifest> manifest = absl::UnknownError("not read");
  std::string checksum;  // of the manifest
};

// The number in a committed checkpoint's name; none for other names.
std::optional<uint64_t> CheckpointNumber(const std::string& name);
std::string CheckpointName(uint64_t number);

// Reads the manifest of the checkpoint in the directory `path`. Errors are in `manifest`.
Listed ReadListed(Disk* disk, const std::string& path);
// Committed checkpoints, oldest first. NOT_FOUND: no such directory.
absl::StatusOr<std::vector<Listed>> ListCheckpoints(Disk* disk, const std::string& root);

// The path of the newest complete one: its manifests and files, and those of its bases, exist with
// their sizes. Newer checkpoints, with the reasons why they were skipped, are added to `passed`,
// which may be null. NOT_FOUND: there is none.
absl::StatusOr<std::string> NewestComplete(Disk* disk, const std::string& root,
                                           std::vector<std::string>* passed);

struct Retention {
  uint32_t keep_last = 3;  // 1 at least
  // Also keeps the first of each so many steps (of checkpoints, if there are no steps). 0: none.
  uint64_t keep_every = 0;
  // The job whose checkpoints are counted and removed; others stay. Empty: the only job that has
  // some.
  std::string job = {};
  // Set where no operator chose the removal: a run that starts over (on a new cluster, or with new
  // tables) must not remove the results of earlier runs. The newest checkpoint of the greatest step
  // stays, and the newest one without any table of the newest checkpoint's.
  bool keep_former_runs = false;
};

// The jobs of the checkpoints with a readable manifest, each once.
std::vector<std::string> JobsOf(const std::vector<Listed>& all);

class CheckpointDirectory {
 public:
  // Creates the directory if it is missing (not its parents), and locks it. `seed`: of the ids of
  // attempts; 0: from the system's random source.
  static absl::StatusOr<std::unique_ptr<CheckpointDirectory>> Open(Disk* disk,
                                                                   const std::string& root,
                                                                   uint64_t seed = 0);
  ~CheckpointDirectory();

  // Removes the remains of earlier writers and prunes, and makes the directory of a new attempt.
  // Returns its path. An earlier attempt is abandoned.
  absl::StatusOr<std::string> Begin();
  // All files of `manifest` must be in the directory, synced. Fills in format_version; returns the
  // checkpoint's name. INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS: nothing was committed.
  // After any other error it may still be committed, completely.
  absl::StatusOr<std::string> Commit(const v1::CheckpointManifest& manifest);
  // Removes the attempt.
  absl::Status Abandon();

  // Returns the names of the removed checkpoints. INVALID_ARGUMENT: keep_last is 0.
  // FAILED_PRECONDITION: there are checkpoints of several jobs, and `retention` names none.
  absl::StatusOr<std::vector<std::string>> Prune(const Retention& retention);
  // The checkpoints that Prune() would remove.
  absl::StatusOr<std::vector<std::string>> WouldPrune(const Retention& retention) const;

  const std::string& root() const { return root_; }

 private:
  CheckpointDirectory(Disk* disk, std::string root, std::unique_ptr<DiskLock> lock, uint64_t seed);
  absl::Status RemoveLeftovers();
  absl::Status RemoveAttempt(const std::string& name);
  absl::Status RemoveCommitted(const std::string& name);
  absl::Status CheckFiles(const v1::CheckpointManifest& manifest) const;

  Disk* const disk_;
  const std::string root_;
  const std::unique_ptr<DiskLock> lock_;
  std::mt19937_64 random_;
  uint64_t number_ = 0;  // the greatest that was used
  std::string path_;     // of the attempt that was begun; empty: there is none
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_CHECKPOINT_DIRECTORY_H_
