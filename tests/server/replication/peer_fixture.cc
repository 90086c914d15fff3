#include "tests/server/replication/peer_fixture.h"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "rdma/lane/lane_request.h"
#include "rdma/shm/shm_endpoint.h"

namespace verbena::server {
namespace {

template <typename Request, typename Response, typename F>
void Answer(const std::string& bytes, test::SimControl::Respond respond, F call) {
  Request request;
  request.ParseFromString(bytes);
  const absl::StatusOr<Response> response = call(request);
  if (!response.ok()) return respond(response.status());
  respond(response->SerializeAsString());
}

void SetReplica(const PeerId& id, v1::Replica* replica) {
  replica->set_server(id.server);
  replica->set_shard(id.shard);
}

}  // namespace

rdma::LaneConfig PeerLaneConfig() {
  rdma::LaneConfig config;
  config.small_slots = 4;
  config.large_slots = 2;
  config.large_slot_bytes = 4096 + kPeerChunkBytes;
  config.operations = 8;
  return config;
}

absl::Status SpyEndpoint::Prepare(rdma::ConnectionId connection,
                                  const rdma::ConnectionLimits& limits) {
  accepted_.insert(connection);
  return ForwardingEndpoint::Prepare(connection, limits);
}

absl::StatusOr<rdma::RemoteMemory> SpyEndpoint::Expose(rdma::ConnectionId connection,
                                                       std::shared_ptr<rdma::MemoryBlock> block,
                                                       size_t offset, size_t bytes) {
  if (accepted_.contains(connection)) rings_.emplace(connection, block->data() + offset);
  return ForwardingEndpoint::Expose(connection, std::move(block), offset, bytes);
}

size_t SpyEndpoint::Poll(absl::Span<rdma::Completion> out) {
  const size_t n = ForwardingEndpoint::Poll(out);
  for (size_t i = 0; i < n; ++i) {
    const auto ring = rings_.find(out[i].connection);
    if (!out[i].ok || out[i].kind != rdma::Completion::Kind::kReceive || ring == rings_.end()) {
      continue;
    }
    const RequestImm imm = RequestImm::Decode(out[i].immediate);
    Read(ring->second + config.slot_offset(imm.slot));
  }
  return n;
}

void SpyEndpoint::Read(const std::byte* slot) {
  Arrived& record = arrived.emplace_back();
  std::memcpy(&record.header, slot, sizeof(record.header));
  std::memcpy(&record.group, slot + sizeof(record.header), sizeof(record.group));
  if (record.header.type != RecordType::kReplicate) return;
  const std::byte* payload = slot + PayloadOffset(record.header.group_count);
  std::memcpy(&record.replica, payload, sizeof(record.replica));
  record.data.assign(payload + sizeof(record.replica), payload + record.header.payload_bytes);
}

PeerWorld::PeerWorld(bool shm, uint64_t seed, const rdma::SimFaults& network,
                     const test::ControlFaults& control)
    : shm_(shm),
      network_(seed, network),
      clock_(shm ? static_cast<const Clock*>(&real_) : &network_.clock()),
      control_(seed, clock_) {
  control_.set_faults(control);
}

std::unique_ptr<rdma::Endpoint> PeerWorld::NewEndpoint(const std::string& host) {
  if (!shm_) return network_.NewEndpoint(host);
  auto made = rdma::NewShmEndpoint();
  REQUIRE(made.ok());
  return *std::move(made);
}

PeerWorld::Node& PeerWorld::Add(const PeerId& id, bool replicates, uint32_t small_slots) {
  Node& node = *nodes_.emplace_back(std::make_unique<Node>());
  node.id = id;
  const std::string host = absl::StrCat("server-", id.server);
  node.address = host + ":1";
  auto spy = std::make_unique<SpyEndpoint>(NewEndpoint(host));
  spy->name = transport();
  node.endpoint = spy.get();
  ShardExecutorOptions options;
  options.shard = id.shard;
  options.lane = PeerLaneConfig();
  options.lane.small_slots = node.endpoint->config.small_slots = small_slots;
  options.lane.large_slot_bytes = 8192;  // the table's chunks make them larger
  options.seed = id.server * 10 + id.shard;
  options.slab_bytes = 1 << 20;
  if (!replicates) options.peer_listener = &node.recorder;
  options.log = [&node](const std::string& text) { node.log.push_back(text); };
  std::vector<ShardExecutor::Transport> transports;
  transports.push_back({std::move(spy), "here"});
  auto shard =
      ShardExecutor::Create(options, clock_, std::move(transports), control_.NewChannel(host));
  REQUIRE(shard.ok());
  node.shard = *std::move(shard);
  Serve(node.address);
  return node;
}

void PeerWorld::Remove(Node* node) {
  if (!shm_) network_.Crash(absl::StrCat("server-", node->id.server));
  control_.Stop(node->address);
  std::erase_if(nodes_, [node](const auto& one) { return one.get() == node; });
}

PeerWorld::Node* PeerWorld::Find(const std::string& address, uint32_t shard) {
  for (const auto& node : nodes_) {
    if (node->address == address && node->id.shard == shard) return node.get();
  }
  return nullptr;
}

void PeerWorld::Serve(const std::string& address) {
  control_.Serve(address, [this, address](const std::string& method, const std::string& bytes,
                                          test::SimControl::Respond respond) {
    if (method == "/verbena.v1.Shard/OpenLane") {
      return Answer<v1::OpenLaneRequest, v1::OpenLaneResponse>(
          bytes, std::move(respond),
          [&](const v1::OpenLaneRequest& request) -> absl::StatusOr<v1::OpenLaneResponse> {
            Node* node = Find(address, request.shard());
            if (node == nullptr) return absl::InvalidArgumentError("no such shard");
            ++node->opens;
            if (!node->refuse_opens.ok()) return node->refuse_opens;
            return node->shard->OpenLane(request);
          });
    }
    Answer<v1::CloseLaneRequest, v1::CloseLaneResponse>(
        bytes, std::move(respond),
        [&](const v1::CloseLaneRequest& request) -> absl::StatusOr<v1::CloseLaneResponse> {
          Node* node = Find(address, request.shard());
          if (node == nullptr) return absl::InvalidArgumentError("no such shard");
          ++node->closes;
          const absl::Status closed = node->shard->CloseLane(request);
          if (!closed.ok()) return closed;
          return v1::CloseLaneResponse();
        });
  });
}

std::shared_ptr<v1::ClusterView> PeerWorld::View(const std::vector<Configuration>& partitions,
                                                 const std::set<uint64_t>& silent) {
  auto view = std::make_shared<v1::ClusterView>();
  view->set_cluster_id("test");
  view->set_revision(++revision_);
  view->set_term(1);
  std::set<uint64_t> known;
  for (const auto& node : nodes_) {
    if (!known.insert(node->id.server).second) continue;
    v1::Server* server = view->add_servers();
    server->set_incarnation(node->id.server);
    server->set_name(absl::StrCat("s", node->id.server));
    server->set_address(node->address);
    server->set_state(silent.contains(node->id.server) ? v1::Server::SILENT : v1::Server::ALIVE);
  }
  v1::Job* job = view->add_jobs();
  job->set_name("job");
  job->set_generation(1);
  job->set_expected_workers(1);
  job->add_members()->set_incarnation(kPeerWorker);
  v1::TableSpec spec;
  spec.set_name("weights");
  spec.set_job("job");
  spec.add_shape(16);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_chunk_bytes(kPeerChunkBytes);
  const auto normalised = NormalizeTableSpec(spec);
  REQUIRE(normalised.ok());
  v1::Table* table = view->add_tables();
  table->set_id(1);
  *table->mutable_spec() = *normalised;
  for (size_t i = 0; i < partitions.size(); ++i) {
    v1::Partition* partition = view->add_partitions();
    partition->set_id(static_cast<uint32_t>(i));
    partition->set_epoch(1);
    partition->set_configuration(revision_);
    partition->set_primary(partitions[i].primary.server);
    partition->set_shard(partitions[i].primary.shard);
    for (const PeerId& id : partitions[i].followers) SetReplica(id, partition->add_followers());
    for (const PeerId& id : partitions[i].learners) SetReplica(id, partition->add_learners());
  }
  return view;
}

void PeerWorld::Apply(const std::shared_ptr<v1::ClusterView>& view) {
  for (const auto& node : nodes_) Apply(node.get(), view);
}

void PeerWorld::Apply(Node* node, const std::shared_ptr<v1::ClusterView>& view) {
  node->shard->SetIncarnation(node->id.server);
  node->shard->ApplyView(view);
  REQUIRE(node->shard->view_status() == absl::OkStatus());
}

bool PeerWorld::Run() {
  bool worked = control_.RunOnce();
  for (const auto& node : nodes_) {
    if (!node->paused) worked |= node->shard->RunOnce();
  }
  return worked;
}

int64_t PeerWorld::NextTimerNanos() const {
  int64_t next = control_.NextTimerNanos();
  for (const auto& node : nodes_) {
    if (!node->paused) next = std::min(next, node->shard->NextTimerNanos());
  }
  return next;
}

bool PeerWorld::Until(const std::function<bool()>& condition, absl::Duration limit) {
  // The limit is for a hang.
  const int64_t end = now() + absl::ToInt64Nanoseconds(limit);
  while (!condition()) {
    if (now() >= end) return false;
    if (Run()) continue;
    if (shm_) {
      sched_yield();
    } else {
      network_.Advance(std::min(end, std::max(NextTimerNanos(), now() + 1)));
    }
  }
  return true;
}

void PeerWorld::Pass(absl::Duration time) {
  const int64_t end = now() + absl::ToInt64Nanoseconds(time);
  while (now() < end) {
    if (Run()) continue;
    if (shm_) {
      sched_yield();
    } else {
      network_.Advance(std::min(end, std::max(NextTimerNanos(), now() + 1)));
    }
  }
}

v1::OpenLaneRequest PeerWorld::Request(const PeerId& from, const PeerId& to) const {
  v1::ClusterView view;
  view.set_cluster_id("test");
  view.set_revision(revision_);
  view.set_term(1);
  v1::OpenLaneRequest request = rdma::NewLaneRequest(from.server, to.server, to.shard, view);
  request.set_source_shard(from.shard);
  rdma::AddOffer(transport(), "here", &request);
  return request;
}

void PeerWorld::CloseLanes(Node* node) {
  for (const v1::LaneStatistics& lane : node->shard->Snapshot().lanes) {
    v1::CloseLaneRequest request;
    request.set_incarnation(lane.worker());
    request.set_shard(node->id.shard);
    request.set_lane(lane.lane());
    // There are few, numbered from 1.
    for (uint32_t generation = 1; generation < 100; ++generation) {
      request.set_generation(generation);
      if (node->shard->CloseLane(request).ok()) break;
    }
  }
}

}  // namespace verbena::server
