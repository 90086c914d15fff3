#include "server/coordinator/view_changes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "proto/view_change.h"

namespace verbena::server {

void ViewChanges::Add(const v1::ClusterView& from, const v1::ClusterView& to) {
  view_bytes_ = to.ByteSizeLong();
  std::optional<v1::ViewChange> change = ViewChangeOf(from, to);
  if (!change) {
    kept_.clear();
    bytes_ = 0;
    return;
  }
  const size_t bytes = change->ByteSizeLong();
  kept_.push_back({*std::move(change), bytes});
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
