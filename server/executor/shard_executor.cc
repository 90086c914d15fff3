#include "server/executor/shard_executor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/shard_core.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/cold_events.h"
#include "shard/replica/replicas.h"

namespace verbena::server {

void LatencyHistogram::Add(int64_t ns) {
  const uint64_t positive = ns > 0 ? static_cast<uint64_t>(ns) : 0;
  const int bucket = std::bit_width(positive / 1000);
  ++counts[std::min(bucket, kBuckets - 1)];
  sum_ns += positive;
  ++count;
}

namespace {

// So small that a slab which is begun does not decide whether the limit is kept.
size_t SlabBytes(const ShardExecutorOptions& options) {
  if (options.memory_budget == nullptr) return options.slab_bytes;
  const uint64_t share = std::bit_floor(options.memory_budget->limit() / 256);
  return std::min<uint64_t>(std::max<uint64_t>(share, uint64_t{1} << 20), options.slab_bytes);
}

}  // namespace

ShardCore::ShardCore(const ShardExecutorOptions& o, const Clock* c)
    : options(o),
      clock(c),
      allocator(absl::StrCat("verbena-shard-", o.shard), SlabBytes(o), rdma::HugePages::kAuto,
                o.memory_budget.get()),
      transports(options),
      members(this),
      grants(this, o.seed),
      lanes(this),
      requests(this),
      answers(this),
      waiting(this),
      starved(this),
      copies(this),
      saves({.shard = o.shard, .disk = o.disk, .io = o.file_io, .log = o.log}, c, &inbox),
      restores({.shard = o.shard, .disk = o.disk, .io = o.file_io, .log = o.log}, c, &inbox) {}

void ShardCore::ReadSeconds() {
  constexpr int64_t kEvery = 250'000'000;
  next_seconds_ns = now_ns + kEvery;
  engine->SetSeconds(options.wall_seconds
                         ? options.wall_seconds()
                         : static_cast<uint32_t>(absl::ToUnixSeconds(absl::Now())));
}

// Links go before lanes, and both before the engines' memory.
ShardCore::~ShardCore() { peer_links.reset(); }

void ShardCore::MakePeerLinks(std::unique_ptr<ControlChannel> channel) {
  control = std::move(channel);
  std::vector<PeerLinks::Transport> peers;
  // By the same index as in `transports`: rails of one transport come in order, but others may
  // follow.
  for (const TransportLink& link : transports.links())
    peers.push_back({link.endpoint.get(), link.host, link.rail});
  replication = std::make_unique<Replication>(
      ReplicationOptions{.shard = options.shard,
                         .seed = options.seed == 0 ? 0 : options.seed ^ 0xd1b54a32d192ed03u,
                         .log = options.log,
                         .audit = options.audit},
      control.get(), clock);
  PeerListener* listener =
      options.peer_listener != nullptr ? options.peer_listener : replication.get();
  // Another seed than the tokens': the times at which a link is opened again must not give tokens
  // away.
  const uint64_t seed = options.seed == 0 ? 0 : options.seed ^ 0x9e3779b97f4a7c15u;
  peer_links = std::make_unique<PeerLinks>(
      PeerLinkOptions{.shard = options.shard, .seed = seed, .log = options.log}, std::move(peers),
      transports.missing(), control.get(), clock, listener);
  replication->SetLinks(peer_links.get());
}

ShardExecutor::ShardExecutor(std::unique_ptr<ShardCore> core) : core_(std::move(core)) {}
ShardExecutor::~ShardExecutor() = default;

absl::StatusOr<std::unique_ptr<ShardExecutor>> ShardExecutor::Create(
    const ShardExecutorOptions& options, const Clock* clock, std::vector<Transport> transports,
    std::unique_ptr<ControlChannel> control) {
  if (transports.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", options.shard, ": no transport"));
  }
  if (absl::Status valid = options.lane.Validate(); !valid.ok()) return valid;
  auto core = std::make_unique<ShardCore>(options, clock);
  absl::Status listens = core->transports.Listen(std::move(transports));
  if (!listens.ok()) return listens;
  core->MakePeerLinks(std::move(control));
  core->ReadClock();
  return std::unique_ptr<ShardExecutor>(new ShardExecutor(std::move(core)));
}

Inbox& ShardExecutor::inbox() { return core_->inbox; }
absl::Status ShardExecutor::Post(const std::string& caller, Inbox::Closure& closure,
                                 FairQueue::Refuse refuse) {
  absl::Status status = core_->calls.Post(caller, closure, std::move(refuse));
  if (status.ok()) core_->inbox.Post([] {});  // wakes the owner
  return status;
}
const absl::Status& ShardExecutor::view_status() const { return core_->view_status; }
void ShardExecutor::Drain() {
  core_->inbox.RunOnce();
  while (core_->calls.RunOne()) {
  }
}
PeerLinks& ShardExecutor::links() { return *core_->peer_links; }
const shard::Engine* ShardExecutor::engine() const { return core_->engine.get(); }
ReplicationCounters ShardExecutor::replication_counters() const {
  return core_->replication->counters();
}
uint64_t ShardExecutor::ReadsInEpoch(uint32_t partition) const {
  const ShardCore& s = *core_;
  if (s.view == nullptr || s.incarnation == 0) return 0;
  if (partition >= static_cast<uint32_t>(s.view->partitions_size())) return 0;
  const v1::Partition& p = s.view->partitions(static_cast<int>(partition));
  if (p.primary() != s.incarnation || p.shard() != s.options.shard) return 0;
  if (s.engine != nullptr && s.engine->replicas().sealed(partition)) return 0;
  return s.replication->leases().MayRead(partition, s.clock->NowNanos()) ? p.epoch() : 0;
}

void ShardExecutor::SetIncarnation(uint64_t incarnation) {
  ShardCore& s = *core_;
  if (incarnation == s.incarnation || incarnation == 0) return;
  // A server that joins again under another incarnation is new and empty. Workers must not take the
  // old one's state for the new one's.
  s.lanes.CloseAll(absl::FailedPreconditionError(
      absl::StrCat("the server has a new incarnation, ", incarnation)));
  s.incarnation = incarnation;
  std::function<std::shared_ptr<shard::JobMemory>(const std::string&)> job_memory;
  if (s.options.job_memories != nullptr) {
    job_memory = [memories = s.options.job_memories](const std::string& job) {
      return memories->Of(job);
    };
  }
  s.engine = std::make_shared<shard::Engine>(
      shard::EngineOptions{.allocator = &s.allocator,
                           .server = incarnation,
                           .shard = s.options.shard,
                           .spare_buffers = s.options.spare_buffers,
                           .replica_log = s.options.replica_log,
                           .commit_observer = s.options.commit_observer,
                           .job_memory = std::move(job_memory),
                           .cold_store = s.options.cold_store});
  if (s.view == nullptr) return;
  s.members.Follow(ViewDifference());
  s.view_status = s.engine->ApplyView(*s.view);
  s.starved.Await();
  s.copies.Follow();
}

void ShardExecutor::SetCoordinator(const std::string& address) {
  core_->replication->SetCoordinator(address);
}

void ShardExecutor::ApplyView(std::shared_ptr<const v1::ClusterView> view,
                              absl::Span<const v1::ViewChange> changes) {
  ShardCore& s = *core_;
  if (s.view != nullptr && s.view->cluster_id() == view->cluster_id() &&
      view->revision() < s.view->revision()) {
    return;
  }
  const ViewDifference what =
      s.view == nullptr ? ViewDifference() : DifferenceOf(s.view->revision(), *view, changes);
  s.view = std::move(view);
  s.members.Follow(what);
  s.largest_chunk.Follow(*s.view, what);
  s.ReadClock();
  if (s.engine != nullptr) {
    s.view_status = s.engine->ApplyView(*s.view, changes);
    if (!s.view_status.ok()) s.Log(std::string(s.view_status.message()));
    s.starved.Await();
  }
  s.restores.Follow({s.engine, s.view.get(), s.incarnation});
  if (what.all || what.placement || !what.jobs.empty()) s.lanes.Retire();
  s.copies.Follow();
  s.requests.DrainEngine();
}

absl::StatusOr<v1::OpenLaneResponse> ShardExecutor::OpenLane(const v1::OpenLaneRequest& request) {
  core_->ReadClock();
  return core_->grants.Open(request);
}

absl::Status ShardExecutor::CloseLane(const v1::CloseLaneRequest& request) {
  return core_->lanes.CloseLane(request);
}

absl::StatusOr<v1::BeginCheckpointResponse> ShardExecutor::BeginCheckpoint(
    const v1::BeginCheckpointRequest& request) {
  ShardCore& s = *core_;
  s.ReadClock();
  if (absl::Status status =
          s.copies.MayCheckpoint(request.server_incarnation(), request.revision());
      !status.ok())
    return status;
  return s.saves.Begin(request, {s.engine, s.view.get(), s.incarnation});
}

void ShardExecutor::WaitCheckpoint(const v1::WaitCheckpointRequest& request,
                                   ShardCheckpoints::Reply reply) {
  core_->saves.Wait(request, std::move(reply));
}

absl::Status ShardExecutor::EndCheckpoint(const v1::EndCheckpointRequest& request) {
  return core_->saves.End(request);
}

absl::Status ShardExecutor::BeginRestore(const v1::BeginRestoreRequest& request) {
  ShardCore& s = *core_;
  s.ReadClock();
  if (absl::Status status =
          s.copies.MayCheckpoint(request.server_incarnation(), request.revision());
      !status.ok())
    return status;
  return s.restores.Begin(request, {s.engine, s.view.get(), s.incarnation});
}

void ShardExecutor::WaitRestore(const v1::WaitRestoreRequest& request, ShardRestores::Reply reply) {
  core_->restores.Wait(request, std::move(reply));
}

std::vector<v1::PartitionStatistics> ShardExecutor::PartitionContents() const {
  return core_->copies.Contents();
}

ShardSnapshot ShardExecutor::Snapshot() const {
  const ShardCore& s = *core_;
  ShardSnapshot snapshot;
  snapshot.counters = s.counters;
  if (s.engine != nullptr) {
    snapshot.counters.engine = s.engine->counters();
    snapshot.counters.saves = s.engine->checkpoints().counters();
    snapshot.counters.cold = s.engine->cold().counters();
    snapshot.tables = s.engine->tables();
  }
  snapshot.jobs = s.members.Snapshots();
  snapshot.counters.credit_messages = s.lanes.retired_credits();
  snapshot.counters.links = s.peer_links->counters();
  for (const auto& lane : s.lanes.all()) {
    if (lane == nullptr) continue;
    snapshot.counters.credit_messages += lane->lane->counters().credits;
    if (lane->closing) continue;
    ++snapshot.counters.lanes_open;
    snapshot.counters.queue_depth += lane->lane->unanswered_count();
    v1::LaneStatistics& out = snapshot.lanes.emplace_back();
    out.set_lane(lane->id);
    out.set_worker(lane->peer.incarnation);
    out.set_transport(std::string(s.transports.links()[lane->transport].endpoint->transport()));
    out.set_device(s.transports.links()[lane->transport].endpoint->device());
    out.set_settings(s.transports.links()[lane->transport].endpoint->settings());
    out.set_reason(lane->reason);
    out.set_rail(s.transports.links()[lane->transport].rail);
    out.set_of_server(lane->peer.server);
    out.set_source_shard(lane->peer.shard);
    out.set_protocol(lane->protocol);
  }
  snapshot.counters.waiting_for_room = s.waiting.size();
  snapshot.counters.replica_log = s.options.replica_log;
  snapshot.missing = s.transports.missing();
  snapshot.lanes_refused = std::string(s.grants.Shortage().message());
  if (s.options.cold_store != nullptr) {
    snapshot.cold_unwritten = std::string(s.options.cold_store->health().message());
  }
  snapshot.replicas = s.copies.Statistics();
  if (s.options.memory_budget != nullptr) {
    snapshot.memory_limit = s.options.memory_budget->limit();
    snapshot.memory_reserved = s.options.memory_budget->reserved();
    snapshot.memory_full = s.allocator.full() || snapshot.counters.engine.memory_refused;
  }
  snapshot.counters.replication = s.replication->counters();
  for (const v1::ReplicaStatistics& replica : snapshot.replicas) {
    for (const v1::CopyStatistics& copy : replica.copies()) {
      uint64_t& lag = snapshot.counters.replica_lag;
      if (!copy.learner()) lag = std::max(lag, replica.sequence() - copy.acknowledged());
      const uint64_t left = copy.total_bytes() - std::min(copy.total_bytes(), copy.copied_bytes());
      if (copy.learner()) snapshot.counters.learner_bytes += left;
    }
  }
  return snapshot;
}

bool ShardExecutor::RunOnce() {
  ShardCore& s = *core_;
  bool worked = s.inbox.RunOnce();
  worked |= s.calls.RunOne();
  if (s.control != nullptr) worked |= s.control->RunOnce();
  for (size_t i = 0; i < s.transports.links().size(); ++i) {
    worked |= s.lanes.PollEvents(i);
    worked |= s.requests.Poll(i);
  }
  worked |= s.peer_links->RunOnce();
  worked |= s.saves.RunOnce();
  worked |= s.restores.RunOnce();
  worked |= s.requests.DrainEngine();
  worked |= s.waiting.Retry();
  // Tests that listen to the links themselves send themselves.
  const bool replicates = s.options.peer_listener == nullptr;
  if (replicates) {
    worked |= s.replication->Send();
    // A learner may have had applies made first that others wait for.
    worked |= s.requests.DrainEngine();
  }
  if (s.lanes.closing()) worked |= s.lanes.Reap();
  if (s.NextTimer() != kNever) {
    // With work done the batch's reading is fresh enough; an idle round must look itself, or a
    // timer would never be seen to be due.
    if (!worked) s.ReadClock();
    worked |= s.RunTimers(s.now_ns);
    if (replicates && s.replication->RunTimers(s.now_ns)) {
      s.replication->Send();
      worked = true;
    }
  }
  s.answers.FlushSamples();
  return worked;
}

bool ShardCore::RunTimers(int64_t now) {
  const bool pending_due = now >= grants.next_check_ns();
  const bool writes_due = now >= lanes.next_write_check_ns();
  if (pending_due) {
    grants.DropLate(now);
    lanes.CheckAccepting(now);
  }
  if (writes_due) lanes.CheckWrites(now);
  const bool waited = waiting.RefuseLate(now) | starved.Retry(now);
  return peer_links->RunTimers(now) || pending_due || writes_due || waited;
}

int64_t ShardCore::NextTimer() const {
  int64_t next = std::min(
      {lanes.next_write_check_ns(), grants.next_check_ns(), starved.next_ns(), waiting.NextNanos(),
       peer_links->NextTimerNanos(), saves.NextTimerNanos(), restores.NextTimerNanos(),
       options.peer_listener == nullptr ? replication->NextTimerNanos() : kNever});
  // A transport whose peer has to confirm the close reports it by an event; this look is for the
  // other transports.
  if (lanes.closing()) next = std::min(next, now_ns + int64_t{10'000'000});
  return next;
}

int64_t ShardExecutor::NextTimerNanos() const { return core_->NextTimer(); }

bool ShardExecutor::Arm() {
  ShardCore& s = *core_;
  if (!s.calls.empty() || !s.inbox.Arm()) return false;
  for (size_t i = 0; i < s.transports.links().size(); ++i) {
    if (s.transports.links()[i].endpoint->Arm(rdma::SleepUntil::kAnything)) continue;
    while (i > 0) s.transports.links()[--i].endpoint->Disarm();
    s.inbox.Disarm();
    return false;
  }
  return true;
}

void ShardExecutor::Disarm() {
  for (auto& link : core_->transports.links()) link.endpoint->Disarm();
  core_->inbox.Disarm();
}

void ShardExecutor::AppendDescriptors(std::vector<int>* fds) const {
  if (core_->inbox.wake_fd() >= 0) fds->push_back(core_->inbox.wake_fd());
  if (core_->control != nullptr && core_->control->wake_fd() >= 0) {
    fds->push_back(core_->control->wake_fd());
  }
  for (const auto& link : core_->transports.links()) link.endpoint->AppendDescriptors(fds);
}

}  // namespace verbena::server
