// Rows of embedding tables: dividing calls into records, and the records' contents.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "shard/codec/codec.h"

namespace verbena::client {
namespace {

// One record may take this share of the staging, so that several lanes have some.
constexpr size_t kStagingShare = 8;
constexpr size_t kLeastRecord = 4096;

// Writes the keys of the record's groups and the zeros after them.
void FillKeys(const Entry& entry, std::byte* to) {
  const KeyPlan& plan = *entry.operation->plan;
  std::byte* const end = to + KeyBytes(entry.elements);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const size_t bytes = size_t{entry.counts[i]} * sizeof(uint64_t);
    std::memcpy(to, plan.keys().data() + entry.firsts[i], bytes);
    to += bytes;
  }
  std::memset(to, 0, static_cast<size_t>(end - to));
}

// Sums the call's rows of a key in their order.
void SumRows(const Entry& entry, absl::Span<const uint32_t> positions, float* sum) {
  const size_t dim = entry.table->dim;
  const size_t row_bytes = entry.table->row_bytes();
  std::memcpy(sum, entry.data + positions[0] * row_bytes, row_bytes);
  for (const uint32_t position : positions.subspan(1)) {
    const auto* row = reinterpret_cast<const float*>(entry.data + position * row_bytes);
    for (size_t d = 0; d < dim; ++d) sum[d] += row[d];
  }
}

// Writes the rows of its keys. With a codec they are encoded each time the record is sent: the same
// numbers give the same bytes.
void FillRows(const Entry& entry, std::byte* to) {
  const TableState& table = *entry.table;
  const KeyPlan& plan = *entry.operation->plan;
  const bool encodes = table.push_type != ElementType::kF32;
  const size_t bytes = table.PushedRowBytes();
  float sum[kMaxRowElements];
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      SumRows(entry, plan.positions(k), encodes ? sum : reinterpret_cast<float*>(to));
      if (encodes) codec::EncodeRow(shard::BestIsa(), table.push_type, sum, to, table.dim);
      to += bytes;
    }
  }
}

uint32_t CountKeys(const Entry& entry) {
  uint32_t keys = 0;
  for (const uint32_t count : entry.counts) keys += count;
  return keys;
}

}  // namespace

// ---- starting -----------------------------------------------------------------------------------

absl::Status Journal::CheckRowsLost(const TableState& table,
                                    absl::Span<const KeyPlan::Range> ranges) const {
  for (const KeyPlan::Range& range : ranges) {
    if (!table.parts[range.partition].lost) continue;
    return DataLossStatus(*session_, table, range.partition);
  }
  return absl::OkStatus();
}

// Keys and rows (as f32) together take at most the size of a chunk, for which a lane's large slots
// are sized. A single larger row still fits, because servers leave room for more than its key.
uint64_t Journal::BytesInRecord(const TableState& table, const Staging& staging) {
  const uint64_t chunk = table.info.spec().chunk_bytes();
  return std::min<uint64_t>(
      {chunk, std::max(staging.limit() / kStagingShare, kLeastRecord), kMaxRowsBytes});
}

uint32_t Journal::RowsInRecord(const TableState& table, const Staging& staging) {
  const uint64_t limit = BytesInRecord(table, staging);
  uint64_t rows = limit / (sizeof(uint64_t) + table.row_bytes());
  while (rows > 1 && KeyBytes(rows) + rows * table.row_bytes() > limit) --rows;
  return static_cast<uint32_t>(std::max<uint64_t>(rows, 1));
}

// One half is for the keys and their BagUses, the other half for the sums.
uint32_t Journal::BagKeysInRecord(const TableState& table, const Staging& staging) {
  const uint64_t bytes = BytesInRecord(table, staging) / 2 - kRecordAlignment;
  return static_cast<uint32_t>(std::max<uint64_t>(bytes / (sizeof(uint64_t) + sizeof(BagUse)), 1));
}

BagCall::Limits Journal::BagLimits(const TableState& table) const {
  const uint64_t bags = BytesInRecord(table, *staging_) / 2 / table.row_bytes();
  // The minimum number of records, by lanes or by groups. Keys spread over them, but not evenly, so
  // each record is planned to be three quarters full.
  const uint64_t records =
      std::max<uint64_t>(table.lanes.size(), (table.partitions + kMaxGroups - 1) / kMaxGroups);
  return {static_cast<uint32_t>(std::max<uint64_t>(bags, 1)),
          std::max<uint64_t>(BagKeysInRecord(table, *staging_) * records * 3 / 4, 1)};
}

Entry* Journal::NewRows(const Cutting& call) {
  Operation* operation = call.operation;
  const bool push = call.type == RecordType::kPushRows;
  Entry* entry = NewEntry(call.type, operation->table, operation);
  if (call.type == RecordType::kIntent) return entry;
  entry->step = push && operation->table->sync ? operation->step : 0;
  entry->min_version = call.min_version;
  entry->block = operation->blocks[push ? 0 : 1].get();
  entry->data = entry->block->data() + call.offset;
  entry->holds_buffer = true;
  ++operation->buffers;
  return entry;
}

void Journal::EnqueueFilled(TableLane* lane) {
  Entry* entry = std::exchange(lane->filling, nullptr);
  if (entry->type == RecordType::kPushRows) return EnqueueOn(lane, entry);
  EnqueuePullOn(lane->stream, entry, false);
}

void Journal::Cut(const Cutting& call, absl::Span<const KeyPlan::Range> ranges) {
  TableState* table = call.operation->table;
  for (const KeyPlan::Range& range : ranges) {
    TableLane* lane = table->parts[range.partition].lane;
    uint32_t first = range.first;
    for (uint32_t left = range.count; left > 0;) {
      if (lane->filling == nullptr) lane->filling = NewRows(call);
      Entry* entry = lane->filling;
      const uint32_t count = std::min(left, call.most - entry->elements);
      entry->parts.push_back(range.partition);
      entry->counts.push_back(count);
      entry->firsts.push_back(first);
      entry->elements += count;
      first += count;
      left -= count;
      if (entry->elements == call.most || entry->parts.size() == kMaxGroups) EnqueueFilled(lane);
    }
  }
  for (const auto& lane : table->lanes) {
    if (lane->filling != nullptr) EnqueueFilled(lane.get());
  }
}

void Journal::AddRowPushes(Operation* operation, size_t offset) {
  const uint32_t most = RowsInRecord(*operation->table, *packing_);
  Cut({operation, RecordType::kPushRows, offset, 0, most}, operation->plan->ranges());
}

void Journal::AddLookups(Operation* operation, size_t offset, uint64_t min_version) {
  const uint32_t most = RowsInRecord(*operation->table, *staging_);
  Cut({operation, RecordType::kLookup, offset, min_version, most}, operation->plan->ranges());
}

// A record has keys of one block only.
void Journal::AddBagLookups(Operation* operation, uint64_t min_version) {
  const uint32_t most = BagKeysInRecord(*operation->table, *staging_);
  for (size_t i = 0; i < operation->bags->blocks(); ++i) {
    Cut({operation, RecordType::kLookupBags, 0, min_version, most}, operation->bags->block(i));
  }
}

void Journal::AddIntents(Operation* operation) {
  const uint64_t bytes = BytesInRecord(*operation->table, *packing_);
  const auto most = static_cast<uint32_t>(bytes / sizeof(uint64_t));
  Cut({operation, RecordType::kIntent, 0, 0, most}, operation->plan->ranges());
}

void Journal::WaitForRows(Operation* operation, uint64_t version) {
  for (const KeyPlan::Range& range : operation->plan->ranges()) {
    PartState& part = operation->table->parts[range.partition];
    if (part.committed >= version) continue;
    part.waiters.push_back({{operation, operation->generation}, version});
    ++operation->commits;
  }
}

void Journal::AddScan(Operation* operation, uint32_t part, uint64_t cursor) {
  Entry* entry = NewEntry(RecordType::kScan, operation->table, operation);
  entry->part = part;
  entry->step = cursor;
  entry->elements = RowsInRecord(*operation->table, *staging_);
  EnqueuePull(entry, false);
}

// ---- posting ------------------------------------------------------------------------------------

void Journal::NumberRows(Entry* entry) const {
  if (std::exchange(entry->numbered, true)) return;
  TableState* table = entry->table;
  for (const uint32_t p : entry->parts) {
    PartState& part = table->parts[p];
    if (table->sync) {
      entry->sequences.push_back(part.pushed[entry->step & 1]++);
    } else {
      entry->sequences.push_back(part.next_sequence++);
      ++part.pushes_since_end;
    }
  }
}

bool Journal::PostRowPush(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  const bool empty = entry->operation == nullptr;  // its buffer was released
  entry->elements = empty ? 0 : CountKeys(*entry);
  const uint64_t keys = KeyBytes(entry->elements);
  const uint64_t bytes = keys + entry->elements * table->PushedRowBytes();
  if (!Fits(stream, entry, static_cast<uint32_t>(bytes))) return false;
  rdma::WorkerLane::Request request;
  if (!empty) {
    if (!TakeStaging(stream, entry, packing_, bytes)) return false;
    const auto& block = packing_->BlockOf(entry->staging);
    // Before it takes its sequences: memory that cannot be registered affects the call, not the
    // lane.
    if (absl::Status s = lanes_->memory().Register(stream, *block); !s.ok()) {
      NotNow(stream, entry, s);
      return false;
    }
    FillKeys(*entry, entry->staging);
    FillRows(*entry, entry->staging + keys);
    request.payload = {entry->staging, static_cast<uint32_t>(bytes), block.get()};
  }
  NumberRows(entry);
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    const uint64_t number = entry->sequences[i];
    groups_[i] = {part.partition,
                  table->sync ? static_cast<uint32_t>(number) : 0,
                  part.epoch,
                  table->sync ? entry->step : number,
                  empty ? 0 : entry->counts[i],
                  0};
  }
  request.header.type = RecordType::kPushRows;
  request.header.dtype = table->push_type;
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  if (!Send(stream, entry, &request)) return false;
  if (entry->posts == 1) {
    ++counters_.pushes;
    counters_.bytes_pushed += bytes;
  }
  return true;
}

bool Journal::PostLookup(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  entry->elements = CountKeys(*entry);
  BagCall* const bags = entry->operation->bags.get();  // null: for rows
  const uint32_t keys = entry->elements;
  const auto bytes =
      static_cast<uint32_t>(bags == nullptr ? keys * sizeof(uint64_t) : BagPayloadBytes(keys));
  const uint64_t answer_at = bags == nullptr ? KeyBytes(keys) : BagCall::SumsAt(keys);
  const uint64_t answer =
      bags == nullptr ? keys * table->PulledRowBytes() : bags->MostBags(keys) * table->row_bytes();
  if (!Fits(stream, entry, bytes)) return false;
  if (!TakeStaging(stream, entry, staging_, answer_at + answer)) return false;
  const std::shared_ptr<rdma::MemoryBlock> block = staging_->BlockOf(entry->staging);
  auto remote = lanes_->memory().Expose(stream, block);
  if (absl::Status s = remote.ok() ? lanes_->memory().Register(stream, *block) : remote.status();
      !s.ok()) {
    NotNow(stream, entry, s);
    return false;
  }
  if (bags == nullptr) {
    FillKeys(*entry, entry->staging);
  } else {
    entry->chunk = bags->Pack(entry->firsts, entry->counts, entry->staging);
  }
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    groups_[i] = {part.partition, 0, part.epoch, 0, entry->counts[i], 0};
  }
  rdma::WorkerLane::Request request;
  request.header.type = entry->type;
  request.header.bags = entry->chunk;
  request.header.dtype = bags == nullptr ? table->pull_type : ElementType::kF32;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data()) + answer_at;
  request.header.destination_key = remote->key;
  request.header.min_version = entry->min_version;
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  request.payload = {entry->staging, bytes, block.get()};
  if (!Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

bool Journal::PostIntent(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  entry->elements = CountKeys(*entry);
  const uint64_t bytes = uint64_t{entry->elements} * sizeof(uint64_t);
  if (!Fits(stream, entry, static_cast<uint32_t>(bytes))) return false;
  if (!TakeStaging(stream, entry, packing_, KeyBytes(entry->elements))) return false;
  const std::shared_ptr<rdma::MemoryBlock> block = packing_->BlockOf(entry->staging);
  if (absl::Status s = lanes_->memory().Register(stream, *block); !s.ok()) {
    NotNow(stream, entry, s);
    return false;
  }
  FillKeys(*entry, entry->staging);
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    groups_[i] = {part.partition, 0, part.epoch, 0, entry->counts[i], 0};
  }
  rdma::WorkerLane::Request request;
  request.header.type = RecordType::kIntent;
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  request.payload = {entry->staging, static_cast<uint32_t>(bytes), block.get()};
  if (!Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

bool Journal::PostScan(Stream* stream, Entry* entry) {
  TableState* table = entry->table;
  if (!Fits(stream, entry, 0)) return false;
  const uint64_t bytes = KeyBytes(entry->elements) + entry->elements * table->row_bytes();
  if (!TakeStaging(stream, entry, staging_, bytes)) return false;
  const std::shared_ptr<rdma::MemoryBlock> block = staging_->BlockOf(entry->staging);
  const auto remote = lanes_->memory().Expose(stream, block);
  if (!remote.ok()) {
    NotNow(stream, entry, remote.status());
    return false;
  }
  const PartState& part = table->parts[entry->part];
  groups_[0] = {part.partition, 0, part.epoch, entry->step, entry->elements, 0};
  rdma::WorkerLane::Request request;
  request.header.type = RecordType::kScan;
  request.header.dtype = ElementType::kF32;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data());
  request.header.destination_key = remote->key;
  request.groups = absl::MakeConstSpan(groups_.data(), 1);
  if (!Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

}  // namespace verbena::client
