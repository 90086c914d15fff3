// Replicas of partitions: records for the replicas that this shard keeps, and the answers that
// leases between replicas allow.
#include <algorithm>
#include <map>
#include <vector>

#include "proto/wire/record_check.h"
#include "server/executor/shard_executor_impl.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

ShardLane::Answer AnswerTo(const ShardLane::Arrival& record, ReplyStatus status) {
  ShardLane::Answer answer;
  answer.operation = record.record.header.operation;
  answer.status = status;
  answer.group_count = record.record.header.group_count;
  answer.return_slot = true;
  answer.slot = record.slot;
  return answer;
}

}  // namespace

void ShardExecutor::Impl::FollowPeers() {
  if (incarnation != 0) replication->Follow(view, incarnation, engine);
}

void ShardExecutor::Impl::Replicate(Lane* lane, const ShardLane::Arrival& record) {
  ReplicaHeader header;
  absl::Span<const std::byte> data;
  const absl::Status status = CopyReplicaHeader(record.record, record.payload, &header, &data);
  if (!status.ok()) return Close(lane, status);
  const shard::Answer applied = replication->OnRecord({lane->peer.incarnation, lane->peer.shard},
                                                      record.record, record.payload);
  ShardLane::Answer answer = AnswerTo(record, applied.status);
  ReportRoom(&answer);
  Reply(lane, answer);
}

void ShardExecutor::Impl::Beacon(Lane* lane, const ShardLane::Arrival& record) {
  std::array<ReplyStatus, kMaxGroups> statuses;
  const absl::Span<const Group> groups = record.record.group_span();
  ReplyStatus worst = ReplyStatus::kOk;
  for (size_t i = 0; i < groups.size(); ++i) {
    statuses[i] = replication->OnBeacon({lane->peer.incarnation, lane->peer.shard}, groups[i]);
    worst = std::max(worst, statuses[i]);
  }
  ShardLane::Answer answer = AnswerTo(record, worst);
  answer.group_status = {statuses.data(), groups.size()};
  ReportRoom(&answer);
  Reply(lane, answer);
}

// Before its primary makes rows it knows whether there is room for them here.
void ShardExecutor::Impl::ReportRoom(ShardLane::Answer* answer) const {
  if (engine == nullptr) return;
  const shard::CopyRoom room = engine->copies().Room();
  if (room.bytes == UINT64_MAX) return;
  answer->detail = 1 + static_cast<uint32_t>(std::min<uint64_t>(room.bytes >> 10, UINT32_MAX - 1));
  answer->version = room.limit;
}

bool ShardExecutor::Impl::MayAnswer(const Record& record) const {
  const ReplicaLeases& leases = replication->leases();
  const bool reads =
      wire::OperationOf(record.header.type).reads && !VERBENA_FAILPOINT(shard, read_without_lease);
  for (const Group& group : record.group_span()) {
    if (!(reads ? leases.MayRead(group.partition, now_ns)
                : leases.MayServe(group.partition, now_ns))) {
      return false;
    }
  }
  return true;
}

template <typename Request>
absl::Status ShardExecutor::Impl::MayCheckpoint(const Request& request) const {
  if (engine == nullptr || view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  if (request.server_incarnation() != incarnation) {
    return absl::AbortedError(absl::StrCat("this is server incarnation ", incarnation, ", not ",
                                           request.server_incarnation()));
  }
  if (request.revision() > view->revision()) {
    return absl::UnavailableError(absl::StrCat("this server's view is at revision ",
                                               view->revision(), ", the caller's at ",
                                               request.revision()));
  }
  // A primary that may have been replaced without its knowledge may lack pushes that its successor
  // has acknowledged.
  for (const v1::Partition& partition : view->partitions()) {
    if (partition.primary() != incarnation || partition.shard() != options.shard) continue;
    if (replication->leases().MayRead(partition.id(), now_ns)) continue;
    return absl::UnavailableError(absl::StrCat("this server may not answer for partition ",
                                               partition.id(), " now: its replica is silent"));
  }
  return absl::OkStatus();
}

template absl::Status ShardExecutor::Impl::MayCheckpoint(const v1::BeginCheckpointRequest&) const;
template absl::Status ShardExecutor::Impl::MayCheckpoint(const v1::BeginRestoreRequest&) const;

void ShardExecutor::Impl::Refuse(Lane* lane, const ShardLane::Arrival& record, ReplyStatus status) {
  Reply(lane, AnswerTo(record, status));
}

std::vector<v1::ReplicaStatistics> ShardExecutor::Impl::ReplicaStatistics() const {
  std::vector<v1::ReplicaStatistics> statistics;
  if (engine == nullptr) return statistics;
  for (const shard::CopyStatus& copy : engine->replicas().Status()) {
    v1::ReplicaStatistics& out = statistics.emplace_back();
    out.set_partition(copy.partition);
    out.set_sequence(copy.sequence);
    if (copy.copy.server == 0) {
      out.set_role(copy.learner ? v1::ReplicaStatistics::ROLE_LEARNER
                                : v1::ReplicaStatistics::ROLE_FOLLOWER);
      continue;
    }
    out.set_role(v1::ReplicaStatistics::ROLE_PRIMARY);
    v1::CopyStatistics* to = out.add_copies();
    to->set_server(copy.copy.server);
    to->set_learner(copy.learner);
    to->set_acknowledged(copy.acknowledged);
    to->set_copied_bytes(copy.copied_bytes);
    to->set_total_bytes(copy.total_bytes);
  }
  return statistics;
}

}  // namespace verbena::server
