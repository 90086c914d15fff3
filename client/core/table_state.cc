#include "client/core/table_state.h"

#include <algorithm>

#include "proto/spec/optimizer_spec.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {

void TableState::Init(const v1::Table& table, uint32_t cluster_partitions) {
  info = table;
  layout = LayoutOf(table.spec());
  push_type = PushType(table.spec());
  parameter_type = ParameterType(table.spec());
  pull_type = PullType(table.spec());
  sync = table.spec().consistency() == v1::CONSISTENCY_SYNC;
  ssp = table.spec().consistency() == v1::CONSISTENCY_SSP;
  clipped = sync && table.spec().optimizer().clip_global_norm() > 0;
  trust = sync && NeedsTrustRatio(table.spec().optimizer());
  partitions = cluster_partitions;
  dim = table.spec().dim();
  chunk_version.assign(sync ? chunks() : 0, 0);
  chunk_pushed.assign(sync ? chunks() : 0, 0);
  chunk_posted.assign(sync ? chunks() : 0, {0, 0});
  kept.resize(sync ? chunks() : 0);
  parts.resize(std::min(chunks(), partitions));
  for (uint32_t p = 0; p < parts.size(); ++p) {
    parts[p].partition = embedding() ? p : PartitionOfChunk(id(), p, partitions);
    parts[p].behind = (chunks() - p + partitions - 1) / partitions;
  }
  behind = static_cast<uint32_t>(parts.size());
}

uint64_t TableState::PartBytes(uint32_t part) const {
  if (embedding()) return 0;
  uint64_t bytes = 0;
  for (uint32_t c = part; c < chunks(); c += partitions) {
    bytes += uint64_t{layout.elements_of(c)} * layout.parameter_bytes;
  }
  return bytes;
}

TableLane* TableState::LaneOn(Stream* stream) {
  for (const auto& lane : lanes) {
    if (lane->stream == stream) return lane.get();
  }
  auto lane = std::make_unique<TableLane>();
  lane->table = this;
  lane->stream = stream;
  lanes.push_back(std::move(lane));
  return lanes.back().get();
}

bool TableState::LearnChunk(uint32_t chunk, uint64_t version) {
  if (version <= chunk_version[chunk]) return false;
  PartState& part = parts[PartOf(chunk)];
  const bool was_least = chunk_version[chunk] == part.committed;
  chunk_version[chunk] = version;
  if (!was_least || --part.behind > 0) return false;
  uint64_t least = version;
  for (uint32_t c = PartOf(chunk); c < chunks(); c += partitions) {
    least = std::min(least, chunk_version[c]);
  }
  RaisePart(&part, least);
  return true;
}

bool TableState::LearnPart(uint32_t index, uint64_t version) {
  PartState& part = parts[index];
  if (version <= part.committed) return false;
  for (uint32_t c = index; c < chunks(); c += partitions) {
    chunk_version[c] = std::max(chunk_version[c], version);
  }
  uint64_t least = chunk_version[index];
  for (uint32_t c = index; c < chunks(); c += partitions) {
    least = std::min(least, chunk_version[c]);
  }
  RaisePart(&part, least);
  return true;
}

uint32_t TableState::PushesCommitted(uint32_t part, uint64_t open_step) const {
  uint32_t pushes = 0;
  for (uint32_t c = part; c < chunks(); c += partitions) {
    pushes +=
        chunk_version[c] > open_step && chunk_posted[c][open_step & 1] == open_step + 1 ? 1 : 0;
  }
  return pushes;
}

void TableState::RaisePart(PartState* part, uint64_t version) {
  const uint64_t before = part->committed;
  // Invariant 2: counters of ended steps restart.
  for (uint64_t s = before; s < version && s < before + 2; ++s) part->pushed[s & 1] = 0;
  part->committed = version;
  part->behind = 0;
  const uint32_t index = static_cast<uint32_t>(part - parts.data());
  for (uint32_t c = index; c < chunks(); c += partitions) {
    if (chunk_version[c] == version) ++part->behind;
  }
  if (before != committed || --behind > 0) return;
  uint64_t least = version;
  for (const PartState& p : parts) least = std::min(least, p.committed);
  committed = least;
  for (const PartState& p : parts) {
    if (p.committed == least) ++behind;
  }
}

}  // namespace verbena::client
