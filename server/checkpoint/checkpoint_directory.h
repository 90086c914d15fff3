// A directory of checkpoints: their names, how one is committed, which there are, which may go.
//
//     checkpoint-00000042/                       committed; numbers grow
//     checkpoint-00000043.0123456789abcdef.tmp/  an attempt: being written, or left by a save that
//                                                ended early
//     checkpoint-00000007.trash/                 being removed, or left so; also of an attempt
//     LOCK                                       held by who saves or prunes; has its process id
//
// A number may be used again after an attempt was abandoned, and a writer may not know yet that it
// was: so each attempt has a directory whose name no other attempt has had. A late writer finds
// none, or writes into files that are gone; what it does reaches no other attempt.
//
// How a checkpoint becomes durable: (1) each writer syncs each of its files before it says that it
// is done; (2) the manifest, which has all files' checksums, is written and synced; (3) the
// directory, whose entries the files' names are, is synced; (4) it is renamed to its final name,
// which is the commit; (5) the directory above is synced, and the save has succeeded. After a crash
// at any point there is either no directory of the final name or one with everything in it.
//
// **Thread safety**: one thread an object; functions may be called at any time, also while another
// process saves or prunes there.
//
// Invariants:
//  1. A directory of a final name was complete and durable when it got it, and is never written to.
//  2. One that is removed loses its final name first, durably, and after all that are based on it:
//     so what has a final name can be restored as far as the disk keeps what it was given.
//  3. The directory of an attempt has files of that attempt alone.
//  4. A job's newest checkpoint, and what it is based on, is never removed; nor is what one may be
//     based on whose manifest cannot be read now. With Retention::keep_former_runs the same holds
//     for the newest checkpoint of its greatest step, and of the run before the last one.
#ifndef VERBENA_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define VERBENA_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/verbena/v1/checkpoint.pb.h"
#include "server/checkpoint/disk.h"

namespace verbena::checkpoint {

struct Listed {
  std::string name;
  uint64_t number = 0;
  absl::StatusOr<v1::CheckpointManifest> manifest = absl::UnknownError("not read");
  std::string checksum;  // of the manifest
};

// The number of a committed checkpoint's name; none: it is no such name.
std::optional<uint64_t> CheckpointNumber(const std::string& name);
std::string CheckpointName(uint64_t number);

// Reads the manifest of the checkpoint in the directory `path`. Errors are in `manifest`.
Listed ReadListed(Disk* disk, const std::string& path);
// The committed ones, oldest first. NOT_FOUND: no such directory.
absl::StatusOr<std::vector<Listed>> ListCheckpoints(Disk* disk, const std::string& root);

// The path of the newest one that is complete: manifests and files of it, and of those it is based
// on, are there with their sizes. What is newer, and why it was passed over, is added to `passed`,
// which may be null. NOT_FOUND: there is none.
absl::StatusOr<std::string> NewestComplete(Disk* disk, const std::string& root,
                                           std::vector<std::string>* passed);

struct Retention {
  uint32_t keep_last = 3;  // 1 at least
  // Besides, of each so many steps (of checkpoints, where there are no steps) the first. 0: none.
  uint64_t keep_every = 0;
  // Whose checkpoints are counted and removed; others stay. Empty: of the only job that has some.
  std::string job = {};
  // Set where no operator chose the removal: a run that starts over (on a new cluster, or with new
  // tables) does not push out what the runs before it reached. The newest checkpoint of the
  // greatest step stays, and the newest one without any table of the newest checkpoint's.
  bool keep_former_runs = false;
};

// The jobs of those whose manifest can be read, each once.
std::vector<std::string> JobsOf(const std::vector<Listed>& all);

class CheckpointDirectory {
 public:
  // Makes the directory where it is missing (not those above it), and locks it. `seed`: of the ids
  // of attempts; 0: from the system's random source.
  static absl::StatusOr<std::unique_ptr<CheckpointDirectory>> Open(Disk* disk,
                                                                   const std::string& root,
                                                                   uint64_t seed = 0);
  ~CheckpointDirectory();

  // Removes what saves and prunes left behind, and makes the directory of a new attempt, whose path
  // it returns. What was begun before is abandoned.
  absl::StatusOr<std::string> Begin();
  // All files of `manifest` are in the directory, synced. Fills in format_version; returns the
  // checkpoint's name. INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS: nothing was committed.
  // After any other error it may be committed all the same, wholly.
  absl::StatusOr<std::string> Commit(const v1::CheckpointManifest& manifest);
  // Removes what was begun.
  absl::Status Abandon();

  // Returns the names of those that were removed. INVALID_ARGUMENT: keep_last is 0.
  // FAILED_PRECONDITION: there are checkpoints of several jobs, and `retention` names none.
  absl::StatusOr<std::vector<std::string>> Prune(const Retention& retention);
  // What Prune() would remove.
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

#endif  // VERBENA_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
