#include "rdma/lane/worker_lane.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/record_check.h"
#include "rdma/lane/write_watch.h"
#include "rdma/sim/sim_network.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Payloads up to this size are copied behind the header: one segment is cheaper than the second
// gather, and the answer need not wait for the write's completion.
constexpr uint32_t kCopiedPayloadBytes = 1024;
// From here on a payload is referred to where the transport can: what fits a small slot is copied
// faster than found.
constexpr uint32_t kReferredPayloadBytes = 4096;

}  // namespace

struct WorkerLane::Impl {
  struct Operation {
    uint64_t cookie = 0;
    uint64_t serial = 0;  // of the record; tells it from the next one with this index
    uint64_t min_version = 0;
    uint32_t previous = kNone;  // in the order of posting
    uint32_t next = kNone;
    uint16_t group_count = 0;
    bool in_use = false;
    bool reading = false;   // the transport may still read the caller's payload
    bool replied = false;   // the reply is in `withheld`
    bool reported = false;  // planted bug: answered before its reply
  };
  struct Slot {
    uint64_t serial = 0;
    uint32_t operation = kNone;
    bool at_shard = false;  // not returned yet
    bool writing = false;   // our write has not completed
  };

  Endpoint* endpoint = nullptr;
  LaneTicket ticket;
  const PlantedBugs* bugs = nullptr;
  ConnectionId connection = ConnectionId::kNone;
  State state = State::kConnecting;
  bool broken = false;   // in error; kLost with the reason follows
  bool probing = false;  // an empty write is under way
  absl::Status error;
  WriteWatch watch;
  WorkerLaneCounters counters;

  std::shared_ptr<MemoryBlock> mailbox;
  std::shared_ptr<MemoryBlock> staging;
  RemoteMemory ring;

  std::vector<Operation> operations;
  std::vector<Reply> withheld;  // by operation
  std::vector<Slot> slots;
  std::vector<uint32_t> free_operations;
  std::vector<uint32_t> free_small;
  std::vector<uint32_t> free_large;
  uint32_t oldest = kNone;
  uint32_t newest = kNone;
  uint32_t in_use = 0;
  uint64_t next_serial = 1;
  absl::flat_hash_map<uint64_t, RemoteMemory> exposed;  // by block

  ~Impl() {
    if (connection != ConnectionId::kNone) endpoint->Destroy(connection);
  }

  const LaneConfig& config() const { return ticket.config; }

  absl::Status Start();
  std::vector<uint32_t>* FreeSlots(size_t group_count, size_t payload_bytes);
  absl::Status CheckRequest(const Request& request) const;
  static size_t PayloadBytes(const Request& request) {
    return request.prefix.size() + request.payload.bytes;
  }
  // Of these, in the slot.
  static size_t SlotPayloadBytes(const Request& request) {
    return request.prefix.size() + (request.reference ? 0 : request.payload.bytes);
  }
  absl::Status Post(const Request& request);
  uint32_t WriteStaging(std::byte* to, const Request& request, uint32_t operation, bool copied);
  void Begin(const Request& request, uint32_t operation, uint32_t slot, bool copied);
  void Probe();
  void OnSent(uint32_t index, std::vector<Answer>* answers);
  void OnReceived(uint32_t immediate, std::vector<Answer>* answers);
  void OnGrant(uint32_t index);
  void OnReply(uint32_t index, std::vector<Answer>* answers);
  bool ReturnSlot(uint32_t index);
  void FreeSlot(uint32_t index) {
    (index < config().small_slots ? free_small : free_large).push_back(index);
  }
  void EndOperation(uint32_t index);
  void Close(absl::Status reason);
  absl::Status Malformed(absl::string_view what) const {
    return absl::InternalError(absl::StrCat("lane ", ticket.lane, " generation ", ticket.generation,
                                            ": the shard sent ", what));
  }
};

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

// The free list a record of this size takes its slot from; null when it fits none.
std::vector<uint32_t>* WorkerLane::Impl::FreeSlots(size_t group_count, size_t payload_bytes) {
  if (group_count < 1 || group_count > kMaxGroups) return nullptr;
  const size_t bytes = PayloadOffset(static_cast<uint32_t>(group_count)) + payload_bytes;
  if (bytes <= config().small_slot_bytes) return &free_small;
  if (config().large_slots > 0 && bytes <= config().large_slot_bytes) return &free_large;
  return nullptr;
}

absl::Status WorkerLane::Impl::CheckRequest(const Request& request) const {
  if (state != State::kOpen || broken) {
    return absl::FailedPreconditionError(
        absl::StrCat("lane ", ticket.lane, " is not open", error.ok() ? "" : ": ",
                     error.ok() ? absl::string_view() : error.message()));
  }
  const size_t prefix = request.prefix.size();
  if (prefix % kRecordAlignment != 0 || prefix > kRecordStagingBytes - PayloadOffset(kMaxGroups)) {
    return absl::InvalidArgumentError(
        absl::StrCat("record prefix of ", prefix, " bytes; allowed: a multiple of ",
                     kRecordAlignment, " up to ", kRecordStagingBytes - PayloadOffset(kMaxGroups)));
  }
  const Segment& payload = request.payload;
  if (payload.bytes == 0) return absl::OkStatus();
  const MemoryBlock* block = payload.block;
  if (payload.data == nullptr || block == nullptr || payload.data < block->data() ||
      payload.bytes > block->size() ||
      static_cast<size_t>(payload.data - block->data()) > block->size() - payload.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("record payload of ", payload.bytes, " bytes lies outside its memory block"));
  }
  return absl::OkStatus();
}

// Returns the length of the first segment.
uint32_t WorkerLane::Impl::WriteStaging(std::byte* to, const Request& request, uint32_t operation,
                                        bool copied) {
  RecordHeader header = request.header;
  header.magic = kRecordMagic;
  header.version = kWireVersion;
  header.flags = 0;
  if (request.reference) {
    header.flags = kRecordReference;
    header.destination = request.reference->address;
    header.destination_key = request.reference->key;
  }
  header.generation = ticket.generation;
  header.operation = operation;
  header.incarnation = ticket.incarnation;
  header.group_count = static_cast<uint16_t>(request.groups.size());
  header.reserved0 = 0;
  header.payload_bytes = static_cast<uint32_t>(PayloadBytes(request));
  header.reserved1 = 0;
  const size_t group_bytes = request.groups.size() * sizeof(Group);
  uint32_t offset = PayloadOffset(header.group_count);
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), request.groups.data(), group_bytes);
  std::memset(to + sizeof(header) + group_bytes, 0, offset - sizeof(header) - group_bytes);
  if (!request.prefix.empty()) {
    std::memcpy(to + offset, request.prefix.data(), request.prefix.size());
    offset += static_cast<uint32_t>(request.prefix.size());
  }
  if (!copied || request.reference) return offset;
  if (request.payload.bytes > 0) {
    std::memcpy(to + offset, request.payload.data, request.payload.bytes);
  }
  return offset + request.payload.bytes;
}

absl::Status WorkerLane::Impl::Post(const Request& request) {
  if (absl::Status s = CheckRequest(request); !s.ok()) return s;
  std::vector<uint32_t>* free_slots = FreeSlots(request.groups.size(), SlotPayloadBytes(request));
  if (free_slots == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", request.groups.size(), " groups and ",
                     SlotPayloadBytes(request), " payload bytes fits no slot of lane ", ticket.lane,
                     "; allowed: 1..", kMaxGroups, " groups, slots of ", config().small_slot_bytes,
                     " and ", config().large_slot_bytes, " bytes"));
  }
  if (free_slots->empty() || free_operations.empty()) {
    ++counters.credit_stalls;
    return absl::ResourceExhaustedError(absl::StrCat(
        "lane ", ticket.lane, " has no free ", free_operations.empty() ? "operation" : "slot",
        "; granted: ", config().operations, " operations, ", config().small_slots, " small and ",
        config().large_slots, " large slots"));
  }
  const uint32_t operation = free_operations.back();
  const uint32_t slot = free_slots->back();
  const Segment payload = request.reference ? Segment() : request.payload;
  const bool copied =
      payload.bytes == 0 ||
      (payload.bytes <= kCopiedPayloadBytes && payload.block->kind() != MemoryKind::kCuda &&
       PayloadOffset(static_cast<uint32_t>(request.groups.size())) + PayloadBytes(request) <=
           kRecordStagingBytes);

  std::byte* const record = staging->data() + size_t{slot} * kRecordStagingBytes;
  const Segment segments[kMaxSegments] = {
      {record, WriteStaging(record, request, operation, copied), staging.get()}, payload};
  WriteRequest write;
  write.wr_id = slot;
  write.segments = absl::MakeConstSpan(segments, copied ? 1 : 2);
  write.remote = {ring.address + config().slot_offset(slot), ring.key};
  write.immediate = RequestImm{ticket.lane, slot, ticket.generation}.Encode();
  if (absl::Status s = endpoint->PostWrite(connection, write); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;
    } else {
      // Memory that cannot be registered is nobody's bug; anything else here is ours.
      Close(absl::Status(absl::IsResourceExhausted(s) ? s.code() : absl::StatusCode::kInternal,
                         absl::StrCat("lane ", ticket.lane, ": ", s.message())));
    }
    return s;
  }
  watch.Posted();
  free_operations.pop_back();
  free_slots->pop_back();
  Begin(request, operation, slot, copied);
  return absl::OkStatus();
}

void WorkerLane::Impl::Begin(const Request& request, uint32_t operation, uint32_t slot,
                             bool copied) {
  Operation& o = operations[operation];
  o.cookie = request.cookie;
  o.serial = next_serial++;
  o.min_version = request.header.min_version;
  o.group_count = static_cast<uint16_t>(request.groups.size());
  o.in_use = true;
  o.reading = !copied;
  o.replied = false;
  o.reported = false;
  o.previous = newest;
  o.next = kNone;
  (newest == kNone ? oldest : operations[newest].next) = operation;
  newest = operation;
  ++in_use;
  slots[slot] = {o.serial, operation, true, true};
  ++counters.records;
  counters.payload_bytes += PayloadBytes(request);
  if (request.reference) counters.referenced_bytes += request.payload.bytes;
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
  if (state != State::kOpen || broken || probing || bugs->never_probe) return;
  WriteRequest write;
  write.wr_id = slots.size();  // of no slot
  write.remote = ring;
  probing = endpoint->PostWrite(connection, write).ok();
  if (probing) watch.Posted();
}

// Our write into slot `index` has completed: its staging may be reused, its payload is not read
// any more. Nothing follows for the shard's side.
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
  } else if (bugs->act_on_send_completion) {
    Reply reply = {};
    reply.group_count = o.group_count;
    reply.version = o.min_version;
    answers->push_back({o.cookie, reply});
    o.reported = true;
  }
}

void WorkerLane::Impl::OnReceived(uint32_t immediate, std::vector<Answer>* answers) {
  // Before anything the completion announces can be used again (invariant 3).
  if (absl::Status s = endpoint->PostReceives(connection, 1); !s.ok()) {
    if (absl::IsFailedPrecondition(s)) {
      broken = true;  // what has arrived is still good
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
  // The mailbox is written by the peer: only the copy is looked at from here on.
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
  impl->bugs = &planted_bugs();
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

bool WorkerLane::CanPost(size_t group_count, size_t payload_bytes, const Reserve& reserve) const {
  if (impl_->state != State::kOpen || impl_->broken) return false;
  if (impl_->free_operations.size() <= reserve.operations) return false;
  const std::vector<uint32_t>* slots = impl_->FreeSlots(group_count, payload_bytes);
  if (slots == nullptr) return false;
  const bool small = slots == &impl_->free_small;
  return slots->size() > (small ? reserve.small_slots : reserve.large_slots);
}

std::optional<RemoteMemory> WorkerLane::Refer(const std::shared_ptr<MemoryBlock>& block,
                                              const std::byte* data, uint32_t bytes) {
  if (bytes < kReferredPayloadBytes || !impl_->endpoint->CanBorrow() || !block->allocated()) {
    return std::nullopt;
  }
  const auto whole = Expose(block);
  if (!whole.ok()) return std::nullopt;  // a copy will do, or says what is wrong
  return RemoteMemory{whole->address + static_cast<uint64_t>(data - block->data()), whole->key};
}

absl::Status WorkerLane::Post(const Request& request) { return impl_->Post(request); }

absl::StatusOr<RemoteMemory> WorkerLane::Expose(const std::shared_ptr<MemoryBlock>& block) {
  if (const auto it = impl_->exposed.find(block->id()); it != impl_->exposed.end()) {
    return it->second;
  }
  if (impl_->state == State::kClosing || impl_->state == State::kDead) {
    return absl::FailedPreconditionError(absl::StrCat("lane ", impl_->ticket.lane, " is closed"));
  }
  auto remote = impl_->endpoint->Expose(impl_->connection, block, 0, block->size());
  if (remote.ok()) impl_->exposed.emplace(block->id(), *remote);
  return remote;
}

void WorkerLane::Forget(uint64_t block_id) {
  const auto it = impl_->exposed.find(block_id);
  if (it == impl_->exposed.end()) return;
  impl_->endpoint->Unexpose(impl_->connection, it->second);
  impl_->exposed.erase(it);
}

void WorkerLane::OnCompletion(const Completion& completion, std::vector<Answer>* answers) {
  if (impl_->state == State::kClosing || impl_->state == State::kDead) return;
  if (!completion.ok) {
    impl_->broken = true;  // kLost says why, and closes
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
  if (!impl_->endpoint->Dead(impl_->connection) && !impl_->bugs->replay_before_dead) return false;
  impl_->state = State::kDead;
  return true;
}

std::vector<uint64_t> WorkerLane::Unanswered() const {
  std::vector<uint64_t> cookies;
  cookies.reserve(impl_->in_use);
  for (uint32_t i = impl_->oldest; i != kNone; i = impl_->operations[i].next) {
    if (!impl_->operations[i].reported) cookies.push_back(impl_->operations[i].cookie);
  }
  return cookies;
}

uint32_t WorkerLane::unanswered_count() const { return impl_->in_use; }

void WorkerLane::Probe() { impl_->Probe(); }

bool WorkerLane::WritesHang(int64_t now_ns, int64_t timeout_ns) {
  return impl_->watch.Silent(now_ns, timeout_ns) && !impl_->bugs->trust_writes;
}

void WorkerLane::Close(absl::Status reason) { impl_->Close(std::move(reason)); }

}  // namespace verbena::rdma
