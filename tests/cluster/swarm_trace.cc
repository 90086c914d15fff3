#include "tests/cluster/swarm_trace.h"

#include <algorithm>

#include "proto/control/planned_moves.h"
#include "proto/wire/routing.h"

namespace verbena::test {
namespace {

bool Has(const v1::ClusterView& view, uint64_t server) {
  return std::any_of(view.servers().begin(), view.servers().end(),
                     [server](const v1::Server& s) { return s.incarnation() == server; });
}

TraceConfiguration Of(const v1::Partition& p, const v1::ClusterView& view) {
  TraceConfiguration c;
  c.epoch = p.epoch();
  c.number = p.configuration();
  c.primary = p.primary();
  c.moves = PrimaryLeaves(p, view);
  c.follower = !p.followers().empty();
  const auto& copies = c.follower ? p.followers() : p.learners();
  if (copies.empty()) return c;
  c.copy = copies[0].server();
  c.since = copies[0].since();
  return c;
}

}  // namespace

void SwarmTrace::FollowView() {
  const v1::ClusterView& view = world_->cluster->view();
  if (view.revision() == revision_) return;
  revision_ = view.revision();
  for (const v1::Partition& p : view.partitions()) {
    const bool first = before_.partitions().empty();
    const v1::Partition* was = first ? nullptr : &before_.partitions(static_cast<int>(p.id()));
    if (p.primary() == 0 || (was != nullptr && was->configuration() == p.configuration())) continue;
    TraceEvent event;
    event.configuration = Of(p, view);
    event.term = view.term();
    // Without tables all partitions are placed anew. One whose sole replica is gone is lost.
    const bool empty = was == nullptr || was->primary() == 0 || before_.tables().empty();
    const bool lost = !empty && was->followers().empty() && !Has(view, was->primary());
    event.kind = empty || lost ? TraceEvent::Kind::kPlaced : TraceEvent::Kind::kSaved;
    if (empty) placed_in_[p.id()] = p.epoch();
    // From then on the model has no such partition. Between two looks a move may have made one.
    const bool missed = was != nullptr && p.configuration() > was->configuration() + 1 &&
                        world_->has(SwarmFeature::kMigrations);
    if (p.followers_size() + p.learners_size() > 1 || missed) crowded_.insert(p.id());
    Add(p.id(), event);
  }
  before_ = view;
}

void SwarmTrace::Observe(const shard::Commit& commit) {
  const auto table = world_->tables.find(commit.table);
  if (table == world_->tables.end()) return;
  // A commit of an embedding table names the partition.
  const uint32_t partition = table->second.embedding()
                                 ? commit.chunk
                                 : PartitionOfChunk(commit.table, commit.chunk, kSimPartitions);
  TraceEvent event;
  event.kind = TraceEvent::Kind::kChange;
  event.server = commit.server;
  event.epoch = commit.epoch;
  std::vector<TraceEvent>& trace = (*traces_)[partition];
  // Many pushes in a row are one change.
  if (!trace.empty() && trace.back().kind == event.kind && trace.back().epoch == event.epoch &&
      trace.back().server == event.server) {
    return;
  }
  Add(partition, event);
}

void SwarmTrace::Add(uint32_t partition, const TraceEvent& event) {
  if (!crowded_.contains(partition)) (*traces_)[partition].push_back(event);
}

std::vector<SwarmTrace::Reader> SwarmTrace::ReadersOf(uint32_t partition) const {
  std::vector<Reader> readers;
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    SimServer* const server = world_->cluster->server(i);
    if (server == nullptr || server->incarnation() == 0) continue;
    for (uint32_t s = 0; s < server->shards(); ++s) {
      const uint64_t epoch = server->ReadsInEpoch(s, partition);
      if (epoch == 0) continue;
      // Placed anew without tables, it has nothing that could be read by an earlier lease.
      const auto placed = placed_in_.find(partition);
      if (placed != placed_in_.end() && epoch < placed->second) continue;
      readers.push_back({server->incarnation(), epoch});
    }
  }
  return readers;
}

void SwarmTrace::LookAtLeases() {
  for (uint32_t p = 0; p < kSimPartitions; ++p) {
    const std::vector<Reader> now = ReadersOf(p);
    std::vector<Reader>& before = readers_[p];
    for (const Reader& reader : before) {
      if (std::find(now.begin(), now.end(), reader) != now.end()) continue;
      Add(p, {TraceEvent::Kind::kEnds, {}, 0, reader.server, reader.epoch});
    }
    for (const Reader& reader : now) {
      if (std::find(before.begin(), before.end(), reader) != before.end()) continue;
      Add(p, {TraceEvent::Kind::kReads, {}, 0, reader.server, reader.epoch});
    }
    before = now;
  }
}

}  // namespace verbena::test
