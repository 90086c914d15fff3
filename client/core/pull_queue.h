// The pulls and awaits that wait for a lane: by the priority of their table, the greatest first.
//
// Awaits are in front of all pulls. Requests of one priority are in the order of their calls.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. Every level has a request; levels are in descending order.
//  2. A queued request is in the level that its `level` names, also after its table's priority was
//     changed.
#ifndef VERBENA_CLIENT_CORE_PULL_QUEUE_H_
#define VERBENA_CLIENT_CORE_PULL_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "client/core/pending_request.h"

namespace verbena::client {

class PullQueue {
 public:
  // The level of awaits; that of a pull is its table's priority.
  static constexpr int64_t kAwaits = std::numeric_limits<int64_t>::max();

  bool empty() const { return levels_.empty(); }
  size_t size() const {
    size_t all = 0;
    for (const Level& level : levels_) all += level.requests.size();
    return all;
  }
  PendingRequest* front() const { return empty() ? nullptr : levels_.front().requests.front(); }

  // Adds the request to the level `level`, at its front or end.
  void Add(PendingRequest* request, int64_t level, bool front) {
    request->level = level;
    auto at = Find(level);
    if (at == levels_.end() || at->value != level) at = levels_.insert(at, {level, {}});
    if (front) {
      at->requests.PushFront(request);
    } else {
      at->requests.PushBack(request);
    }
  }

  void Remove(PendingRequest* request) {
    const auto at = Find(request->level);
    at->requests.Remove(request);
    if (at->requests.empty()) levels_.erase(at);
  }

  // Moves the requests of a table to the end of *taken, in order.
  void Take(const TableState* table, std::vector<PendingRequest*>* taken) {
    TakeIf([table](const PendingRequest& request) { return request.table == table; }, taken);
  }
  template <typename Which>
  void TakeIf(Which which, std::vector<PendingRequest*>* taken) {
    const size_t first = taken->size();
    for (const Level& level : levels_) {
      for (PendingRequest* request = level.requests.front(); request != nullptr;
           request = PendingRequestQueue::Next(request)) {
        if (which(*request)) taken->push_back(request);
      }
    }
    for (size_t i = first; i < taken->size(); ++i) Remove((*taken)[i]);
  }

 private:
  struct Level {
    int64_t value = 0;
    PendingRequestQueue requests;
  };

  // The level `value`, or the place for it.
  std::vector<Level>::iterator Find(int64_t value) {
    return std::lower_bound(levels_.begin(), levels_.end(), value,
                            [](const Level& level, int64_t v) { return level.value > v; });
  }

  std::vector<Level> levels_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PULL_QUEUE_H_
