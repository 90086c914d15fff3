#include "server/coordinator/view_changes.h"

#include <algorithm>

namespace verbena::server {

void ViewChanges::Add(const ViewEditor::Change& change, const v1::ClusterView& view) {
  const size_t bytes = change.view.ByteSizeLong();
  // Counting passes over the whole view.
  since_bytes_ += bytes;
  if (since_bytes_ >= view_bytes_ / 8) {
    view_bytes_ = view.ByteSizeLong();
    since_bytes_ = 0;
  }
  if (!change.described) {
    kept_.clear();
    bytes_ = 0;
    return;
  }
  kept_.push_back({change.view, bytes});
  bytes_ += bytes;
  while (bytes_ > kViewChangeBytes) {
    bytes_ -= kept_.front().bytes;
    kept_.pop_front();
  }
}

bool ViewChanges::Since(uint64_t revision, v1::GetViewResponse* response) const {
  const auto first = std::lower_bound(
      kept_.begin(), kept_.end(), revision,
      [](const Kept& k, uint64_t base) { return k.change.base_revision() < base; });
  if (first == kept_.end() || first->change.base_revision() != revision) return false;
  size_t bytes = 0;
  for (auto it = first; it != kept_.end(); ++it) bytes += it->bytes;
  if (bytes >= view_bytes_) return false;
  for (auto it = first; it != kept_.end(); ++it) *response->add_changes() = it->change;
  return true;
}

}  // namespace verbena::server
