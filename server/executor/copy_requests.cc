#include "server/executor/copy_requests.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "proto/protocol_version.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"
#include "server/executor/shard_core.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"

namespace verbena::server {

using rdma::ShardLane;

void CopyRequests::Follow() {
  if (core_.incarnation != 0)
    core_.replication->Follow(core_.view, core_.incarnation, core_.engine);
}

void CopyRequests::Replicate(Lane* lane, const ShardLane::Arrival& record) {
  ReplicaHeader header;
  absl::Span<const std::byte> data;
  const absl::Status status = CopyReplicaHeader(record.record, record.payload, &header, &data);
  if (!status.ok()) return core_.lanes.Close(lane, status);
  const shard::Answer applied = core_.replication->OnRecord(
      {lane->peer.incarnation, lane->peer.shard}, record.record, record.payload);
  ShardLane::Answer answer = AnswerTo(record, applied.status);
  ReportRoom(&answer);
  core_.answers.Reply(lane, answer);
}

void CopyRequests::Beacon(Lane* lane, const ShardLane::Arrival& record) {
  std::array<ReplyStatus, kMaxGroups> statuses;
  const absl::Span<const Group> groups = record.record.group_span();
  ReplyStatus worst = ReplyStatus::kOk;
  for (size_t i = 0; i < groups.size(); ++i) {
    statuses[i] = core_.replication->OnBeacon({lane->peer.incarnation, lane->peer.shard}, groups[i],
                                              record.record.header.min_version);
    worst = std::max(worst, statuses[i]);
  }
  ShardLane::Answer answer = AnswerTo(record, worst);
  answer.group_status = {statuses.data(), groups.size()};
  if (lane->protocol >= kFollowersProtocol) answer.applies = static_cast<uint64_t>(core_.now_ns);
  ReportRoom(&answer);
  core_.answers.Reply(lane, answer);
}

// Before its primary makes rows it knows whether there is room for them here.
void CopyRequests::ReportRoom(ShardLane::Answer* answer) const {
  if (core_.engine == nullptr) return;
  const shard::CopyRoom room = core_.engine->copies().Room();
  if (room.bytes == UINT64_MAX) return;
  answer->detail = 1 + static_cast<uint32_t>(std::min<uint64_t>(room.bytes >> 10, UINT32_MAX - 1));
  answer->version = room.limit;
}

bool CopyRequests::MayAnswer(const Record& record) const {
  const ReplicaLeases& leases = core_.replication->leases();
  const bool reads =
      wire::OperationOf(record.header.type).reads && !VERBENA_FAILPOINT(shard, read_without_lease);
  for (const Group& group : record.group_span()) {
    if (!(reads ? leases.MayRead(group.partition, core_.now_ns)
                : leases.MayServe(group.partition, core_.now_ns))) {
      return false;
    }
  }
  return true;
}

bool CopyRequests::IsFresh(const Record& record) const {
  const int64_t age_ns = int64_t{record.header.bags} * kNanosPerMilli;
  return core_.replication->leases().IsFresh(record.groups[0], age_ns, core_.now_ns);
}

absl::Status CopyRequests::MayCheckpoint(uint64_t server_incarnation, uint64_t revision) const {
  if (core_.engine == nullptr || core_.view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  if (server_incarnation != core_.incarnation) {
    return absl::AbortedError(absl::StrCat("this is server incarnation ", core_.incarnation,
                                           ", not ", server_incarnation));
  }
  if (revision > core_.view->revision()) {
    return absl::UnavailableError(absl::StrCat("this server's view is at revision ",
                                               core_.view->revision(), ", the caller's at ",
                                               revision));
  }
  // A primary that may have been replaced without its knowledge may lack pushes that its successor
  // has acknowledged.
  for (const v1::Partition& partition : core_.view->partitions()) {
    if (partition.primary() != core_.incarnation || partition.shard() != core_.options.shard)
      continue;
    if (core_.replication->leases().MayRead(partition.id(), core_.now_ns)) continue;
    return absl::UnavailableError(absl::StrCat("this server may not answer for partition ",
                                               partition.id(), " now: its replica is silent"));
  }
  return absl::OkStatus();
}

std::vector<v1::PartitionStatistics> CopyRequests::Contents() const {
  std::vector<v1::PartitionStatistics> contents;
  if (core_.engine == nullptr || core_.view == nullptr) return contents;
  for (const v1::Partition& partition : core_.view->partitions()) {
    const shard::PartitionContents held = core_.engine->replicas().ContentsOf(partition.id());
    if (held.bytes == 0) continue;
    v1::PartitionStatistics& out = contents.emplace_back();
    out.set_partition(partition.id());
    out.set_bytes(held.bytes);
    out.set_rows(held.rows);
  }
  return contents;
}

std::vector<v1::ReplicaStatistics> CopyRequests::Statistics() const {
  std::vector<v1::ReplicaStatistics> statistics;
  if (core_.engine == nullptr) return statistics;
  for (const shard::CopyStatus& copy : core_.engine->replicas().Status()) {
    // A primary's statuses of one partition follow each other.
    const bool more = copy.copy.server != 0 && !statistics.empty() &&
                      statistics.back().partition() == copy.partition;
    v1::ReplicaStatistics& out = more ? statistics.back() : statistics.emplace_back();
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
