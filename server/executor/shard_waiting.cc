// What waits for memory: requests, in their slots, for room in the replication log
// (shard_executor.h, invariant 9), and tables.
#include <algorithm>
#include <utility>

#include "server/executor/shard_executor_impl.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

constexpr int64_t kLongestStarvedCheckNanos = 10'000'000'000;

}  // namespace

void ShardExecutor::Impl::CountWaiting(const Record& record, int change) {
  for (const Group& group : record.group_span()) {
    const auto it = waiting_by_partition.try_emplace(group.partition, 0).first;
    it->second += static_cast<uint32_t>(change);
    if (it->second == 0) waiting_by_partition.erase(it);
  }
}

bool ShardExecutor::Impl::IsBehindWaiting(const Record& record) const {
  if (waiting_by_partition.empty() || !wire::OperationOf(record.header.type).replicated)
    return false;
  const absl::Span<const Group> groups = record.group_span();
  return std::any_of(groups.begin(), groups.end(), [&](const Group& group) {
    return waiting_by_partition.contains(group.partition);
  });
}

void ShardExecutor::Impl::WaitForRoom(Lane* lane, const ShardLane::Arrival& record) {
  const int64_t arrived = lane->operations[record.record.header.operation].arrived_ns;
  CountWaiting(record.record, 1);
  waiting.push_back({lane, record, arrived + kLongestWaitForRoomNanos});
}

bool ShardExecutor::Impl::RetryWaiting() {
  const bool left = std::exchange(waiting_left, false);
  if (engine == nullptr || (!engine->TakeRoom() && !left) || waiting.empty()) return false;
  const std::deque<Waiting> requests = std::exchange(waiting, {});
  waiting_by_partition.clear();
  for (const Waiting& request : requests) {
    if (request.lane->closing) continue;  // an answer to one before it has ended the lane
    Answering(request.lane);
    Handle(request.lane, request.request);
  }
  Answering(nullptr);
  DrainEngine();
  return true;
}

bool ShardExecutor::Impl::RefuseWaiting(int64_t now) {
  bool refused = false;
  while (!waiting.empty() && waiting.front().until_ns <= now) {
    const Waiting request = std::move(waiting.front());
    waiting.pop_front();
    CountWaiting(request.request.record, -1);
    Refuse(request.lane, request.request, ReplyStatus::kResourceExhausted);
    waiting_left |= request.request.record.header.group_count > 1;
    refused = true;
  }
  return refused;
}

int64_t ShardExecutor::Impl::NextWaitingNanos() const {
  return waiting.empty() ? kNever : waiting.front().until_ns;
}

void ShardExecutor::Impl::ForgetWaiting(const Lane* lane) {
  std::erase_if(waiting, [&](const Waiting& request) {
    if (request.lane != lane) return false;
    CountWaiting(request.request.record, -1);
    waiting_left |= request.request.record.header.group_count > 1;
    return true;
  });
}

void ShardExecutor::Impl::AwaitMemory(int64_t check_after_ns) {
  starved_check_ns = std::min(check_after_ns, kLongestStarvedCheckNanos);
  next_starved_check_ns = engine->HasStarved() ? now_ns + starved_check_ns : kNever;
}

bool ShardExecutor::Impl::RetryStarved(int64_t now) {
  if (now < next_starved_check_ns) return false;
  const bool tried = engine->RetryStarved(*view, &view_status);
  // One that failed has cost something, although there seemed to be enough.
  AwaitMemory(tried ? 2 * starved_check_ns : starved_check_ns);
  if (tried) DrainEngine();
  return tried;
}

}  // namespace verbena::server
