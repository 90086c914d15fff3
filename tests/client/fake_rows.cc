// The fake cluster's embedding tables.
#include <algorithm>
#include <cstring>

#include "proto/wire/record_check.h"
#include "proto/wire/routing.h"
#include "shard/codec/codec.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {

std::optional<ReplyStatus> FakeServer::RefuseGroup(const Held& held, const Group& group) const {
  return refuse_group ? refuse_group(SeenOf(held, group, 0)) : std::nullopt;
}

ReplyStatus FakeServer::ApplyRows(const Record& record, size_t group, const uint64_t* keys,
                                  const float* gradients, uint64_t* version) {
  const Group& g = record.groups[group];
  const uint32_t table = record.header.table;
  if (!Mine(g)) return ReplyStatus::kWrongEpoch;
  if (table % 2 == 1) {
    uint64_t& last = last_[{table, g.partition}];
    if (g.sequence <= last) return ReplyStatus::kDuplicate;
    if (g.sequence > last + 1) return ReplyStatus::kSequenceGap;
    last = g.sequence;
  } else {
    const uint64_t committed = CommittedOf(table, g.partition);
    *version = std::min(*version, committed);
    if (g.sequence < committed) return ReplyStatus::kDuplicate;
    if (g.sequence > committed) return ReplyStatus::kWrongStep;
    if (!indices_[{table, g.partition, g.sequence}].insert(g.index).second) {
      return ReplyStatus::kDuplicate;
    }
  }
  const uint32_t dim = dims[table];
  for (uint32_t k = 0; k < g.count; ++k) {
    std::vector<float>& row = rows[table][keys[k]];
    if (row.empty()) {
      row.resize(dim);
      made_[{table, g.partition}].push_back(keys[k]);
    }
    const float* gradient = gradients + size_t{k} * dim;
    for (uint32_t d = 0; d < dim; ++d) row[d] += gradient[d];
    if (table % 2 == 0) {
      open_[{table, g.partition}].rows.push_back({keys[k], {gradient, gradient + dim}});
    }
  }
  return ReplyStatus::kOk;
}

bool FakeServer::HandleRows(Held* held) {
  if (hold_pushes) return false;
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  rdma::ShardLane* lane = lanes_[held->lane].get();
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  std::vector<uint64_t> keys;
  if (!CopyKeys(record, held->payload, &keys).ok()) {
    answer.status = ReplyStatus::kMalformed;
    lane->SendReply(answer);
    return true;
  }
  const uint32_t dim = dims[h.table];
  const size_t row_bytes = RowBytes(h.dtype, dim);
  std::vector<float> gradients(keys.size() * dim);
  if (!keys.empty() && held->payload.size() == KeyBytes(keys.size()) + keys.size() * row_bytes) {
    const std::byte* from = held->payload.data() + KeyBytes(keys.size());
    for (size_t i = 0; i < keys.size(); ++i, from += row_bytes) {
      codec::DecodeRow(shard::Isa::kBaseline, h.dtype, from, gradients.data() + i * dim, dim);
    }
  } else if (!keys.empty()) {
    answer.status = ReplyStatus::kOutOfRange;
    lane->SendReply(answer);
    return true;
  }
  answer.version = UINT64_MAX;
  answer.detail = reply_detail;
  std::vector<ReplyStatus> statuses;
  size_t first = 0;
  for (size_t i = 0; i < h.group_count; ++i) {
    const Group& g = record.groups[i];
    const std::optional<ReplyStatus> refused = RefuseGroup(*held, g);
    const bool without_effect =
        refused == ReplyStatus::kNonFinite || refused == ReplyStatus::kMemoryLimit ||
        refused == ReplyStatus::kJobMemoryLimit || refused == ReplyStatus::kCopyMemoryLimit;
    // Its worker settles it with an empty one, which nothing refuses.
    const bool settles = without_effect && g.count == 0;
    statuses.push_back(refused.has_value() && !settles
                           ? *refused
                           : ApplyRows(record, i, keys.data() + first,
                                       gradients.data() + first * dims[h.table], &answer.version));
    if (statuses.back() != ReplyStatus::kOk && answer.status == ReplyStatus::kOk) {
      answer.status = statuses.back();
    }
    first += g.count;
  }
  if (answer.version == UINT64_MAX) answer.version = 0;
  answer.group_status = statuses;
  lane->SendReply(answer);
  return true;
}

// A key that was not pushed has a row of -1.
const float* FakeServer::RowOf(uint32_t table, uint64_t key) {
  static const std::vector<float> initial(kMaxRowElements, -1.0f);
  const auto it = rows[table].find(key);
  return it == rows[table].end() ? initial.data() : it->second.data();
}

bool FakeServer::HandleLookup(Held* held) {
  const RecordHeader& h = held->arrival.record.header;
  uint64_t version = 0;
  if (!AtVersion(held, &version)) return false;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  answer.version = version;
  std::vector<uint64_t> keys;
  if (!CopyKeys(held->arrival.record, held->payload, &keys).ok()) {
    answer.status = ReplyStatus::kMalformed;
    lanes_[held->lane]->SendReply(answer);
    return true;
  }
  const uint32_t dim = dims[h.table];
  const size_t row_bytes = RowBytes(h.dtype, dim);
  auto block = *rdma::MemoryBlock::Allocate(keys.size() * row_bytes, "out");
  for (size_t i = 0; i < keys.size(); ++i) {
    codec::EncodeRow(shard::Isa::kBaseline, h.dtype, RowOf(h.table, keys[i]),
                     block->data() + i * row_bytes, dim);
  }
  Write(held, block, answer);
  return true;
}

bool FakeServer::HandlePrefetch(Held* held) {
  const Record& record = held->arrival.record;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  std::vector<uint64_t> keys;
  if (!CopyKeys(record, held->payload, &keys).ok()) answer.status = ReplyStatus::kMalformed;
  std::vector<ReplyStatus> statuses;
  for (const Group& g : record.group_span()) {
    const std::optional<ReplyStatus> refused = RefuseGroup(*held, g);
    statuses.push_back(refused.value_or(ReplyStatus::kOk));
    if (refused.has_value()) answer.status = *refused;
  }
  answer.group_status = statuses;
  lanes_[held->lane]->SendReply(answer);
  return true;
}

bool FakeServer::HandleBags(Held* held) {
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  uint64_t version = 0;
  if (!AtVersion(held, &version)) return false;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  answer.version = version;
  std::vector<uint64_t> keys;
  std::vector<BagUse> uses;
  if (!CopyKeys(record, held->payload, &keys).ok() ||
      !CopyBagUses(record, held->payload, &uses).ok()) {
    answer.status = ReplyStatus::kMalformed;
    lanes_[held->lane]->SendReply(answer);
    return true;
  }
  const uint32_t dim = dims[h.table];
  auto block = *rdma::MemoryBlock::Allocate(size_t{h.bags} * dim * sizeof(float), "out");
  auto* to = reinterpret_cast<float*>(block->data());
  for (size_t i = 0; i < keys.size(); ++i) {
    const float* row = RowOf(h.table, keys[i]);
    for (uint32_t d = 0; d < dim; ++d) to[uses[i].bag * dim + d] += uses[i].weight * row[d];
  }
  Write(held, block, answer);
  return true;
}

bool FakeServer::HandleScan(Held* held) {
  const RecordHeader& h = held->arrival.record.header;
  const Group& g = held->arrival.record.groups[0];
  const std::vector<uint64_t>& made = made_[{h.table, g.partition}];
  const uint64_t first = std::min<uint64_t>(g.sequence, made.size());
  // Few at a time: a server may have reasons to.
  const uint64_t count = std::min<uint64_t>({g.count, made.size() - first, 5});
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  answer.detail = static_cast<uint32_t>(count);
  answer.version = first + count;
  if (count == 0) {
    lanes_[held->lane]->SendReply(answer);
    return true;
  }
  const size_t row_bytes = dims[h.table] * sizeof(float);
  auto block = *rdma::MemoryBlock::Allocate(KeyBytes(count) + count * row_bytes, "out");
  std::memcpy(block->data(), made.data() + first, count * sizeof(uint64_t));
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(block->data() + KeyBytes(count) + i * row_bytes,
                rows[h.table][made[first + i]].data(), row_bytes);
  }
  Write(held, block, answer);
  return true;
}

uint32_t FakeCluster::AddEmbedding(v1::Consistency consistency, uint32_t dim, uint32_t chunk_bytes,
                                   const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_dim(dim);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(chunk_bytes);
  return AddRows(spec);
}

uint32_t FakeCluster::AddRows(v1::TableSpec spec) {
  if (spec.name().empty()) spec.set_name("items");
  const uint32_t id = Add(spec);
  for (const auto& server : servers) server->dims[id] = spec.dim();
  return id;
}

FakeCluster::CallPtr FakeCluster::PushRows(uint32_t table, const std::vector<uint64_t>& keys,
                                           client::ClientCore::Rows gradients, int64_t timeout_ns) {
  return Track(
      [&](auto done) { return core->PushRows(table, keys, gradients, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::Lookup(uint32_t table, const std::vector<uint64_t>& keys,
                                         client::ClientCore::Rows rows,
                                         std::optional<uint64_t> min_version, int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->Lookup(table, keys, rows, min_version, now() + timeout_ns, done);
  });
}

FakeCluster::CallPtr FakeCluster::LookupBags(uint32_t table, const client::BagKeys& bags,
                                             client::ClientCore::Rows sums,
                                             std::optional<uint64_t> min_version,
                                             int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->LookupBags(table, bags, sums, min_version, now() + timeout_ns, done);
  });
}

FakeCluster::CallPtr FakeCluster::Prefetch(uint32_t table, const std::vector<uint64_t>& keys,
                                           int64_t timeout_ns) {
  return Track([&](auto done) { return core->Prefetch(table, keys, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::Scan(uint32_t table, uint32_t partition, uint64_t cursor,
                                       std::shared_ptr<client::ScanResult> result,
                                       int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->Scan(table, partition, cursor, result, now() + timeout_ns, done);
  });
}

client::ClientCore::Rows FakeCluster::RowMemory(size_t rows, uint32_t dim, float value) {
  auto block = *rdma::MemoryBlock::Allocate(rows * dim * sizeof(float), "test-rows");
  std::fill_n(reinterpret_cast<float*>(block->data()), rows * dim, value);
  return {block, 0};
}

}  // namespace verbena::test
