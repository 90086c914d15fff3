#include "rdma/lane/shard_lane.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/lane/write_watch.h"
#include "rdma/sim/sim_network.h"

namespace verbena::rdma {
namespace {

// What a send completion is of: kind in the upper half of the wr_id, index in the lower.
enum class Sent : uint32_t { kGrant, kData, kReply, kCredit };

// The worker may have to ask again, or elsewhere, before its other records can be answered.
bool IsUrgent(const ShardLane::Answer& answer) {
  if (answer.status != ReplyStatus::kOk) return true;
  for (const ReplyStatus status : answer.group_status) {
    if (status != ReplyStatus::kOk) return true;
  }
  return false;
}

uint64_t WrId(Sent kind, uint32_t index) { return static_cast<uint64_t>(kind) << 32 | index; }

}  // namespace

struct ShardLane::Impl {
  // A data write that goes out ahead of a reply.
  struct Data {
    bool present = false;
    uint64_t cookie = 0;
    Segment segment;
    RemoteMemory destination;
  };
  // An operation has two reply entries in `staging`. At most one is under way; the other may wait
  // for its completion, when the worker's next record overtook the acknowledgement.
  struct Operation {
    bool unanswered = false;
    bool under_way = false;
    bool waiting = false;
    bool urgent = false;  // the last reply
    uint8_t entry = 0;    // the next reply is built here
    Data sent;
    Data next;
  };
  struct Slot {
    bool in_use = false;  // holds a record that was not returned
    bool credit_under_way = false;
    bool credit_waiting = false;
    std::shared_ptr<const void> payload;  // of the record, if it is borrowed
  };

  Endpoint* endpoint = nullptr;
  ConnectionId connection = ConnectionId::kNone;
  bool taken_over = false;  // the connection is ours to destroy
  LaneHello hello = {};
  Params params;
  const PlantedBugs* bugs = nullptr;
  State state = State::kAccepting;
  bool broken = false;  // in error; kLost with the reason follows
  absl::Status error;
  ShardLaneCounters counters;

  WriteWatch watch;
  std::shared_ptr<MemoryBlock> ring;
  std::shared_ptr<MemoryBlock> staging;
  RemoteMemory exposed_ring;
  std::vector<Operation> operations;
  std::vector<Slot> slots;
  std::vector<uint64_t> abandoned;  // cookies of data writes that were never posted
  uint32_t receives_owed = 0;       // planted bug: consumed and not reposted
  uint32_t unanswered = 0;
  bool together = false;   // BeginAnswers()
  bool owes_wake = false;  // since then: something was written
  bool urgent = false;     // of that, something that the worker may have to act upon

  ~Impl() {
    slots.clear();  // what is borrowed goes back before the connection ends
    if (taken_over) endpoint->Destroy(connection);
  }

  const LaneConfig& config() const { return params.config; }
  std::byte* Entry(uint32_t operation, uint8_t entry) const {
    return staging->data() + (size_t{2} * operation + entry) * kMailboxEntryBytes;
  }
  std::byte* GrantEntry() const { return Entry(config().operations, 0); }
  RemoteMemory Mailbox(uint32_t index) const {
    return {hello.mailbox_address + size_t{index} * kMailboxEntryBytes, hello.mailbox_key};
  }

  absl::Status Start();
  bool PostWrite(const WriteRequest& write);
  Wakes WakesFor(bool urgent_write);
  void SendGrant();
  void RepostReceive();
  bool OnReceived(uint32_t immediate, Arrival* arrival);
  absl::Status ReadRecord(uint32_t slot, Arrival* arrival);
  void OnSent(uint64_t wr_id, bool ok, std::vector<uint64_t>* written);
  void OnReplySent(uint32_t index, std::vector<uint64_t>* written);
  bool TakeSlot(uint32_t slot);
  void Credit(uint32_t slot);
  void Reply(const Data& data, const Answer& answer);
  bool CheckAnswer(const Answer& answer);
  void PostReply(uint32_t operation, uint8_t entry, const Data& data);
  void Close(absl::Status reason);
  bool Violation(absl::string_view what) {
    Close(absl::InvalidArgumentError(absl::StrCat("lane ", params.lane, " of worker ",
                                                  params.incarnation, ": the worker sent ", what)));
    return false;
  }
  // A mistake of this process, not of the peer: loud, but only this lane pays.
  void Misuse(absl::string_view what) {
    Close(absl::InternalError(absl::StrCat("lane ", params.lane, ": ", what)));
  }
};

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
    // Not our accounting's fault when the memory could not be registered: the message says which.
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
  if (bugs->reply_before_receive) {
    // Reposts only when the last receive is gone, as if batching were free: the worker gets its
    // replies and credits long before.
    if (++receives_owed < config().shard_receives()) return;
    count = std::exchange(receives_owed, 0);
  }
  if (absl::Status s = endpoint->PostReceives(connection, count); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;  // what has arrived is still good
    } else {
      Misuse(s.message());
    }
  }
}

absl::Status ShardLane::Impl::ReadRecord(uint32_t slot, Arrival* arrival) {
  const RecordLimits limits = {params.generation, params.incarnation, config().operations,
                               endpoint->CanBorrow()};
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

void ShardLane::Impl::OnSent(uint64_t wr_id, bool ok, std::vector<uint64_t>* written) {
  const uint32_t index = static_cast<uint32_t>(wr_id);
  switch (static_cast<Sent>(wr_id >> 32)) {
    case Sent::kGrant:
      break;
    case Sent::kData:
      // Unsignaled, so an error. The reply behind it is flushed, or was never posted.
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
    // The same connection completes in order: the data ahead of this reply is no longer read.
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

// After the last answer the worker has something to do in any case.
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
  uint16_t group_count;  // of our own memory: written by Reply()
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
  impl->bugs = &planted_bugs();
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

bool ShardLane::OnCompletion(const Completion& completion, Arrival* arrival,
                             std::vector<uint64_t>* written) {
  if (!completion.ok) impl_->broken = true;  // kLost says why, and closes
  if (completion.kind == Completion::Kind::kSend) {
    if (completion.ok) impl_->watch.Ended();
    // Also while closing: it says that a data write is no longer read.
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
  return impl_->watch.Silent(now_ns, timeout_ns) && !impl_->bugs->trust_writes;
}

void ShardLane::Close(absl::Status reason) { impl_->Close(std::move(reason)); }

}  // namespace verbena::rdma
