#include "tests/shard/replica_cluster.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "proto/wire/routing.h"
#include "shard/cold_events.h"
#include "shard/replica/copies.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_bytes.h"

namespace verbena::shard {
namespace {

bool Before(const std::pair<uint64_t, CopyId>& a, const std::pair<uint64_t, CopyId>& b) {
  return std::tie(a.first, a.second.server) < std::tie(b.first, b.second.server);
}

}  // namespace

ReplicaPlan MakeReplicaPlan(uint32_t seed, bool rows, v1::Consistency consistency) {
  ReplicaPlan plan;
  plan.seed = seed;
  plan.rows = rows;
  plan.consistency = consistency;
  plan.workers = 1 + seed % 3;
  plan.spares = seed % 4;
  // The state of other optimizers depends on the order of asynchronous pushes.
  if (consistency == v1::CONSISTENCY_SYNC && seed % 2 == 0) plan.optimizer = "adagrad";
  if (consistency == v1::CONSISTENCY_SYNC && rows && seed % 4 < 2) plan.narrow = true;
  return plan;
}

ReplicaCluster::ReplicaCluster(const ReplicaPlan& plan)
    : plan_(plan), random_(plan.seed), links_(&Before) {
  nodes_.resize(kNodes);
  for (Node& node : nodes_) node.server = next_server_++;
  MakeView();
  for (Node& node : nodes_) Start(&node);
  MakeOps();
}

void ReplicaCluster::MakeView() {
  view_.set_revision(1);
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    v1::Partition* partition = view_.add_partitions();
    partition->set_id(p);
    partition->set_epoch(1);
    partition->set_primary(nodes_[p % kNodes].server);
    if (plan_.replicas == 2)
      partition->add_followers()->set_server(nodes_[(p + 1) % kNodes].server);
  }
  v1::Job* job = view_.add_jobs();
  job->set_name("job");
  job->set_generation(1);
  job->set_expected_workers(plan_.workers);
  for (uint32_t w = 0; w < plan_.workers; ++w) {
    v1::Worker* worker = job->add_members();
    worker->set_incarnation(kFirstWorker + w);
    worker->set_rank(static_cast<int>(w));
  }
  v1::Table* table = view_.add_tables();
  table->set_id(kTable);
  v1::TableSpec* spec = table->mutable_spec();
  spec->set_name("table");
  spec->set_job("job");
  if (plan_.rows) {
    spec->set_dim(kDim);
    *spec->mutable_admission() = plan_.admission;
    *spec->mutable_eviction() = plan_.eviction;
    if (plan_.narrow) {
      spec->set_row_dtype(v1::DTYPE_BF16);
      spec->set_stochastic_rounding(true);
    }
  } else {
    spec->add_shape(kChunks * kElements);
  }
  spec->set_dtype(v1::DTYPE_F32);
  spec->set_consistency(plan_.consistency);
  spec->set_staleness(2);
  spec->set_reduction(v1::REDUCTION_SUM);
  spec->mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec->mutable_initializer()->set_a(3);
  spec->mutable_optimizer()->set_name(plan_.optimizer);
  spec->mutable_optimizer()->set_rate(1);
  spec->set_chunk_bytes(kElements * sizeof(float));
  if (plan_.cold) {
    // A step of a partition names 18 rows at most.
    spec->set_chunk_bytes(18 * kDim * sizeof(float));
    spec->mutable_cold_tier()->set_hot_bytes(1);
  }
}

void ReplicaCluster::Start(Node* node) {
  EngineOptions options;
  options.server = node->server;
  options.spare_buffers = plan_.spares;
  if (tight_log()) options.replica_log = kTightLog;
  node->engine = nullptr;
  node->cold = plan_.cold ? std::make_unique<FakeColdStore>(plan_.seed) : nullptr;
  options.cold_store = node->cold.get();
  node->engine = std::make_unique<Engine>(options);
  node->revision = 0;
  ApplyView(node);
}

uint64_t ReplicaCluster::cold_reads() const {
  uint64_t reads = 0;
  for (const Node& node : nodes_) {
    if (node.engine != nullptr) reads += node.engine->cold().counters().reads;
  }
  return reads;
}

ReplicaCluster::Node* ReplicaCluster::Find(uint64_t server) {
  for (Node& node : nodes_) {
    if (node.server == server && node.engine != nullptr) return &node;
  }
  return nullptr;
}

void ReplicaCluster::ApplyView(Node* node) {
  if (node->revision == view_.revision()) return;
  node->revision = view_.revision();
  const absl::Status applied = node->engine->ApplyView(view_);
  if (!applied.ok()) error = std::string(applied.message());
}

// ---- faults -------------------------------------------------------------------------------------

void ReplicaCluster::Kill(Node* node) {
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    if (PartitionAt(p)->primary() == node->server && !MayPromote(p)) return;
  }
  const uint64_t server = node->server;
  ForgetDeferred(server);
  for (uint64_t pin : node->pins) node->engine->Unpin(pin);
  node->pins.clear();
  for (const auto& [id, link] :
       std::map<LinkId, Link, bool (*)(const LinkId&, const LinkId&)>(links_)) {
    if (id.first == server || id.second.server == server) Cut(id);
  }
  node->engine.reset();
  node->server = 0;
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    v1::Partition* partition = PartitionAt(p);
    if (partition->primary() == server) {
      Promote(p);
      continue;
    }
    for (auto* list : {partition->mutable_followers(), partition->mutable_learners()}) {
      if (!list->empty() && list->Get(0).server() == server) list->Clear();
    }
  }
  view_.set_revision(view_.revision() + 1);
  for (auto it = asked_.begin(); it != asked_.end();) {
    if (it->second.server == server) {
      streams_[it->second.worker][it->second.partition].ops[it->second.op].out = false;
      it = asked_.erase(it);
    } else {
      ++it;
    }
  }
}

bool ReplicaCluster::MayPromote(uint32_t p) {
  const v1::Partition& partition = *PartitionAt(p);
  if (!partition.followers().empty()) return Alive(partition.followers(0).server());
  return plan_.promote_learners && !partition.learners().empty() &&
         Alive(partition.learners(0).server());
}

void ReplicaCluster::Promote(uint32_t p) {
  v1::Partition* partition = PartitionAt(p);
  const auto& copies =
      partition->followers().empty() ? partition->learners() : partition->followers();
  partition->set_primary(copies.Get(0).server());
  partition->set_epoch(partition->epoch() + 1);
  partition->clear_followers();
  partition->clear_learners();
  view_.set_revision(view_.revision() + 1);
  ++promotions_;
}

void ReplicaCluster::PromoteAll() {
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    if (!PartitionAt(p)->followers().empty()) Promote(p);
  }
  for (Node& node : nodes_) {
    if (node.engine != nullptr) ApplyView(&node);
  }
}

// The coordinator's part: adds a learner where a replica is missing, and makes one that has caught
// up a follower.
void ReplicaCluster::Repair() {
  if (plan_.replicas < 2) return;
  const uint32_t p = Pick(plan_.partitions);
  v1::Partition* partition = PartitionAt(p);
  Node* primary = Find(partition->primary());
  if (!partition->followers().empty() || primary == nullptr) return;
  if (partition->learners().empty()) {
    Node& node = nodes_[Pick(kNodes)];
    if (node.engine == nullptr || node.server == partition->primary()) return;
    v1::Replica* learner = partition->add_learners();
    learner->set_server(node.server);
    learner->set_since(view_.revision());
  } else {
    // Only the primary's report on the current configuration counts.
    if (primary->revision != view_.revision() || !primary->engine->replicas().CaughtUp(p)) return;
    *partition->add_followers() = partition->learners(0);
    partition->clear_learners();
    ++admitted_;
  }
  view_.set_revision(view_.revision() + 1);
}

void ReplicaCluster::Fault() {
  Node& node = nodes_[Pick(kNodes)];
  const uint32_t p = Pick(plan_.partitions);
  v1::Partition* partition = PartitionAt(p);
  switch (Pick(40)) {
    case 0:
      if (node.engine != nullptr) Kill(&node);
      break;
    case 1:  // of one that is alive, which will hear of it later
    case 2:
      if (MayPromote(p)) Promote(p);
      break;
    case 3:
      partition->clear_followers();
      partition->clear_learners();
      view_.set_revision(view_.revision() + 1);
      break;
    case 4:
    case 5:
      if (!links_.empty()) Cut(std::next(links_.begin(), Pick(uint32_t(links_.size())))->first);
      break;
    case 6:
      Pin();
      break;
    default:
      break;
  }
}

void ReplicaCluster::Pin() {
  Node* node = Find(PartitionAt(Pick(plan_.partitions))->primary());
  if (node == nullptr || plan_.rows) return;
  PullRequest r = PullOf(Pick(kChunks));
  r.may_park = false;
  const PullOutcome out = node->engine->Pull(r);
  if (out.kind == PullOutcome::Kind::kReady) node->pins.push_back(out.view.pin);
}

PullRequest ReplicaCluster::PullOf(uint32_t chunk) {
  const uint32_t p = PartitionOfChunk(kTable, chunk, plan_.partitions);
  PullRequest r;
  r.worker = kFirstWorker;
  r.table = kTable;
  r.group = {p, chunk, PartitionAt(p)->epoch(), 0, kElements, 0};
  return r;
}

// A pull of a step that may not be there yet.
void ReplicaCluster::Defer() {
  if (plan_.rows || !sync()) return;
  PullRequest r = PullOf(Pick(kChunks));
  Node* node = Find(PartitionAt(r.group.partition)->primary());
  if (node == nullptr) return;
  r.token = {plan_.workers, next_operation_++, 0};
  r.min_version = 1 + Pick(plan_.steps);
  const PullOutcome out = node->engine->Pull(r);
  if (out.kind == PullOutcome::Kind::kReady) node->engine->Unpin(out.view.pin);
  if (out.kind == PullOutcome::Kind::kDeferred) {
    deferred_[r.token.operation] = {node->server, r.min_version};
  }
}

void ReplicaCluster::CheckDeferred(const Event& event) {
  const auto it = deferred_.find(event.token.operation);
  if (it == deferred_.end()) return;
  const Deferred deferred = it->second;
  deferred_.erase(it);
  if (event.kind != Event::Kind::kPullReady) return;  // sent again elsewhere
  if (event.view.version < deferred.version) error = "a deferred pull is answered too early";
  Find(deferred.server)->engine->Unpin(event.view.pin);
}

void ReplicaCluster::ForgetDeferred(uint64_t server) {
  std::erase_if(deferred_, [&](const auto& deferred) { return deferred.second.server == server; });
}

void ReplicaCluster::Unpin(Node* node) {
  if (node->pins.empty()) return;
  node->engine->Unpin(node->pins.back());
  node->pins.pop_back();
}

// ---- links --------------------------------------------------------------------------------------

void ReplicaCluster::Replicate(Node* node) {
  std::vector<ReplicaRecord> records;
  node->engine->replicas().Take(&records, 4);
  for (const ReplicaRecord& record : records) {
    Link& link = links_[{node->server, record.to}];
    ++out_[{node->server, record.group.partition}];
    const uint32_t total = record.header.total_bytes;
    uint32_t offset = 0;
    do {
      const uint32_t bytes = Pick(2) == 0 ? total - offset : std::min(total - offset, 4 + Pick(64));
      link.there.push_back({record, offset, bytes, ReplyStatus::kOk});
      offset += bytes;
    } while (offset < total);
  }
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    if (out_[{node->server, p}] > 0 || !refused_[{node->server, p}]) continue;
    refused_[{node->server, p}] = false;
    for (const CopyStatus& copy : node->engine->replicas().Status()) {
      if (copy.partition == p) node->engine->replicas().Resend(copy.copy, p);
    }
  }
}

void ReplicaCluster::Cut(LinkId id) {
  const Link link = links_[id];
  links_.erase(id);
  Node* node = Find(id.first);
  for (const std::deque<Message>* queue : {&link.there, &link.back}) {
    for (const Message& m : *queue) {
      if (m.offset + m.bytes == m.record.header.total_bytes) {
        --out_[{id.first, m.record.group.partition}];
      }
    }
  }
  if (node != nullptr) node->engine->replicas().Lost(id.second);
}

void ReplicaCluster::Deliver() {
  if (links_.empty()) return;
  const auto it = std::next(links_.begin(), Pick(static_cast<uint32_t>(links_.size())));
  Node* from = Find(it->first.first);
  Node* to = Find(it->first.second.server);
  if (from == nullptr || to == nullptr) return Cut(it->first);
  Link& link = it->second;
  if (!link.there.empty() && Pick(2) == 0) {
    Message m = link.there.front();
    link.there.pop_front();
    const ReplicaBytes bytes(m.record, m.offset, m.bytes);
    m.status = to->engine->copies()
                   .Replicate({it->first.first, 0}, bytes.record(), bytes.payload())
                   .status;
    if (m.status == ReplyStatus::kMalformed || m.status == ReplyStatus::kOutOfRange ||
        m.status == ReplyStatus::kDataLoss) {
      error = "a copy refuses a record of kind " +
              std::to_string(static_cast<int>(m.record.header.kind)) + ": " +
              std::string(ReplyStatusName(m.status));
    }
    link.back.push_back(m);
    return;
  }
  if (link.back.empty()) return;
  const Message m = link.back.front();
  link.back.pop_front();
  const uint32_t p = m.record.group.partition;
  if (!Good(m.status)) refused_[{from->server, p}] = true;
  if (m.offset + m.bytes < m.record.header.total_bytes) return;
  --out_[{from->server, p}];
  from->engine->replicas().Answered(it->first.second, p, m.record.group.sequence, m.status);
}

void ReplicaCluster::CheckLog(const Node& node) {
  // One record of each kind, applies' and catch-up's, may exceed the limits.
  constexpr uint64_t kMore = 2 * 1024;
  const EngineCounters counters = node.engine->counters();
  if (!tight_log()) return;
  if (counters.replica_log_bytes > kTightLog.shard_bytes + kMore ||
      counters.replica_log_partition_bytes > kTightLog.partition_bytes + kMore) {
    error = "the log for copies has " + std::to_string(counters.replica_log_bytes) + " bytes, " +
            std::to_string(counters.replica_log_partition_bytes) + " of a partition";
  }
}

// ---- the run ------------------------------------------------------------------------------------

bool ReplicaCluster::Run() {
  const uint32_t most = 400'000;
  for (uint32_t turn = 0; turn < most && error.empty(); ++turn) {
    const bool done = Done();
    const bool faults = plan_.faults && !done && turn < most / 2;
    if (faults && Pick(12) == 0) Fault();
    if (faults && Pick(12) == 0) Defer();
    Node& node = nodes_[Pick(kNodes)];
    if (node.engine == nullptr) {
      if (Pick(20) == 0) {
        node.server = next_server_++;
        Start(&node);
      }
      continue;
    }
    if (Pick(6) == 0) ApplyView(&node);
    if (Pick(8) == 0) Repair();
    if (Pick(4) == 0) Unpin(&node);
    Replicate(&node);
    Deliver();
    TakeEvents(&node);
    CheckLog(node);
    const uint32_t worker = Pick(plan_.workers), partition = Pick(plan_.partitions);
    if (!done && turn % 64 == 0) node.engine->proofs().AuditFollowers(4096);
    if (!done) {
      LearnCommit(worker, partition);
      Post(worker, partition);
      continue;
    }
    if (!Settled()) continue;
    for (Node& n : nodes_) {
      if (n.engine == nullptr) continue;
      ApplyView(&n);
      TakeEvents(&n);
    }
    if (!deferred_.empty()) error = "a pull is deferred for good";
    return true;
  }
  return false;
}

// All copies there are have everything.
bool ReplicaCluster::Settled() {
  for (uint32_t p = 0; p < plan_.partitions; ++p) {
    Node* primary = Find(PartitionAt(p)->primary());
    if (primary == nullptr || primary->revision != view_.revision()) return false;
    if (!primary->pins.empty()) return false;
    if (plan_.replicas < 2) continue;
    if (PartitionAt(p)->followers().empty()) return false;
    for (const CopyStatus& copy : primary->engine->replicas().Status()) {
      if (copy.copy.server != 0 && copy.acknowledged != copy.sequence) return false;
    }
  }
  return true;
}

std::map<uint64_t, std::vector<float>> ReplicaCluster::Contents() {
  std::map<uint64_t, std::vector<float>> contents;
  const auto read = [](const ChunkView& view, size_t offset, size_t numbers) {
    std::vector<float> values(numbers);
    std::memcpy(values.data(), view.buffer.data + offset, numbers * sizeof(float));
    return values;
  };
  for (uint32_t c = 0; c < kChunks && !plan_.rows; ++c) {
    const PullRequest r = PullOf(c);
    const uint32_t p = r.group.partition;
    Node* node = Find(PartitionAt(p)->primary());
    const PullOutcome out = node->engine->Pull(r);
    if (out.kind != PullOutcome::Kind::kReady) {
      error = "a pull is answered " + std::string(ReplyStatusName(out.answer.status));
      return {};
    }
    contents[c] = read(out.view, 0, kElements);
    contents[1000 + c] = {static_cast<float>(out.view.version)};
    node->engine->Unpin(out.view.pin);
    if (plan_.optimizer != "adagrad") continue;
    PullRequest state = r;
    state.array = 1;
    const PullOutcome of_state = node->engine->Pull(state);
    contents[2000 + c] = read(of_state.view, 0, kElements);
    contents[3000 + c] = {static_cast<float>(of_state.answer.applies)};
    node->engine->Unpin(of_state.view.pin);
  }
  for (uint32_t p = 0; p < plan_.partitions && plan_.rows; ++p) {
    Node* node = Find(PartitionAt(p)->primary());
    const PullOutcome out =
        node->engine->Scan({kFirstWorker, kTable, {p, 0, PartitionAt(p)->epoch(), 0, 1000, 0}});
    if (out.kind != PullOutcome::Kind::kReady) {
      error = "a scan is answered " + std::string(ReplyStatusName(out.answer.status));
      return {};
    }
    const uint32_t count = out.answer.detail;
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t key = 0;
      std::memcpy(&key, out.view.buffer.data + i * sizeof(key), sizeof(key));
      contents[key] = read(out.view, KeyBytes(count) + i * kDim * sizeof(float), kDim);
    }
    node->engine->Unpin(out.view.pin);
  }
  return contents;
}

}  // namespace verbena::shard
