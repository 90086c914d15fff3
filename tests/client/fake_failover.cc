// The fake cluster's servers when partitions move: refusals by epoch, and the state of a replica.
#include <algorithm>
#include <tuple>

#include "tests/client/fake_cluster.h"

namespace verbena::test {

bool FakeServer::Mine(const Group& group) const {
  if (knows == nullptr) return true;
  const v1::Partition& partition = knows->partitions(static_cast<int>(group.partition));
  return partition.primary() == incarnation_ && partition.epoch() == group.epoch;
}

// For records that are answered as a whole, deferred or not.
bool FakeServer::RefuseStrangers(Held* held) {
  const Record& record = held->arrival.record;
  const RecordType type = record.header.type;
  if (type == RecordType::kPush || type == RecordType::kEndStep || type == RecordType::kPushRows) {
    return false;
  }
  const auto groups = record.group_span();
  if (std::all_of(groups.begin(), groups.end(), [&](const Group& g) { return Mine(g); })) {
    return false;
  }
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  answer.status = ReplyStatus::kWrongEpoch;
  lanes_[held->lane]->SendReply(answer);
  return true;
}

void FakeServer::Forget(uint32_t partition) {
  const auto of = [&](const auto& item) { return std::get<1>(item.first) == partition; };
  std::erase_if(last_, of);
  std::erase_if(ended_, of);
  std::erase_if(open_, of);
  std::erase_if(indices_, of);
  std::erase_if(measured_, of);
  for (const auto& [key, made] : made_) {
    if (key.second != partition) continue;
    for (const uint64_t k : made) rows[key.first].erase(k);
  }
  std::erase_if(made_, of);
  for (const auto& [chunk, home] : homes_) {
    if (home == partition) applied.erase(chunk);
  }
}

// Drops contributions that were not committed.
void FakeServer::DropOpen(uint32_t partition) {
  for (const auto& [key, open] : open_) {
    if (key.second != partition) continue;
    for (const auto& [chunk, value] : open.chunks) applied[{key.first, chunk}] -= value;
    for (const auto& [k, row] : open.rows) {
      std::vector<float>& own = rows[key.first][k];
      for (size_t d = 0; d < row.size(); ++d) own[d] -= row[d];
    }
    for (const auto& [k, row] : open.rows) {
      const auto it = rows[key.first].find(k);
      if (it == rows[key.first].end() || it->second != std::vector<float>(row.size(), 0)) continue;
      rows[key.first].erase(it);
      std::erase(made_[key], k);
    }
  }
  const auto of = [&](const auto& item) { return std::get<1>(item.first) == partition; };
  std::erase_if(open_, of);
  std::erase_if(indices_, of);
  std::erase_if(measured_, of);
}

void FakeServer::TakeOver(const FakeServer& from, uint32_t partition) {
  if (&from == this) return DropOpen(partition);
  Forget(partition);
  for (const auto& [key, last] : from.last_) {
    if (key.second == partition) last_[key] = last;
  }
  for (const auto& [key, ended] : from.ended_) {
    if (key.second == partition && !from.hold_commits) ended_[key] = ended;
  }
  for (const auto& [chunk, home] : from.homes_) {
    if (home != partition) continue;
    homes_[chunk] = home;
    if (from.applied.count(chunk) > 0) applied[chunk] = from.applied.at(chunk);
  }
  for (const auto& [key, made] : from.made_) {
    if (key.second != partition) continue;
    made_[key] = made;
    for (const uint64_t k : made) rows[key.first][k] = from.rows.at(key.first).at(k);
  }
  for (const auto& [key, open] : from.open_) {
    if (key.second == partition) open_[key] = open;
  }
  DropOpen(partition);
}

}  // namespace verbena::test
