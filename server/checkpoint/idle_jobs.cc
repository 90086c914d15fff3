#include "server/checkpoint/idle_jobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/manifest.h"

namespace verbena::server {

std::map<std::string, std::string> IdleJobs::StatesOf(const v1::ClusterView& view) {
  // A partition that was lost and reset has another epoch.
  std::string epochs;
  for (const v1::Partition& partition : view.partitions()) {
    absl::StrAppend(&epochs, " ", partition.epoch());
  }
  std::map<std::string, std::string> states;
  for (const v1::Table& table : view.tables()) {
    // One that is being restored is on a disk already.
    if (table.restoring()) continue;
    absl::StrAppend(&states[table.spec().job()], " ", table.id(), ":",
                    table.lost_partitions_size());
  }
  for (const v1::Job& job : view.jobs()) {
    const auto state = states.find(job.name());
    if (state == states.end()) continue;
    if (!job.members().empty()) {
      state->second.clear();
      continue;
    }
    absl::StrAppend(&state->second, " of ", job.generation(), " ", job.expected_workers(), " ",
                    job.departed_ranks_size(), epochs);
  }
  return states;
}

void IdleJobs::Saved(const std::string& job, std::string state, std::string path) {
  newest_.erase(job);
  if (!state.empty()) newest_[job] = {std::move(state), std::move(path)};
}

void IdleJobs::KeepOnly(const std::set<std::string>& jobs) {
  std::erase_if(newest_, [&](const auto& entry) { return !jobs.contains(entry.first); });
}

bool IdleJobs::HasNewest(const std::string& job, const std::string& state,
                         checkpoint::Disk* disk) const {
  const auto it = newest_.find(job);
  if (it == newest_.end() || it->second.state != state) return false;
  return disk->Open(checkpoint::Join(it->second.path, checkpoint::kManifestName)).ok();
}

}  // namespace verbena::server
