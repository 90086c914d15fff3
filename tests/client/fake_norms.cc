// The fake cluster's tables whose steps commit in two phases: each chunk's part of the norm is 1.

#include "tests/client/fake_cluster.h"

namespace verbena::test {

bool FakeServer::HandleNorms(Held* held) {
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  rdma::ShardLane* lane = lanes_[held->lane].get();
  size_t numbers = 0;
  for (const Group& g : record.group_span()) {
    if (CommittedOf(h.table, g.partition) > g.sequence) {
      rdma::ShardLane::Answer answer = AnswerTo(*held);
      answer.status = ReplyStatus::kDuplicate;
      lane->SendReply(answer);
      return true;
    }
    if (measured_[{h.table, g.partition}] <= g.sequence) {
      if (!held->slot_returned) lane->ReturnSlot(held->arrival.slot);
      held->slot_returned = true;
      return false;
    }
    for (const auto& [chunk, home] : homes_) {
      numbers += chunk.first == h.table && home == g.partition;
    }
  }
  auto block = *rdma::MemoryBlock::Allocate(numbers * sizeof(double), "out");
  std::fill_n(reinterpret_cast<double*>(block->data()), numbers, 1.0);
  Write(held, block, AnswerTo(*held));
  return true;
}

bool FakeServer::HandleTotals(Held* held) {
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  std::vector<ReplyStatus> statuses;
  for (const Group& g : record.group_span()) {
    const std::pair<uint32_t, uint32_t> key(h.table, g.partition);
    if (CommittedOf(h.table, g.partition) > g.sequence) {
      statuses.push_back(ReplyStatus::kDuplicate);
    } else if (measured_[key] <= g.sequence) {
      statuses.push_back(answer.status = ReplyStatus::kWrongStep);
    } else {
      totals[g.partition].push_back(CopyTotals(held->arrival.payload).totals[0]);
      ended_[key] = g.sequence + 1;
      open_.erase(key);
      statuses.push_back(ReplyStatus::kOk);
    }
  }
  answer.group_status = statuses;
  lanes_[held->lane]->SendReply(answer);
  return true;
}

}  // namespace verbena::test
