// Replies, and wake-ups of the worker.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/lane/shard_lane_impl.h"

namespace verbena::rdma {
namespace {

// The worker may have to resend, or use another server, before its other records can be answered. A
// duplicate group counts as done.
bool IsUrgent(const ShardLane::Answer& answer) {
  if (answer.status != ReplyStatus::kOk) return true;
  for (const ReplyStatus status : answer.group_status) {
    if (status != ReplyStatus::kOk && status != ReplyStatus::kDuplicate) return true;
  }
  return false;
}

}  // namespace

void ShardLane::Impl::OnSent(uint64_t wr_id, bool ok, std::vector<uint64_t>* written) {
  const uint32_t index = static_cast<uint32_t>(wr_id);
  switch (static_cast<Sent>(wr_id >> 32)) {
    case Sent::kGrant:
      break;
    case Sent::kData:
      // The write is unsignaled, so this is an error. The reply after it is flushed or was never
      // posted.
      if (!ok && index < operations.size() && operations[index].sent.present) {
        written->push_back(operations[index].sent.cookie);
        operations[index].sent.present = false;
      }
      break;
    case Sent::kReply:
      if (index < operations.size()) OnReplySent(index, written);
      break;
    case Sent::kCredit: {
      if (index >= slots.size()) break;
      Slot& slot = slots[index];
      slot.credit_under_way = false;
      if (std::exchange(slot.credit_waiting, false)) Credit(index);
      break;
    }
  }
}

void ShardLane::Impl::OnReplySent(uint32_t index, std::vector<uint64_t>* written) {
  Operation& operation = operations[index];
  operation.under_way = false;
  if (operation.sent.present) {
    // The same connection completes in order: the data before this reply is no longer read.
    written->push_back(operation.sent.cookie);
    operation.sent.present = false;
  }
  if (!operation.waiting || state != State::kOpen || broken) return;
  operation.waiting = false;
  PostReply(index, operation.entry ^ 1, std::exchange(operation.next, Data()));
}

bool ShardLane::Impl::TakeSlot(uint32_t slot) {
  if (slot >= slots.size() || !slots[slot].in_use) {
    Misuse(absl::StrCat("slot ", slot, " was returned twice"));
    return false;
  }
  slots[slot].in_use = false;
  slots[slot].payload.reset();
  return true;
}

void ShardLane::Impl::Credit(uint32_t slot) {
  if (state != State::kOpen || broken) return;
  if (slots[slot].credit_under_way) {
    slots[slot].credit_waiting = true;
    return;
  }
  WriteRequest write;
  write.wr_id = WrId(Sent::kCredit, slot);
  write.immediate = ReplyImm{ImmKind::kCredit, slot, params.generation}.Encode();
  write.wakes = WakesFor(false);
  if (!PostWrite(write)) return;
  slots[slot].credit_under_way = true;
  ++counters.credits;
}

bool ShardLane::Impl::CheckAnswer(const Answer& answer) {
  if (answer.operation >= operations.size() || !operations[answer.operation].unanswered) {
    Misuse(absl::StrCat("operation ", answer.operation, " was answered twice"));
    return false;
  }
  if (answer.group_count < 1 || answer.group_count > kMaxGroups ||
      (!answer.group_status.empty() && answer.group_status.size() != answer.group_count)) {
    Misuse(absl::StrCat("operation ", answer.operation, " was answered with ", answer.group_count,
                        " groups"));
    return false;
  }
  return !answer.return_slot || TakeSlot(answer.slot);
}

void ShardLane::Impl::Reply(const Data& data, const Answer& answer) {
  if (state != State::kOpen || broken || !CheckAnswer(answer)) {
    if (data.present) abandoned.push_back(data.cookie);
    return;
  }
  Operation& operation = operations[answer.operation];
  operation.unanswered = false;
  --unanswered;
  operation.urgent = IsUrgent(answer);
  const uint8_t entry = operation.entry;
  operation.entry ^= 1;

  verbena::Reply reply;
  reply.magic = kReplyMagic;
  reply.generation = params.generation;
  reply.operation = answer.operation;
  reply.status = answer.status;
  reply.flags = answer.return_slot ? kReplyReturnsSlot : 0;
  reply.group_count = answer.group_count;
  reply.slot = answer.return_slot ? static_cast<uint16_t>(answer.slot) : 0;
  reply.reserved0 = 0;
  reply.detail = answer.detail;
  reply.version = answer.version;
  reply.applies = answer.applies;
  if (answer.group_status.empty()) {
    std::memset(reply.group_status, static_cast<int>(answer.status), answer.group_count);
  } else {
    std::memcpy(reply.group_status, answer.group_status.data(), answer.group_count);
  }
  std::memcpy(Entry(answer.operation, entry), &reply, ReplyBytes(answer.group_count));

  if (operation.under_way) {
    operation.waiting = true;
    operation.next = data;
  } else {
    PostReply(answer.operation, entry, data);
  }
}

// After the last reply the worker always has work.
Wakes ShardLane::Impl::WakesFor(bool urgent_write) {
  if (together) {
    owes_wake = true;
    urgent = urgent || urgent_write;
    return Wakes::kNobody;
  }
  if (urgent_write) return Wakes::kPeer;
  return unanswered == 0 ? Wakes::kPeerAtLast : Wakes::kImpatientPeer;
}

void ShardLane::Impl::PostReply(uint32_t index, uint8_t entry, const Data& data) {
  Operation& operation = operations[index];
  WriteRequest write;
  if (data.present) {
    write.wr_id = WrId(Sent::kData, index);
    write.segments = absl::MakeConstSpan(&data.segment, 1);
    write.remote = data.destination;
    write.signaled = false;
    write.more = true;  // its reply follows at once
    if (!PostWrite(write)) {
      abandoned.push_back(data.cookie);
      return;
    }
    operation.sent = data;
    counters.written_bytes += data.segment.bytes;
  }
  std::byte* const reply = Entry(index, entry);
  uint16_t group_count;  // local memory: written by Reply()
  std::memcpy(&group_count, reply + offsetof(verbena::Reply, group_count), sizeof(group_count));
  const Segment segment = {reply, static_cast<uint32_t>(ReplyBytes(group_count)), staging.get()};
  write.wr_id = WrId(Sent::kReply, index);
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = Mailbox(index);
  write.immediate = ReplyImm{ImmKind::kReply, index, params.generation}.Encode();
  write.signaled = true;
  write.more = false;
  write.wakes = WakesFor(operation.urgent);
  if (!PostWrite(write)) return;
  operation.under_way = true;
  ++counters.replies;
}

void ShardLane::ReturnSlot(uint32_t slot) {
  if (impl_->state == State::kOpen && impl_->TakeSlot(slot)) impl_->Credit(slot);
}

void ShardLane::BeginAnswers() { impl_->together = true; }

void ShardLane::EndAnswers() {
  impl_->together = false;
  const bool urgent = std::exchange(impl_->urgent, false);
  if (!std::exchange(impl_->owes_wake, false) || impl_->state != State::kOpen) return;
  impl_->endpoint->WakePeer(impl_->connection, impl_->WakesFor(urgent));
}

void ShardLane::SendReply(const Answer& answer) { impl_->Reply(Impl::Data(), answer); }

void ShardLane::WriteAndReply(const Segment& data, const RemoteMemory& destination, uint64_t cookie,
                              const Answer& answer) {
  impl_->Reply({true, cookie, data, destination}, answer);
}

}  // namespace verbena::rdma
