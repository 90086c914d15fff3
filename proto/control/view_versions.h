// Versions of a cluster's view, shared with readers on other threads while newer ones are made.
//
// A change is made in a version that no reader holds any more, after the changes that this version
// has missed. So the cost of a change grows with the change. A version is copied only while readers
// hold all others.
//
// **Thread safety**: one owner thread; readers may hold and release versions on any thread, also
// after the owner is gone.
//
// **Invariants**
//  1. A version that was handed out is not written to until its last reader has released it.
//  2. At most kSpareVersions are kept that nobody reads.
//  3. A change is kept only while there is a version without it, and changes take at most
//     kMissedBytes of memory. A version that misses others than these is not used again.
#ifndef VERBENA_PROTO_CONTROL_VIEW_VERSIONS_H_
#define VERBENA_PROTO_CONTROL_VIEW_VERSIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/types/span.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

class ViewVersions {
 public:
  static constexpr size_t kSpareVersions = 2;
  static constexpr size_t kMissedBytes = size_t{256} << 10;

  ViewVersions();
  ~ViewVersions();
  ViewVersions(const ViewVersions&) = delete;
  ViewVersions& operator=(const ViewVersions&) = delete;

  // A view that does not come of the one before.
  std::shared_ptr<const v1::ClusterView> Replace(v1::ClusterView&& view);
  // `known`, the last version handed out, with those of the changes that it does not have yet.
  // Null: they do not continue it.
  std::shared_ptr<const v1::ClusterView> Follow(const v1::ClusterView& known,
                                                absl::Span<const v1::ViewChange> changes);
  // How often a whole view was copied. For tests.
  uint64_t copies() const { return copies_; }
  // Changes that are kept for versions without them, and the memory that they take, in bytes.
  size_t missed() const { return missed_.size(); }
  size_t missed_bytes() const { return missed_bytes_; }

 private:
  struct Spares;
  std::shared_ptr<const v1::ClusterView> Share(std::unique_ptr<v1::ClusterView> view);
  // A version that nobody reads, as new as `known`; null: there is none.
  std::unique_ptr<v1::ClusterView> TakeSpare(const v1::ClusterView& known);

  const std::shared_ptr<Spares> spares_;
  struct Missed {
    v1::ViewChange change;
    size_t bytes;
  };
  std::deque<Missed> missed_;  // the last changes, oldest first
  size_t missed_bytes_ = 0;    // of memory
  uint64_t copies_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_VIEW_VERSIONS_H_
