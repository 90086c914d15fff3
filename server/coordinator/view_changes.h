// The last changes of the coordinator's view. Members with an earlier revision get the changes
// instead of the whole view.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
//  1. The kept changes are consecutive: each one's base is the result of the previous one.
//  2. They take at most kViewChangeBytes. The changes for a member are smaller than the view was at
//     its last measurement, which is repeated after changes of an eighth of its size.
#ifndef VERBENA_SERVER_COORDINATOR_VIEW_CHANGES_H_
#define VERBENA_SERVER_COORDINATOR_VIEW_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr size_t kViewChangeBytes = size_t{256} << 10;

class ViewChanges {
 public:
  // `change` led to the current view, and is durable.
  void Add(const ViewEditor::Change& change, const v1::ClusterView& view);
  // Adds all changes since `revision` of the current term to the response. False, with the response
  // unchanged: they are no longer kept, or the whole view is smaller.
  bool Since(uint64_t revision, v1::GetViewResponse* response) const;

 private:
  struct Kept {
    v1::ViewChange change;
    size_t bytes;
  };
  std::deque<Kept> kept_;   // oldest first
  size_t bytes_ = 0;        // of all that is kept
  size_t view_bytes_ = 0;   // of the view, as it was counted last
  size_t since_bytes_ = 0;  // of all changes since then
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_VIEW_CHANGES_H_
