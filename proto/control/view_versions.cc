#include "proto/control/view_versions.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "proto/control/view_change.h"

namespace verbena {

struct ViewVersions::Spares {
  std::mutex mutex;
  // Guarded by mutex.
  std::deque<std::unique_ptr<v1::ClusterView>> views;
  std::multiset<uint64_t> revisions;  // of `views` and of the versions that readers hold

  void HandOut(const v1::ClusterView& view) {
    const std::lock_guard<std::mutex> lock(mutex);
    revisions.insert(view.revision());
  }
  void TakeBack(std::unique_ptr<v1::ClusterView> view) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (views.size() < kSpareVersions) {
      views.push_back(std::move(view));
    } else {
      Forget(*view);
    }
  }
  // In turn, so that none falls far behind.
  std::unique_ptr<v1::ClusterView> Take() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (views.empty()) return nullptr;
    std::unique_ptr<v1::ClusterView> view = std::move(views.front());
    views.pop_front();
    Forget(*view);
    return view;
  }
  void Clear() {
    std::deque<std::unique_ptr<v1::ClusterView>> gone;
    const std::lock_guard<std::mutex> lock(mutex);
    gone.swap(views);
    for (const auto& view : gone) Forget(*view);
  }
  // No version is older. UINT64_MAX: there is none.
  uint64_t Oldest() {
    const std::lock_guard<std::mutex> lock(mutex);
    return revisions.empty() ? UINT64_MAX : *revisions.begin();
  }

 private:
  void Forget(const v1::ClusterView& view) { revisions.erase(revisions.find(view.revision())); }
};

ViewVersions::ViewVersions() : spares_(std::make_shared<Spares>()) {}
ViewVersions::~ViewVersions() = default;

std::shared_ptr<const v1::ClusterView> ViewVersions::Share(std::unique_ptr<v1::ClusterView> view) {
  spares_->HandOut(*view);
  // The owner may be gone when the last reader is.
  return {view.release(), [kept = std::weak_ptr<Spares>(spares_)](v1::ClusterView* released) {
            std::unique_ptr<v1::ClusterView> spare(released);
            if (const auto spares = kept.lock()) spares->TakeBack(std::move(spare));
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
    Missed& missed = missed_.emplace_back(Missed{change, 0});
    // Serialized, a change is a small part of what it takes here.
    missed.bytes = sizeof(Missed) - sizeof(v1::ViewChange) + missed.change.SpaceUsedLong();
    missed_bytes_ += missed.bytes;
  }
  std::shared_ptr<const v1::ClusterView> shared = Share(std::move(next));
  const uint64_t oldest = spares_->Oldest();
  while (!missed_.empty() &&
         (missed_.front().change.revision() <= oldest || missed_bytes_ > kMissedBytes)) {
    missed_bytes_ -= missed_.front().bytes;
    missed_.pop_front();
  }
  return shared;
}

}  // namespace verbena
