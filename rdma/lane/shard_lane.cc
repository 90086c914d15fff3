// Set-up, receiving, and the end.
#include "rdma/lane/shard_lane.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/failpoints.h"
#include "rdma/lane/shard_lane_impl.h"

namespace verbena::rdma {

absl::Status ShardLane::Impl::Start() {
  ConnectionLimits limits = config().shard_limits();
  limits.domain = params.domain;
  if (absl::Status s = endpoint->Prepare(connection, limits); !s.ok()) return s;
  auto block = endpoint->Allocate(config().ring_bytes(), "verbena-ring");
  if (!block.ok()) return block.status();
  ring = *std::move(block);
  block = endpoint->Allocate(config().shard_staging_bytes(), "verbena-replies");
  if (!block.ok()) return block.status();
  staging = *std::move(block);
  operations.resize(config().operations);
  slots.resize(config().slots());
  abandoned.reserve(config().operations);
  auto remote = endpoint->Expose(connection, ring, 0, config().ring_bytes());
  if (!remote.ok()) return remote.status();
  exposed_ring = *remote;
  if (absl::Status s = endpoint->PostReceives(connection, config().shard_receives()); !s.ok()) {
    return s;
  }
  return endpoint->Accept(connection);
}

bool ShardLane::Impl::PostWrite(const WriteRequest& write) {
  absl::Status s = endpoint->PostWrite(connection, write);
  if (s.ok()) {
    if (write.signaled) watch.Posted();
    return true;
  }
  if (absl::IsFailedPrecondition(s)) {
    broken = true;
  } else if (absl::IsResourceExhausted(s)) {
    // Memory that could not be registered is not an accounting bug; the message has the details.
    Close(absl::ResourceExhaustedError(absl::StrCat("lane ", params.lane, ": ", s.message())));
  } else {
    Misuse(s.message());
  }
  return false;
}

void ShardLane::Impl::SendGrant() {
  LaneGrant grant = {};
  grant.magic = kGrantMagic;
  grant.generation = params.generation;
  grant.ring_address = exposed_ring.address;
  grant.ring_key = exposed_ring.key;
  std::memcpy(GrantEntry(), &grant, sizeof(grant));
  const Segment segment = {GrantEntry(), sizeof(grant), staging.get()};
  WriteRequest write;
  write.wr_id = WrId(Sent::kGrant, 0);
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = Mailbox(config().operations);
  write.immediate = ReplyImm{ImmKind::kGrant, config().operations, params.generation}.Encode();
  PostWrite(write);
}

void ShardLane::Impl::RepostReceive() {
  uint32_t count = 1;
  if (VERBENA_FAILPOINT(rdma, reply_before_receive)) {
    // Reposts only when the last receive is used, as if batching were free: the worker gets its
    // replies and credits long before.
    if (++receives_owed < config().shard_receives()) return;
    count = std::exchange(receives_owed, 0);
  }
  if (absl::Status s = endpoint->PostReceives(connection, count); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;  // arrived data is still valid
    } else {
      Misuse(s.message());
    }
  }
}

absl::Status ShardLane::Impl::ReadRecord(uint32_t slot, Arrival* arrival) {
  const RecordLimits limits = {params.generation, params.incarnation, config().operations,
                               endpoint->CanBorrow(), params.protocol};
  absl::Status s = CopyRecord(ring->data() + config().slot_offset(slot), config().slot_bytes(slot),
                              limits, &arrival->record, &arrival->payload);
  const RecordHeader& header = arrival->record.header;
  if (!s.ok() || (header.flags & kRecordReference) == 0) return s;
  auto borrowed = endpoint->Borrow(connection, {header.destination, header.destination_key},
                                   header.payload_bytes);
  if (!borrowed.ok()) return borrowed.status();
  arrival->payload = borrowed->bytes;
  slots[slot].payload = std::move(borrowed->hold);
  counters.borrowed_bytes += header.payload_bytes;
  return s;
}

bool ShardLane::Impl::OnReceived(uint32_t immediate, Arrival* arrival) {
  RepostReceive();
  if (state != State::kOpen) return false;
  const RequestImm imm = RequestImm::Decode(immediate);
  if (imm.lane != (params.lane & 0xfff)) {
    return Violation(absl::StrCat("an immediate for lane ", imm.lane));
  }
  if (imm.generation != (params.generation & kGenerationMask)) {
    return Violation(absl::StrCat("an immediate of generation ", imm.generation));
  }
  if (imm.slot >= slots.size()) {
    return Violation(
        absl::StrCat("a record in slot ", imm.slot, "; granted: ", slots.size(), " slots"));
  }
  Slot& slot = slots[imm.slot];
  if (slot.in_use || slot.credit_waiting) {
    return Violation(absl::StrCat("a record in slot ", imm.slot, ", which it does not hold"));
  }
  if (absl::Status s = ReadRecord(imm.slot, arrival); !s.ok()) {
    return Violation(absl::StrCat("a malformed record: ", s.message()));
  }
  Operation& operation = operations[arrival->record.header.operation];
  if (operation.unanswered || operation.waiting) {
    return Violation(absl::StrCat("a record with operation ", arrival->record.header.operation,
                                  ", which is in use"));
  }
  slot.in_use = true;
  operation.unanswered = true;
  ++unanswered;
  arrival->slot = imm.slot;
  ++counters.records;
  counters.payload_bytes += arrival->payload.size();
  return true;
}

void ShardLane::Impl::Close(absl::Status reason) {
  if (state == State::kClosing || state == State::kDead) return;
  error = std::move(reason);
  state = State::kClosing;
  endpoint->Close(connection);
}

absl::StatusOr<std::unique_ptr<ShardLane>> ShardLane::Accept(Endpoint* endpoint,
                                                             ConnectionId connection,
                                                             const LaneHello& hello,
                                                             const Params& params) {
  auto impl = std::make_unique<Impl>();
  impl->endpoint = endpoint;
  impl->connection = connection;
  impl->hello = hello;
  impl->params = params;
  absl::Status status = params.config.Validate();
  if (status.ok()) status = impl->Start();
  if (!status.ok()) {
    endpoint->Reject(connection, status.ToString());
    return status;
  }
  impl->taken_over = true;
  return std::unique_ptr<ShardLane>(new ShardLane(std::move(impl)));
}

ShardLane::ShardLane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardLane::~ShardLane() = default;

ShardLane::State ShardLane::state() const { return impl_->state; }
ConnectionId ShardLane::connection() const { return impl_->connection; }
const absl::Status& ShardLane::error() const { return impl_->error; }
const ShardLane::Params& ShardLane::params() const { return impl_->params; }
const ShardLaneCounters& ShardLane::counters() const { return impl_->counters; }
uint32_t ShardLane::unanswered_count() const { return impl_->unanswered; }

bool ShardLane::OnCompletion(const Completion& completion, Arrival* arrival,
                             std::vector<uint64_t>* written) {
  if (!completion.ok) impl_->broken = true;  // kLost has the reason and closes
  if (completion.kind == Completion::Kind::kSend) {
    if (completion.ok) impl_->watch.Ended();
    // Also while closing: it shows that a data write is no longer read.
    impl_->OnSent(completion.wr_id, completion.ok, written);
    return false;
  }
  return completion.ok && impl_->OnReceived(completion.immediate, arrival);
}

void ShardLane::OnEvent(const ConnectionEvent& event) {
  switch (event.kind) {
    case ConnectionEvent::Kind::kEstablished:
      if (impl_->state != State::kAccepting) break;
      impl_->state = State::kOpen;
      impl_->SendGrant();
      break;
    case ConnectionEvent::Kind::kFailed:
    case ConnectionEvent::Kind::kLost:
      impl_->Close(event.status.ok() ? absl::UnavailableError("connection lost") : event.status);
      break;
    case ConnectionEvent::Kind::kRequest:
      break;
  }
}

void ShardLane::TakeAbandoned(std::vector<uint64_t>* cookies) {
  if (impl_->state != State::kDead) return;
  cookies->insert(cookies->end(), impl_->abandoned.begin(), impl_->abandoned.end());
  impl_->abandoned.clear();
  for (Impl::Operation& operation : impl_->operations) {
    for (Impl::Data* data : {&operation.sent, &operation.next}) {
      if (data->present) cookies->push_back(data->cookie);
      data->present = false;
    }
  }
}

bool ShardLane::RunOnce() {
  if (impl_->state != State::kClosing) return false;
  for (Impl::Slot& slot : impl_->slots) slot.payload.reset();
  if (!impl_->endpoint->Dead(impl_->connection)) return false;
  impl_->state = State::kDead;
  return true;
}

bool ShardLane::WritesHang(int64_t now_ns, int64_t timeout_ns) {
  return impl_->watch.Silent(now_ns, timeout_ns) && !VERBENA_FAILPOINT(rdma, trust_writes);
}

void ShardLane::Close(absl::Status reason) { impl_->Close(std::move(reason)); }

}  // namespace verbena::rdma
