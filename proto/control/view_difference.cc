#include "proto/control/view_difference.h"

#include <algorithm>

namespace verbena {

ViewDifference DifferenceOf(uint64_t known, const v1::ClusterView& view,
                            absl::Span<const v1::ViewChange> changes) {
  ViewDifference difference;
  if (changes.empty() || changes.front().base_revision() != known ||
      changes.back().revision() != view.revision()) {
    return difference;
  }
  difference.all = difference.placement = false;
  for (const v1::ViewChange& change : changes) {
    difference.placement |= !change.servers().empty() || !change.removed_servers().empty() ||
                            !change.partitions().empty();
    for (const v1::Table& table : change.tables()) difference.tables.insert(table.id());
    difference.tables.insert(change.removed_tables().begin(), change.removed_tables().end());
    for (const v1::JobChange& job : change.jobs()) difference.jobs.insert(job.job().name());
    difference.jobs.insert(change.removed_jobs().begin(), change.removed_jobs().end());
  }
  return difference;
}

const v1::Job* FindJobNamed(const std::string& name, const v1::ClusterView& view) {
  const auto& jobs = view.jobs();
  const auto it = std::find_if(jobs.rbegin(), jobs.rend(),
                               [&](const v1::Job& job) { return job.name() == name; });
  return it == jobs.rend() ? nullptr : &*it;
}

const v1::Worker* FindMember(uint64_t incarnation, const v1::Job& job) {
  const auto& members = job.members();
  const auto it = std::lower_bound(
      members.begin(), members.end(), incarnation,
      [](const v1::Worker& worker, uint64_t wanted) { return worker.incarnation() < wanted; });
  return it != members.end() && it->incarnation() == incarnation ? &*it : nullptr;
}

}  // namespace verbena
