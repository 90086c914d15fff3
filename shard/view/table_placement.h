// Tables as the view has them: creates, places, resets and drops them.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_VIEW_TABLE_PLACEMENT_H_
#define VERBENA_SHARD_VIEW_TABLE_PLACEMENT_H_

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "proto/control/view_difference.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

struct EngineCore;
struct TableState;

class TablePlacement {
 public:
  explicit TablePlacement(EngineCore* core) : core_(*core) {}

  // Drops tables that the view does not have. `what` is different from the view before: nothing
  // else is looked at.
  void Drop(const v1::ClusterView& view, const ViewDifference& what);
  // Ids of the tables that have to follow the view.
  std::vector<uint32_t> ToFollow(const v1::ClusterView& view, const ViewDifference& what) const;
  // Makes these tables follow the view. The first error, in the order of ids, also of tables that
  // have one since an earlier view.
  absl::Status Follow(const v1::ClusterView& view, const std::vector<uint32_t>& ids);

  bool HasUnserved() const { return !unserved_.empty(); }
  bool HasStarved() const;  // a table for which there was no memory
  // Tables that drop rows.
  const std::set<uint32_t>& evicting() const { return evicting_; }
  uint64_t placed() const { return placed_; }
  uint64_t followed() const { return followed_; }

 private:
  void DropTable(uint32_t id);
  absl::Status UpdateTable(const v1::Table& table);
  absl::Status CreateTable(const v1::Table& table, TableState* state);
  absl::Status CreateDense(const v1::Table& table, TableState* state);
  absl::Status CreateRows(const v1::Table& table, TableState* state);
  absl::Status Place(const v1::Table& table, TableState* state);
  // Whether Place() has something to do.
  bool HasToPlace(const v1::Table& table, const TableState& state) const;
  void ResetTable(TableState* state);
  void FollowRestore(const v1::Table& table, TableState* state);

  EngineCore& core_;
  std::set<uint32_t> unserved_;  // tables that could not follow the last view
  std::set<uint32_t> evicting_;
  uint64_t placed_ = 0;    // calls of Place()
  uint64_t followed_ = 0;  // calls of UpdateTable()
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_VIEW_TABLE_PLACEMENT_H_
