#include "proto/control/view_versions.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "proto/control/view_change.h"

namespace verbena {

struct ViewVersions::Spares {
  std::mutex mutex;
  std::vector<std::unique_ptr<v1::ClusterView>> views;  // guarded by mutex

  void Add(std::unique_ptr<v1::ClusterView> view) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (views.size() < kSpareVersions) views.push_back(std::move(view));
  }
  std::unique_ptr<v1::ClusterView> Take() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (views.empty()) return nullptr;
    std::unique_ptr<v1::ClusterView> view = std::move(views.back());
    views.pop_back();
    return view;
  }
  void Clear() {
    std::vector<std::unique_ptr<v1::ClusterView>> gone;
    const std::lock_guard<std::mutex> lock(mutex);
    gone.swap(views);
  }
};

ViewVersions::ViewVersions() : spares_(std::make_shared<Spares>()) {}
ViewVersions::~ViewVersions() = default;

std::shared_ptr<const v1::ClusterView> ViewVersions::Share(std::unique_ptr<v1::ClusterView> view) {
  // The owner may be gone when the last reader is.
  return {view.release(), [kept = std::weak_ptr<Spares>(spares_)](v1::ClusterView* released) {
            std::unique_ptr<v1::ClusterView> spare(released);
            if (const auto spares = kept.lock()) spares->Add(std::move(spare));
          }};
}

std::shared_ptr<const v1::ClusterView> ViewVersions::Replace(v1::ClusterView&& view) {
  // Missed changes of other versions do not lead to this view.
  spares_->Clear();
  missed_.clear();
  missed_bytes_ = 0;
  auto taken = std::make_unique<v1::ClusterView>();
  taken->Swap(&view);
  return Share(std::move(taken));
}

std::unique_ptr<v1::ClusterView> ViewVersions::TakeSpare(const v1::ClusterView& known) {
  while (std::unique_ptr<v1::ClusterView> spare = spares_->Take()) {
    auto missed = std::partition_point(missed_.begin(), missed_.end(), [&](const Missed& m) {
      return m.change.revision() <= spare->revision();
    });
    for (; missed != missed_.end() && missed->change.revision() <= known.revision(); ++missed) {
      if (missed->change.revision() <= spare->revision()) continue;
      if (!ApplyViewChange(missed->change, spare.get())) break;
    }
    if (spare->revision() == known.revision()) return spare;
  }
  return nullptr;
}

std::shared_ptr<const v1::ClusterView> ViewVersions::Follow(
    const v1::ClusterView& known, absl::Span<const v1::ViewChange> changes) {
  std::unique_ptr<v1::ClusterView> next = TakeSpare(known);
  if (next == nullptr) {
    ++copies_;
    next = std::make_unique<v1::ClusterView>(known);
  }
  for (const v1::ViewChange& change : changes) {
    if (change.revision() <= next->revision()) continue;
    if (!ApplyViewChange(change, next.get())) return nullptr;
    missed_.push_back({change, change.ByteSizeLong()});
    missed_bytes_ += missed_.back().bytes;
  }
  while (missed_bytes_ > kMissedBytes) {
    missed_bytes_ -= missed_.front().bytes;
    missed_.pop_front();
  }
  return Share(std::move(next));
}

}  // namespace verbena
