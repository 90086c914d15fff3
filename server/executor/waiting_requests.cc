#include "server/executor/waiting_requests.h"

#include <algorithm>
#include <utility>

#include "proto/wire/operations.h"
#include "server/executor/shard_core.h"
#include "shard/replica/replicas.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

// How long a request waits in its slot for room in the log for a replica. Longer than a replica
// that runs takes to answer; short enough for other requests of the lane to get their turn.
constexpr int64_t kLongestWaitForRoomNanos = 1'000'000'000;

}  // namespace

void WaitingRequests::Count(const Record& record, int change) {
  for (const Group& group : record.group_span()) {
    const auto it = by_partition_.try_emplace(group.partition, 0).first;
    it->second += static_cast<uint32_t>(change);
    if (it->second == 0) by_partition_.erase(it);
  }
}

bool WaitingRequests::IsBehind(const Record& record) const {
  if (by_partition_.empty() || !wire::OperationOf(record.header.type).replicated) return false;
  const absl::Span<const Group> groups = record.group_span();
  // A group among others is refused where its partition is handed over: it waits for nothing there.
  const auto waits = [&](uint32_t partition) {
    return groups.size() == 1 || core_.engine == nullptr ||
           !core_.engine->replicas().sealed(partition);
  };
  return std::any_of(groups.begin(), groups.end(), [&](const Group& group) {
    return by_partition_.contains(group.partition) && waits(group.partition);
  });
}

void WaitingRequests::Add(Lane* lane, const ShardLane::Arrival& record) {
  const int64_t arrived = lane->operations[record.record.header.operation].arrived_ns;
  Count(record.record, 1);
  requests_.push_back({lane, record, arrived + kLongestWaitForRoomNanos});
}

bool WaitingRequests::Retry() {
  const bool left = std::exchange(left_, false);
  if (core_.engine == nullptr || (!core_.engine->TakeRoom() && !left) || requests_.empty())
    return false;
  const std::deque<Waiting> requests = std::exchange(requests_, {});
  by_partition_.clear();
  for (const Waiting& request : requests) {
    if (request.lane->closing) continue;  // an answer to one before it has ended the lane
    core_.answers.Begin(request.lane);
    core_.requests.Handle(request.lane, request.request);
  }
  core_.answers.Begin(nullptr);
  core_.requests.DrainEngine();
  return true;
}

bool WaitingRequests::RefuseLate(int64_t now) {
  bool refused = false;
  while (!requests_.empty() && requests_.front().until_ns <= now) {
    const Waiting request = std::move(requests_.front());
    requests_.pop_front();
    Count(request.request.record, -1);
    core_.answers.Refuse(request.lane, request.request, ReplyStatus::kResourceExhausted);
    left_ |= request.request.record.header.group_count > 1;
    refused = true;
  }
  return refused;
}

int64_t WaitingRequests::NextNanos() const {
  return requests_.empty() ? kNever : requests_.front().until_ns;
}

void WaitingRequests::Forget(const Lane* lane) {
  std::erase_if(requests_, [&](const Waiting& request) {
    if (request.lane != lane) return false;
    Count(request.request.record, -1);
    left_ |= request.request.record.header.group_count > 1;
    return true;
  });
}

}  // namespace verbena::server
