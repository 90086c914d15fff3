// Posting: which records may be posted now, and their contents.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "client/core/planted_bugs.h"
#include "proto/table_spec.h"

namespace verbena::client {
namespace {

// Number of a server's deferred operations (half of the lane's) that are reserved for awaits: a
// step must be able to end behind any number of pulls. When all are taken, one more request is
// sent: an await, a request for norms, or a pull if none is in flight. The server answers it if it
// can. Otherwise it refuses it or a request that has waited longer, which is resent later, so that
// all get a turn.
constexpr uint32_t kAwaitReserve = 4;
// With more replies than this, some should be copied or unpacked while others arrive.
constexpr size_t kFewAnswers = 8;

// Too small to reserve anything: ReserveOf() applies only to larger lanes.
bool IsTiny(const Stream& stream) {
  const rdma::LaneConfig& config = stream.lane->ticket().config;
  return config.operations < 8 || config.small_slots < 4;
}

// Whether the entry is the end-step that a push-pull of a whole table makes. Its pulls wait for the
// commit of that step in every partition, so they are answered only after the end-step was
// accepted.
bool EndsStepOf(const Operation& operation, const Entry& entry) {
  return entry.type == RecordType::kEndStep && operation.ends_step &&
         entry.table == operation.table && entry.step == operation.step;
}

}  // namespace

bool Journal::OnlyAnswersLeft(const Operation* operation) const {
  if (entries_.in_use() > kFewAnswers) return false;
  for (const auto& group : norm_groups_) {
    if (!group->tables.empty()) return false;  // their steps continue with the contents of replies
  }
  size_t out = 0;
  for (const auto& stream : lanes_->streams()) {
    out += stream->posted.size();
    for (const Entry* e = stream->posted.front(); e != nullptr; e = EntryQueue::Next(e)) {
      // The server may keep it for longer than `operation` takes.
      if (e->operation != operation && !EndsStepOf(*operation, *e)) return false;
    }
  }
  return out == entries_.in_use();
}

bool Journal::Pump() {
  if (dirty_.empty() && !norms_dirty_ && !moves_dirty_) return false;
  now_ = clock_->NowNanos();
  lanes_pulling_ = 0;
  bool worked = moves_dirty_ && RunMoves();
  if (norms_dirty_) RunNorms();
  // Streams that pumping touches are pumped in the same call, for a limited number of rounds.
  for (int round = 0; round < 4 && !dirty_.empty(); ++round) {
    pumping_.swap(dirty_);
    for (Stream* stream : pumping_) {
      stream->dirty = false;
      worked |= PumpStream(stream);
    }
    pumping_.clear();
  }
  for (const auto& device : devices_) device->Flush();
  return worked;
}

bool Journal::PumpStream(Stream* stream) {
  if (!stream->open()) return false;
  stream->stalled = false;
  bool worked = false;
  for (size_t i = 0; i < stream->table_lanes.size() && stream->open(); ++i) {
    worked |= PumpTable(stream, stream->table_lanes[i]);
  }
  if (stream->open()) worked |= PumpNorms(stream);
  if (stream->open()) worked |= PumpPulls(stream);
  return worked;
}

bool Journal::PumpTable(Stream* stream, TableLane* lane) {
  bool worked = false;
  if (!devices_.empty()) CopyAhead(stream, lane);
  while (Entry* entry = FrontOf(lane)) {
    if (lane->retry_at > now_) {
      NoteTimer(lane->retry_at);
      StopAwaiting(entry);
      break;
    }
    if (lane->reordering) {
      if (lane->outstanding != 0) {
        StopAwaiting(entry);
        break;
      }
      lane->reordering = false;
    }
    if (Pointless(entry)) {
      lane->queue.Remove(entry);
      Free(entry);
      worked = true;
      continue;
    }
    if (Gated(*entry) || (entry->table->moving > 0 && Draining(*entry))) {
      StopAwaiting(entry);
      break;
    }
    if (!Post(stream, entry)) break;
    worked = true;
  }
  return worked;
}

// Its step's commit is known, and no operation waits for its reply.
bool Journal::Pointless(Entry* entry) const {
  const TableState& table = *entry->table;
  if (!table.sync) return false;
  if (entry->type == RecordType::kPush) {
    return entry->operation == nullptr && table.chunk_version[entry->chunk] > entry->step;
  }
  if (entry->type == RecordType::kPushRows && entry->operation != nullptr) return false;
  Prune(entry);
  return entry->parts.empty();
}

// Invariant 4 of client_core.h.
bool Journal::Gated(const Entry& entry) const {
  const TableState& table = *entry.table;
  if (!table.sync) return false;
  if (entry.type == RecordType::kPush) return table.chunk_version[entry.chunk] < entry.step;
  return std::any_of(entry.parts.begin(), entry.parts.end(),
                     [&](uint32_t part) { return table.parts[part].committed < entry.step; });
}

bool Journal::PumpPulls(Stream* stream) {
  const uint32_t parked = std::max(stream->lane->ticket().config.operations / 2, 1u);
  const uint32_t pulls = parked > 2 * kAwaitReserve ? parked - kAwaitReserve : parked;
  bool worked = false;
  while (Entry* entry = stream->pulls.front()) {
    if (entry->type == RecordType::kAwait) {
      Prune(entry);
      if (entry->parts.empty()) {
        stream->pulls.Remove(entry);
        Free(entry);
        worked = true;
        continue;
      }
    }
    // Also a pull if none is in flight: unanswered awaits must not block it, because others may
    // wait for a step that the caller ends after its pull.
    const bool asks = entry->type == RecordType::kAwait || entry->type == RecordType::kNorms ||
                      stream->pulls_out == 0;
    const uint32_t out = stream->pulls_out + stream->awaits_out;
    if (out >= (asks ? parked + 1 : pulls) ||
        (out >= pulls && IsTiny(*stream) && planted_bugs().awaits_before_pulls)) {
      StopAwaiting(entry);
      stream->stalled = true;
      break;
    }
    if (!Post(stream, entry)) break;
    worked = true;
  }
  return worked;
}

void Journal::Prune(Entry* entry) const {
  const TableState& table = *entry->table;
  const uint64_t version = entry->type == RecordType::kAwait ? entry->min_version : entry->step + 1;
  entry->KeepGroups([&](size_t i) {
    const PartState& part = table.parts[entry->parts[i]];
    return !part.lost && part.committed < version;
  });
}

bool Journal::Post(Stream* stream, Entry* entry) {
  switch (entry->type) {
    case RecordType::kPush:
      return PostPush(stream, entry);
    case RecordType::kPull:
      return PostPull(stream, entry);
    case RecordType::kEndStep:
    case RecordType::kAwait:
      return PostGroups(stream, entry);
    case RecordType::kNorms:
      return PostNorms(stream, entry);
    case RecordType::kTotals:
      return PostTotals(stream, entry);
    case RecordType::kPushRows:
      return PostRowPush(stream, entry);
    case RecordType::kLookup:
    case RecordType::kLookupBags:
      return PostLookup(stream, entry);
    case RecordType::kIntent:
      return PostIntent(stream, entry);
    case RecordType::kScan:
      return PostScan(stream, entry);
    case RecordType::kReplicate:  // between servers
    case RecordType::kBeacon:
      break;
  }
  return false;
}

// Servers hold sync pushes in their slots until lower ranks have pushed the same, and those may
// have to wait for an earlier step first. So pushes leave room for requests that are answered at
// once, and for the oldest push that is not posted. Then the earliest step always continues,
// regardless of resources held by later steps of other tables.
rdma::WorkerLane::Reserve Journal::ReserveOf(const Stream& stream, const Entry& entry,
                                             bool oldest) {
  if (IsTiny(stream)) return {0, 0, 0};
  switch (entry.type) {
    case RecordType::kEndStep:
    case RecordType::kAwait:
    case RecordType::kNorms:
    case RecordType::kTotals:
    case RecordType::kPushRows:
      return {0, 0, 0};
    case RecordType::kPush:
      return oldest ? rdma::WorkerLane::Reserve{1, 1, 0} : rdma::WorkerLane::Reserve{2, 2, 1};
    default:
      return {2, 0, 0};
  }
}

// Whether the entry is the oldest of the pushes and end-steps that wait on this stream.
bool Journal::Oldest(const Stream& stream, const Entry& entry) {
  return std::none_of(stream.table_lanes.begin(), stream.table_lanes.end(),
                      [&](const TableLane* lane) {
                        return !lane->queue.empty() && lane->queue.front()->order < entry.order;
                      });
}

bool Journal::Fits(Stream* stream, Entry* entry, uint32_t payload_bytes) {
  const size_t groups = std::max<size_t>(entry->parts.size(), 1);
  if (stream->lane->CanPost(groups, payload_bytes, ReserveOf(*stream, *entry, false))) return true;
  if (entry->type == RecordType::kPush && Oldest(*stream, *entry) &&
      stream->lane->CanPost(groups, payload_bytes, ReserveOf(*stream, *entry, true))) {
    return true;
  }
  const rdma::LaneConfig& config = stream->lane->ticket().config;
  const uint32_t slot =
      std::max(config.small_slot_bytes, config.large_slots == 0 ? 0u : config.large_slot_bytes);
  if (PayloadOffset(static_cast<uint32_t>(groups)) + uint64_t{payload_bytes} > slot) {
    return ReopenLarger(stream, entry, payload_bytes);
  }
  StopAwaiting(entry);
  stream->stalled = true;
  return false;
}

// The record fits no slot of this lane. A server sizes slots by its known tables, so a table
// created after the lane was opened may need a new lane. If that one is too small too, the error is
// final.
bool Journal::ReopenLarger(Stream* stream, Entry* entry, uint32_t payload_bytes) {
  const rdma::LaneConfig& config = stream->lane->ticket().config;
  const size_t groups = std::max<size_t>(entry->parts.size(), 1);
  const uint32_t needed = PayloadOffset(static_cast<uint32_t>(groups)) + payload_bytes;
  if (stream->wanted_slot_bytes < needed) {
    stream->wanted_slot_bytes = needed;
    lanes_->Close(stream, absl::UnavailableError("reopened for larger slots"));
    return false;
  }
  const absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(entry->table->embedding() ? "a record of rows" : "a chunk", " of table '",
                   entry->table->name(), "' has ", payload_bytes, " bytes; ",
                   DescribeServer(*session_, *stream), " grants slots of ", config.large_slot_bytes,
                   " bytes at most: create the table with smaller chunk_bytes"));
  if (entry->operation != nullptr) {
    End(entry->operation, status);
  } else {
    Unqueue(entry);
    Free(entry);
  }
  Touch(stream);
  return false;
}

std::optional<rdma::RemoteMemory> Journal::Refer(Stream* stream, const Entry& entry,
                                                 const rdma::Segment& payload) {
  if (!stream->open() || entry.operation == nullptr) return std::nullopt;
  const std::shared_ptr<rdma::MemoryBlock>& block = entry.staging != nullptr
                                                        ? StagingOf(entry)->BlockOf(entry.staging)
                                                        : entry.operation->blocks[0];
  return stream->lane->Refer(block, payload.data, payload.bytes);
}

bool Journal::PostPush(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  PartState& part = table->parts[entry->part];
  const auto bytes = static_cast<uint32_t>(PayloadBytes(table->push_type, entry->elements));
  const bool device = entry->device != nullptr;
  const bool direct = device && entry->copy == Entry::Copy::kNone;
  if (direct ? WayOf(stream, entry) != Way::kDirect : device && entry->copy != Entry::Copy::kDone) {
    return false;
  }
  rdma::WorkerLane::Request request;
  request.payload = {entry->data, bytes, entry->block};
  if (entry->staging != nullptr) {
    request.payload.data = entry->staging;
    request.payload.block = StagingOf(*entry)->BlockOf(entry->staging).get();
  }
  request.reference = Refer(stream, *entry, request.payload);
  if (!Fits(stream, entry, request.reference ? 0 : bytes)) return false;
  if (bytes > 0 && entry->operation != nullptr) {
    // Before it takes its sequence: memory that cannot be registered affects the call, not the
    // lane. The caller's data then goes through staging, which the lane may have registered
    // already.
    absl::Status status = lanes_->memory().Register(stream, *request.payload.block);
    if (!status.ok() && !absl::IsAborted(status) && !device && entry->staging == nullptr) {
      if (!TakeStaging(stream, entry, packing_, bytes)) return false;
      std::memcpy(entry->staging, entry->data, bytes);
      request.payload.data = entry->staging;
      request.payload.block = packing_->BlockOf(entry->staging).get();
      request.reference.reset();  // it refers to the caller's memory
      if (!Fits(stream, entry, bytes)) return false;
      status = lanes_->memory().Register(stream, *request.payload.block);
    }
    if (!status.ok()) {
      NotNow(stream, entry, status);
      return false;
    }
  }
  if (!entry->numbered) {
    entry->numbered = true;
    if (table->sync) {
      ++part.pushed[entry->step & 1];
    } else {
      entry->step = part.next_sequence++;
      ++part.pushes_since_end;
    }
  }
  groups_[0] = {part.partition, entry->chunk, part.epoch, entry->step, entry->elements, 0};
  request.header.type = RecordType::kPush;
  request.header.dtype = table->push_type;
  request.groups = absl::MakeConstSpan(groups_.data(), 1);
  if (!Send(stream, entry, &request)) return false;
  if (direct) entry->device = nullptr;
  if (entry->posts == 1) {
    ++counters_.pushes;
    counters_.bytes_pushed += bytes;
    if (direct) counters_.direct_bytes += bytes;
    if (entry->staging != nullptr) counters_.staged_bytes += bytes;
    if (request.reference) counters_.referenced_bytes += bytes;
  }
  // The pull must not be early. sync: its version prevents that. async: the push's sequence does.
  // But with replicas a push is applied only when they have it, so the pull is sent after the push
  // is answered.
  if (entry->follow != nullptr && (table->sync || !part.copies)) {
    if (!table->sync) entry->follow->step = entry->step;
    EnqueuePull(std::exchange(entry->follow, nullptr), false);
  }
  return true;
}

bool Journal::PostPull(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  PartState& part = table->parts[entry->part];
  if (!Fits(stream, entry, 0)) return false;
  const uint32_t bytes = table->PullBytes(entry->elements);
  std::shared_ptr<rdma::MemoryBlock> block = entry->operation->blocks[1];
  std::byte* to = entry->data;
  Way way = Way::kStaged;
  if (entry->device != nullptr && entry->staging == nullptr) {
    way = WayOf(stream, entry);
    if (way == Way::kLater || way == Way::kEnded) return false;
  }
  const bool direct = way == Way::kDirect;
  const bool unreachable = stream->needs_staging && !block->allocated();
  absl::StatusOr<rdma::RemoteMemory> remote = absl::Status(absl::StatusCode::kCancelled, "");
  if (entry->staging == nullptr && !(entry->device != nullptr && !direct) && !unreachable &&
      !table->decodes()) {
    remote = lanes_->memory().Expose(stream, block, to, bytes);
  }
  // Also if the lane cannot expose the caller's memory now: it may have exposed staging already.
  if (!remote.ok() && !direct && !absl::IsAborted(remote.status())) {
    Staging* staging = StagingOf(*entry);
    if (entry->staging == nullptr && !HasShare(*stream, *staging, bytes)) {
      StopAwaiting(entry);  // its lane's turn comes first
      stream->stalled = true;
      return false;
    }
    if (!TakeStaging(stream, entry, staging, bytes)) return false;
    to = entry->staging;
    block = staging->BlockOf(to);
    remote = lanes_->memory().Expose(stream, block, to, bytes);
  }
  if (!remote.ok()) {
    NotNow(stream, entry, remote.status());
    return false;
  }
  groups_[0] = {part.partition, entry->chunk, part.epoch, entry->step, entry->elements, 0};
  rdma::WorkerLane::Request request;
  request.header.type = RecordType::kPull;
  request.header.dtype = table->pull_type;
  request.header.destination = remote->address + static_cast<uint64_t>(to - block->data());
  request.header.destination_key = remote->key;
  request.header.min_version = entry->min_version;
  request.groups = absl::MakeConstSpan(groups_.data(), 1);
  if (!Send(stream, entry, &request)) return false;
  if (direct) entry->device = nullptr;
  ++stream->pulls_out;
  return true;
}

bool Journal::PostGroups(Stream* stream, Entry* entry) {
  if (!Fits(stream, entry, 0)) return false;
  TableState* table = entry->table;
  const bool await = entry->type == RecordType::kAwait;
  if (!await && !table->sync && !entry->numbered) {
    entry->numbered = true;
    for (const uint32_t p : entry->parts) {
      PartState& part = table->parts[p];
      entry->sequences.push_back(part.next_sequence++);
      entry->counts.push_back(std::exchange(part.pushes_since_end, 0));
    }
  }
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    Group& group = groups_[i];
    group = {part.partition, 0, part.epoch, 0, 0, 0};
    if (await) continue;
    group.sequence = entry->numbered ? entry->sequences[i] : entry->step;
    group.count = entry->numbered ? entry->counts[i] : part.pushed[entry->step & 1];
  }
  rdma::WorkerLane::Request request;
  request.header.type = entry->type;
  request.header.dtype = ElementType::kNone;
  request.header.min_version = entry->min_version;  // end-step: 0, or the ssp clock
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  if (!Send(stream, entry, &request)) return false;
  if (await) {
    ++stream->awaits_out;
  } else if (std::exchange(entry->await_after, false)) {
    AddAwait(table, entry->step + 1, stream, entry->parts);
  }
  return true;
}

bool Journal::Send(Stream* stream, Entry* entry, rdma::WorkerLane::Request* request) {
  request->header.table = entry->table->id();
  request->cookie = entry->index;
  entry->range = BeginRange("record", request->payload.bytes);
  const absl::Status status = stream->lane->Post(*request);
  if (!status.ok()) {
    EndRange(&entry->range);
    // CanPost() was true, so either the lane is closing and its records return through
    // OnLaneDead(), or the record cannot be sent at all.
    if (status.code() == absl::StatusCode::kInvalidArgument && entry->operation != nullptr) {
      End(entry->operation, status);
      Touch(stream);
    }
    return false;
  }
  StopAwaiting(entry);
  // The entry is in a queue of this stream: Post() is called only for queued entries.
  if (IsPull(entry->type)) {
    stream->pulls.Remove(entry);
  } else if (IsNorms(*entry)) {
    stream->norms.Remove(entry);
  } else {
    TableLane* lane = entry->table->LaneOn(stream);
    lane->queue.Remove(entry);
    ++lane->outstanding;
    CountOut(*entry, 1);
  }
  if (entry->operation != nullptr && !entry->operation->not_now.ok()) {
    entry->operation->not_now = absl::OkStatus();
  }
  entry->state = Entry::State::kPosted;
  entry->posted_at = now_;
  entry->revision = session_->view().revision();
  stream->posted.PushBack(entry);
  CountLoad(*stream, *entry);
  if (++entry->posts > 1) ++counters_.resent;
  return true;
}

}  // namespace verbena::client
