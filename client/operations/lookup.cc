#include "client/operations/lookup.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/errors.h"
#include "client/core/request_tracker.h"
#include "proto/wire/bags.h"
#include "shard/codec/codec.h"

namespace verbena::client {
namespace {

// Copies rows from staging, decoded, to every position of their key in the call.
void CopyRows(const PendingRequest& entry) {
  const TableState& table = *entry.table;
  const KeyPlan& plan = *entry.operation->plan;
  const size_t row_bytes = table.row_bytes(), bytes = table.PulledRowBytes();
  const std::byte* from = entry.staging + KeyBytes(entry.elements);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      const absl::Span<const uint32_t> positions = plan.positions(k);
      std::byte* const first = entry.data + positions[0] * row_bytes;
      if (table.pull_type == ElementType::kF32) {
        std::memcpy(first, from, row_bytes);
      } else {
        codec::DecodeRow(shard::BestIsa(), table.pull_type, from, reinterpret_cast<float*>(first),
                         table.dim);
      }
      for (const uint32_t position : positions.subspan(1)) {
        std::memcpy(entry.data + position * row_bytes, first, row_bytes);
      }
      from += bytes;
    }
  }
}

}  // namespace

void LookupRequests::Add(Operation* operation, size_t offset, uint64_t min_version) {
  const uint32_t most = RowsInRecord(*operation->table, *tracker_.staging.received());
  Cut({operation, offset, min_version, most}, operation->plan->ranges());
}

BagCall::Limits LookupRequests::BagLimits(const TableState& table) const {
  const uint64_t bags = BytesInRecord(table, *tracker_.staging.received()) / 2 / table.row_bytes();
  // The minimum number of records, by lanes or by groups. Keys spread over them, but not evenly, so
  // each record is planned to be three quarters full.
  const uint64_t records =
      std::max<uint64_t>(table.lanes.size(), (table.partitions + kMaxGroups - 1) / kMaxGroups);
  return {static_cast<uint32_t>(std::max<uint64_t>(bags, 1)),
          std::max<uint64_t>(BagKeysInRecord(table, *tracker_.staging.received()) * records * 3 / 4,
                             1)};
}

// A record has keys of one block only.
void LookupRequests::AddBags(Operation* operation, uint64_t min_version) {
  const uint32_t most = BagKeysInRecord(*operation->table, *tracker_.staging.received());
  for (size_t i = 0; i < operation->bags->blocks(); ++i) {
    Cut({operation, 0, min_version, most}, operation->bags->block(i));
  }
}

bool LookupRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  entry->elements = CountKeys(*entry);
  BagCall* const bags = entry->operation->bags.get();  // null: for rows
  const uint32_t keys = entry->elements;
  const auto bytes =
      static_cast<uint32_t>(bags == nullptr ? keys * sizeof(uint64_t) : BagPayloadBytes(keys));
  const uint64_t answer_at = bags == nullptr ? KeyBytes(keys) : BagCall::SumsAt(keys);
  const uint64_t answer =
      bags == nullptr ? keys * table->PulledRowBytes() : bags->MostBags(keys) * table->row_bytes();
  if (!tracker_.poster.Fits(stream, entry, bytes)) return false;
  if (!tracker_.staging.TakeStaging(stream, entry, tracker_.staging.received(), answer_at + answer))
    return false;
  const std::shared_ptr<rdma::MemoryBlock> block =
      tracker_.staging.received()->BlockOf(entry->staging);
  auto remote = tracker_.lanes->memory().Expose(stream, block);
  if (absl::Status s =
          remote.ok() ? tracker_.lanes->memory().Register(stream, *block) : remote.status();
      !s.ok()) {
    tracker_.staging.NotNow(stream, entry, s);
    return false;
  }
  if (bags == nullptr) {
    FillKeys(*entry, entry->staging);
  } else {
    entry->bags = bags->Pack(entry->firsts, entry->counts, entry->staging);
  }
  FillGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.bags = entry->bags;
  request.header.dtype = bags == nullptr ? table->pull_type : ElementType::kF32;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data()) + answer_at;
  request.header.destination_key = remote->key;
  request.header.min_version = entry->min_version;
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), entry->parts.size());
  request.payload = {entry->staging, bytes, block.get()};
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

void LookupRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  const bool live = entry->operation != nullptr && entry->operation->live;
  uint32_t part = 0;
  const ReplyStatus worst = Settlement::WorstOf(*entry, reply, &part);
  if (Settlement::Accepted(worst)) {
    ++tracker_.counters.pulls;
    tracker_.turn_bytes += entry->elements * table->row_bytes();
    const bool bags = entry->bags > 0;
    tracker_.counters.bytes_pulled +=
        bags ? entry->bags * table->row_bytes() : entry->elements * table->PulledRowBytes();
    if (live && bags) {
      const std::byte* sums = entry->staging + BagCall::SumsAt(entry->elements);
      entry->operation->bags->Add(entry->firsts, entry->counts,
                                  reinterpret_cast<const float*>(sums), table->dim);
    } else if (live) {
      CopyRows(*entry);
    }
    if (table->sync) {
      for (const uint32_t p : entry->parts) tracker_.commits.LearnPart(table, p, reply.version);
    }
    if (table->ssp) {
      table->seen = std::max(table->seen, reply.version);
      ++tracker_.counters.staleness[std::min(reply.detail, kStalenessBuckets - 1)];
    }
    return tracker_.settlement.Settled(entry);
  }
  if (!live) return tracker_.settlement.Settled(entry);
  tracker_.staging.GiveStaging(entry);
  if (Settlement::Retryable(worst)) return tracker_.settlement.RetryPull(stream, entry, worst);
  if (tracker_.settlement.OnFatal(entry, part, worst)) return tracker_.settlement.Settled(entry);
  tracker_.settlement.Refuse(entry, worst);
}

uint64_t LookupRequests::BytesOf(const PendingRequest& entry) const {
  if (entry.bags == 0) return entry.table->PulledRowBytes();
  // A partition's share of the reply is proportional to its keys.
  return sizeof(uint64_t) + sizeof(BagUse) + entry.bags * entry.table->row_bytes() / entry.elements;
}

}  // namespace verbena::client
