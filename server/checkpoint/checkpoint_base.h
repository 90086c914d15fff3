// Selects the base of an incremental checkpoint.
//
// **Thread safety**: pure functions; they wait for the disk.
#ifndef VERBENA_SERVER_CHECKPOINT_CHECKPOINT_BASE_H_
#define VERBENA_SERVER_CHECKPOINT_CHECKPOINT_BASE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "server/checkpoint/files/disk.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::server {

struct CheckpointBaseOf {
  std::string name;
  std::string checksum;  // of its manifest
  uint64_t save = 0;     // its number at the shards
};

// The newest complete checkpoint of `root`, if one with the tables of `manifest` (job, cluster_id
// and tables are filled in) may be based on it. None: the next checkpoint must be a full one.
// Either there is none, or the shards do not track changes since it, or it is the last of
// `full_every`, of which the first is a full one.
std::optional<CheckpointBaseOf> ChooseBase(checkpoint::Disk* disk, const std::string& root,
                                           const v1::CheckpointManifest& manifest,
                                           uint32_t full_every);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_CHECKPOINT_BASE_H_
