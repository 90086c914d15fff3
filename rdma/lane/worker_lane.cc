#include "rdma/lane/worker_lane.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "proto/wire/record_check.h"
#include "rdma/failpoints.h"
#include "rdma/lane/worker_lane_impl.h"

namespace verbena::rdma {

absl::Status WorkerLane::Impl::Start() {
  absl::StatusOr<ConnectionId> created = endpoint->Create(config().worker_limits());
  if (!created.ok()) return created.status();
  connection = *created;
  auto block = endpoint->Allocate(config().mailbox_bytes(), "verbena-mailbox");
  if (!block.ok()) return block.status();
  mailbox = *std::move(block);
  block = endpoint->Allocate(config().worker_staging_bytes(), "verbena-records");
  if (!block.ok()) return block.status();
  staging = *std::move(block);

  operations.resize(config().operations);
  withheld.resize(config().operations);
  slots.resize(config().slots());
  free_operations.reserve(config().operations);
  free_small.reserve(config().small_slots);
  free_large.reserve(config().large_slots);
  for (uint32_t i = config().operations; i-- > 0;) free_operations.push_back(i);
  for (uint32_t i = config().slots(); i-- > 0;) FreeSlot(i);

  auto remote = endpoint->Expose(connection, mailbox, 0, config().mailbox_bytes());
  if (!remote.ok()) return remote.status();
  absl::Status posted = endpoint->PostReceives(connection, config().worker_receives());
  if (!posted.ok()) return posted;
  LaneHello hello = {};
  std::memcpy(hello.token, ticket.token, sizeof(hello.token));
  hello.mailbox_address = remote->address;
  hello.mailbox_key = remote->key;
  return endpoint->Connect(connection, ticket.address,
                           std::string_view(reinterpret_cast<const char*>(&hello), sizeof(hello)));
}

void WorkerLane::Impl::EndOperation(uint32_t index) {
  Operation& o = operations[index];
  (o.previous == kNone ? oldest : operations[o.previous].next) = o.next;
  (o.next == kNone ? newest : operations[o.next].previous) = o.previous;
  o.in_use = false;
  --in_use;
  free_operations.push_back(index);
}

void WorkerLane::Impl::Probe() {
  if (state != State::kOpen || broken || probing || VERBENA_FAILPOINT(rdma, never_probe)) return;
  WriteRequest write;
  write.wr_id = slots.size();  // the number of no slot
  write.remote = ring;
  probing = endpoint->PostWrite(connection, write).ok();
  if (probing) watch.Posted();
}

// The write into slot `index` has completed: its staging may be reused, and its payload is no
// longer read. It implies nothing about the shard's side.
void WorkerLane::Impl::OnSent(uint32_t index, std::vector<Answer>* answers) {
  if (index == slots.size()) probing = false;
  if (index >= slots.size() || !slots[index].writing) return;
  Slot& s = slots[index];
  s.writing = false;
  if (!s.at_shard) FreeSlot(index);
  Operation& o = operations[s.operation];
  if (!o.in_use || o.serial != s.serial) return;
  o.reading = false;
  if (o.replied) {
    if (!o.reported) answers->push_back({o.cookie, withheld[s.operation]});
    EndOperation(s.operation);
  } else if (VERBENA_FAILPOINT(rdma, act_on_send_completion)) {
    Reply reply = {};
    reply.group_count = o.group_count;
    reply.version = o.min_version;
    answers->push_back({o.cookie, reply});
    o.reported = true;
  }
}

void WorkerLane::Impl::OnReceived(uint32_t immediate, std::vector<Answer>* answers) {
  // Before the operation or credit that the completion announces can be used again (invariant 3).
  if (absl::Status s = endpoint->PostReceives(connection, 1); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;  // arrived data is still valid
    } else {
      return Close(absl::InternalError(absl::StrCat("lane ", ticket.lane, ": ", s.message())));
    }
  }
  const ReplyImm imm = ReplyImm::Decode(immediate);
  if (imm.generation != (ticket.generation & kGenerationMask)) {
    return Close(Malformed(absl::StrCat("immediate generation ", imm.generation)));
  }
  if (imm.kind == ImmKind::kGrant) return OnGrant(imm.index);
  if (state != State::kOpen) return Close(Malformed("a reply or credit before its grant"));
  if (imm.kind == ImmKind::kReply) return OnReply(imm.index, answers);
  if (imm.kind != ImmKind::kCredit) return Close(Malformed("an immediate of unknown kind"));
  if (!ReturnSlot(imm.index)) {
    Close(Malformed(absl::StrCat("a credit for slot ", imm.index, ", which it does not hold")));
  }
}

void WorkerLane::Impl::OnGrant(uint32_t index) {
  if (state != State::kGranting || index != config().operations) {
    return Close(Malformed(absl::StrCat("an unexpected grant with index ", index)));
  }
  LaneGrant grant;
  std::memcpy(&grant, mailbox->data() + size_t{index} * kMailboxEntryBytes, sizeof(grant));
  if (absl::Status s = CheckGrant(grant, ticket.generation, config().ring_bytes()); !s.ok()) {
    return Close(Malformed(absl::StrCat("a malformed grant: ", s.message())));
  }
  ring = {grant.ring_address, grant.ring_key};
  state = State::kOpen;
}

bool WorkerLane::Impl::ReturnSlot(uint32_t index) {
  if (index >= slots.size() || !slots[index].at_shard) return false;
  slots[index].at_shard = false;
  if (!slots[index].writing) FreeSlot(index);
  return true;
}

void WorkerLane::Impl::OnReply(uint32_t index, std::vector<Answer>* answers) {
  if (index >= operations.size() || !operations[index].in_use || operations[index].replied) {
    return Close(Malformed(absl::StrCat("a reply to operation ", index, ", which is not in use")));
  }
  Operation& o = operations[index];
  Reply& reply = withheld[index];
  // The peer can write the mailbox, so only the copy is used from here on.
  std::memcpy(&reply, mailbox->data() + size_t{index} * kMailboxEntryBytes, sizeof(reply));
  asm volatile("" : : "r"(&reply) : "memory");
  absl::Status s = CheckReply(reply, ticket.generation, index, config().slots());
  if (s.ok() && reply.group_count != o.group_count) {
    s = absl::InvalidArgumentError(absl::StrCat("reply.group_count is ", reply.group_count,
                                                "; allowed: ", o.group_count,
                                                ", as in its request"));
  }
  if (s.ok() && (reply.flags & kReplyReturnsSlot) != 0 && !ReturnSlot(reply.slot)) {
    s = absl::InvalidArgumentError(
        absl::StrCat("reply.slot is ", reply.slot, "; allowed: one the shard holds"));
  }
  if (!s.ok()) {
    ++counters.malformed_replies;
    return Close(Malformed(absl::StrCat("a malformed reply: ", s.message())));
  }
  ++counters.replies;
  o.replied = true;
  if (o.reading) return;
  if (!o.reported) answers->push_back({o.cookie, reply});
  EndOperation(index);
}

void WorkerLane::Impl::Close(absl::Status reason) {
  if (state == State::kClosing || state == State::kDead) return;
  error = std::move(reason);
  state = State::kClosing;
  endpoint->Close(connection);
}

absl::StatusOr<std::unique_ptr<WorkerLane>> WorkerLane::Open(Endpoint* endpoint,
                                                             const LaneTicket& ticket) {
  if (absl::Status s = ticket.config.Validate(); !s.ok()) return s;
  auto impl = std::make_unique<Impl>();
  impl->endpoint = endpoint;
  impl->ticket = ticket;
  if (absl::Status s = impl->Start(); !s.ok()) return s;
  return std::unique_ptr<WorkerLane>(new WorkerLane(std::move(impl)));
}

WorkerLane::WorkerLane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerLane::~WorkerLane() = default;

WorkerLane::State WorkerLane::state() const { return impl_->state; }
ConnectionId WorkerLane::connection() const { return impl_->connection; }
const absl::Status& WorkerLane::error() const { return impl_->error; }
const WorkerLaneCounters& WorkerLane::counters() const { return impl_->counters; }
const LaneTicket& WorkerLane::ticket() const { return impl_->ticket; }

absl::StatusOr<RemoteMemory> WorkerLane::Expose(const std::shared_ptr<MemoryBlock>& block) {
  return Expose(block, block->data(), block->size());
}

absl::StatusOr<RemoteMemory> WorkerLane::Expose(const std::shared_ptr<MemoryBlock>& block,
                                                const std::byte* data, size_t bytes,
                                                Unexposed* unexposed) {
  const Endpoint::ExposurePieces pieces_of = impl_->endpoint->exposure_pieces();
  const size_t most = pieces_of.bytes;
  const size_t stride = block->size() <= most ? SIZE_MAX : pieces_of.stride;
  const auto offset = static_cast<size_t>(data - block->data());
  size_t piece = offset / stride;
  size_t begin = piece == 0 ? 0 : piece * stride;
  size_t piece_bytes = std::min(most, block->size() - begin);
  if (bytes > piece_bytes - (offset - begin) && block->size() <= impl_->endpoint->max_exposure()) {
    // The pieces are smaller than necessary; an extra piece after them stands for the whole block.
    piece = block->size() / stride + 1;
    begin = 0;
    piece_bytes = block->size();
  }
  if (bytes > piece_bytes - (offset - begin)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane ", impl_->ticket.lane, ": cannot expose ", bytes,
                     " bytes at once (the transport exposes pieces of ", most,
                     " bytes, or any range of ", most - pieces_of.stride, "); use smaller chunks"));
  }
  if (const RemoteMemory* known = impl_->FindExposed(block->id(), piece)) {
    return RemoteMemory{known->address - begin, known->key};
  }
  if (impl_->state == State::kClosing || impl_->state == State::kDead) {
    return impl_->Closed();
  }
  if (unexposed != nullptr) {
    auto steps = impl_->endpoint->StartExposure(impl_->connection, block, begin, piece_bytes);
    if (!steps.ok()) return steps.status();
    if (*steps != nullptr) {
      *unexposed = {piece, piece_bytes, *std::move(steps)};
      return absl::UnavailableError("the memory has to be registered for this lane");
    }
  }
  const auto remote = impl_->endpoint->Expose(impl_->connection, block, begin, piece_bytes);
  if (!remote.ok()) return remote;
  impl_->AddExposed(block->id(), piece, *remote);
  return RemoteMemory{remote->address - begin, remote->key};
}

absl::Status WorkerLane::FinishExposure(uint64_t block_id, size_t piece,
                                        std::unique_ptr<Registration> complete) {
  if (impl_->state == State::kClosing || impl_->state == State::kDead) return impl_->Closed();
  if (impl_->FindExposed(block_id, piece) != nullptr) return absl::OkStatus();
  const auto remote = impl_->endpoint->FinishExposure(std::move(complete));
  if (!remote.ok()) return remote.status();
  impl_->AddExposed(block_id, piece, *remote);
  return absl::OkStatus();
}

const RemoteMemory* WorkerLane::Impl::FindExposed(uint64_t block_id, size_t piece) const {
  const auto known = exposed.find(block_id);
  if (known == exposed.end() || piece >= known->second.size()) return nullptr;
  const RemoteMemory& memory = known->second[piece];
  return memory.address == 0 ? nullptr : &memory;
}

void WorkerLane::Impl::AddExposed(uint64_t block_id, size_t piece, const RemoteMemory& memory) {
  std::vector<RemoteMemory>& pieces = exposed[block_id];
  if (pieces.size() <= piece) pieces.resize(piece + 1);
  pieces[piece] = memory;
}

// Temporary: the records of this lane are resent on another one.
absl::Status WorkerLane::Impl::Closed() const {
  return absl::UnavailableError(absl::StrCat("lane ", ticket.lane, " is closed"));
}

void WorkerLane::Forget(uint64_t block_id) {
  const auto it = impl_->exposed.find(block_id);
  if (it == impl_->exposed.end()) return;
  for (const RemoteMemory& memory : it->second) {
    if (memory.address != 0) impl_->endpoint->Unexpose(impl_->connection, memory);
  }
  impl_->exposed.erase(it);
}

void WorkerLane::OnCompletion(const Completion& completion, std::vector<Answer>* answers) {
  if (impl_->state == State::kClosing || impl_->state == State::kDead) return;
  if (!completion.ok) {
    impl_->broken = true;  // kLost has the reason and closes
  } else if (completion.kind == Completion::Kind::kSend) {
    impl_->watch.Ended();
    impl_->OnSent(static_cast<uint32_t>(completion.wr_id), answers);
  } else {
    impl_->OnReceived(completion.immediate, answers);
  }
}

void WorkerLane::OnEvent(const ConnectionEvent& event) {
  switch (event.kind) {
    case ConnectionEvent::Kind::kEstablished:
      if (impl_->state == State::kConnecting) impl_->state = State::kGranting;
      break;
    case ConnectionEvent::Kind::kFailed:
    case ConnectionEvent::Kind::kLost:
      impl_->Close(event.status.ok() ? absl::UnavailableError("connection lost") : event.status);
      break;
    case ConnectionEvent::Kind::kRequest:
      break;
  }
}

bool WorkerLane::RunOnce() {
  if (impl_->state != State::kClosing) return false;
  if (!impl_->endpoint->Dead(impl_->connection) && !VERBENA_FAILPOINT(rdma, replay_before_dead))
    return false;
  impl_->state = State::kDead;
  return true;
}

std::vector<uint64_t> WorkerLane::Unanswered() const {
  std::vector<uint64_t> cookies;
  cookies.reserve(impl_->in_use);
  for (uint32_t i = impl_->oldest; i != Impl::kNone; i = impl_->operations[i].next) {
    if (!impl_->operations[i].reported) cookies.push_back(impl_->operations[i].cookie);
  }
  return cookies;
}

uint32_t WorkerLane::unanswered_count() const { return impl_->in_use; }

void WorkerLane::Probe() { impl_->Probe(); }

bool WorkerLane::WritesHang(int64_t now_ns, int64_t timeout_ns) {
  return impl_->watch.Silent(now_ns, timeout_ns) && !VERBENA_FAILPOINT(rdma, trust_writes);
}

void WorkerLane::Close(absl::Status reason) { impl_->Close(std::move(reason)); }

}  // namespace verbena::rdma
