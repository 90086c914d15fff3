#include "server/executor/shard_executor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/shard_executor_impl.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/cold_events.h"

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

ShardExecutor::Impl::Impl(const ShardExecutorOptions& o, const Clock* c)
    : options(o),
      clock(c),
      allocator(absl::StrCat("verbena-shard-", o.shard), SlabBytes(o), rdma::HugePages::kAuto,
                o.memory_budget.get()),
      missing(o.missing),
      token_state(o.seed),
      saves({.shard = o.shard, .disk = o.disk, .io = o.file_io, .log = o.log}, c, &inbox),
      restores({.shard = o.shard, .disk = o.disk, .io = o.file_io, .log = o.log}, c, &inbox) {
  completions.resize(64);
  events.resize(16);
  samples.reserve(kCompletionBudget);
}

void ShardExecutor::Impl::ReadSeconds() {
  constexpr int64_t kEvery = 250'000'000;
  next_seconds_ns = now_ns + kEvery;
  engine->SetSeconds(options.wall_seconds
                         ? options.wall_seconds()
                         : static_cast<uint32_t>(absl::ToUnixSeconds(absl::Now())));
}

ShardExecutor::Impl::~Impl() {
  // Lanes give their pins back to an engine, whose buffers are the allocator's.
  peer_links.reset();
  for (auto& lane : lanes) {
    if (lane != nullptr) lane->lane->Close(absl::CancelledError("the shard stops"));
  }
  lanes.clear();
}

void ShardExecutor::Impl::MakePeerLinks(std::unique_ptr<ControlChannel> channel) {
  control = std::move(channel);
  std::vector<PeerLinks::Transport> transports;
  // By the same index as in `links`: rails of one transport come in order, but others may follow.
  for (const Link& link : links) transports.push_back({link.endpoint.get(), link.host, link.rail});
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
      PeerLinkOptions{.shard = options.shard, .seed = seed, .log = options.log},
      std::move(transports), missing, control.get(), clock, listener);
  replication->SetLinks(peer_links.get());
}

ShardExecutor::ShardExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardExecutor::~ShardExecutor() = default;

absl::StatusOr<std::unique_ptr<ShardExecutor>> ShardExecutor::Create(
    const ShardExecutorOptions& options, const Clock* clock, std::vector<Transport> transports,
    std::unique_ptr<ControlChannel> control) {
  if (transports.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", options.shard, ": no transport"));
  }
  if (absl::Status valid = options.lane.Validate(); !valid.ok()) return valid;
  auto impl = std::make_unique<Impl>(options, clock);
  absl::Status failed;
  for (Transport& transport : transports) {
    Impl::Link link;
    const std::string name(transport.endpoint->transport());
    // Nor with the rails of it that can listen: if several rails are named, all are needed.
    const auto same = [&](const auto& missing) { return missing.transport == name; };
    if (std::any_of(impl->missing.begin(), impl->missing.end(), same)) continue;
    absl::StatusOr<std::string> address = transport.endpoint->Listen();
    if (!address.ok()) {
      const std::string why = absl::StrCat("cannot listen: ", address.status().message());
      failed = absl::Status(address.status().code(),
                            absl::StrCat("shard ", options.shard, ": transport ", name, ": ", why));
      if (!options.optional_transports) return failed;
      impl->Log(std::string(failed.message()));
      impl->missing.push_back({name, why});
      std::erase_if(impl->links,
                    [&](const Impl::Link& made) { return made.endpoint->transport() == name; });
      continue;
    }
    link.address = *std::move(address);
    link.endpoint = std::move(transport.endpoint);
    link.host = std::move(transport.host);
    link.rail = transport.rail;
    impl->links.push_back(std::move(link));
  }
  if (impl->links.empty()) return failed;
  impl->MakePeerLinks(std::move(control));
  impl->ReadClock();
  return std::unique_ptr<ShardExecutor>(new ShardExecutor(std::move(impl)));
}

Inbox& ShardExecutor::inbox() { return impl_->inbox; }
absl::Status ShardExecutor::Post(const std::string& caller, Inbox::Closure& closure,
                                 FairQueue::Refuse refuse) {
  absl::Status status = impl_->calls.Post(caller, closure, std::move(refuse));
  if (status.ok()) impl_->inbox.Post([] {});  // wakes the owner
  return status;
}
const absl::Status& ShardExecutor::view_status() const { return impl_->view_status; }
void ShardExecutor::Drain() {
  impl_->inbox.RunOnce();
  while (impl_->calls.RunOne()) {
  }
}
PeerLinks& ShardExecutor::links() { return *impl_->peer_links; }
const shard::Engine* ShardExecutor::engine() const { return impl_->engine.get(); }
ReplicationCounters ShardExecutor::replication_counters() const {
  return impl_->replication->counters();
}

void ShardExecutor::SetIncarnation(uint64_t incarnation) {
  Impl& s = *impl_;
  if (incarnation == s.incarnation || incarnation == 0) return;
  // A server that joins again under another incarnation is new and empty. Workers must not take the
  // old one's state for the new one's.
  s.CloseAll(absl::FailedPreconditionError(
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
  s.UpdateJobs(ViewDifference());
  s.view_status = s.engine->ApplyView(*s.view);
  s.AwaitMemory();
  s.FollowPeers();
}

void ShardExecutor::SetCoordinator(const std::string& address) {
  impl_->replication->SetCoordinator(address);
}

void ShardExecutor::ApplyView(std::shared_ptr<const v1::ClusterView> view,
                              absl::Span<const v1::ViewChange> changes) {
  Impl& s = *impl_;
  if (s.view != nullptr && s.view->cluster_id() == view->cluster_id() &&
      view->revision() < s.view->revision()) {
    return;
  }
  const ViewDifference what =
      s.view == nullptr ? ViewDifference() : DifferenceOf(s.view->revision(), *view, changes);
  s.view = std::move(view);
  s.UpdateJobs(what);
  s.largest_chunk.Follow(*s.view, what);
  s.ReadClock();
  if (s.engine != nullptr) {
    s.view_status = s.engine->ApplyView(*s.view, changes);
    if (!s.view_status.ok()) s.Log(std::string(s.view_status.message()));
    s.AwaitMemory();
  }
  s.restores.Follow({s.engine, s.view.get(), s.incarnation});
  if (what.all || what.placement || !what.jobs.empty()) s.RetirePeers();
  s.FollowPeers();
  s.DrainEngine();
}

absl::StatusOr<v1::OpenLaneResponse> ShardExecutor::OpenLane(const v1::OpenLaneRequest& request) {
  impl_->ReadClock();
  return impl_->OpenLane(request);
}

absl::Status ShardExecutor::CloseLane(const v1::CloseLaneRequest& request) {
  return impl_->CloseLane(request);
}

absl::StatusOr<v1::BeginCheckpointResponse> ShardExecutor::BeginCheckpoint(
    const v1::BeginCheckpointRequest& request) {
  Impl& s = *impl_;
  s.ReadClock();
  if (absl::Status status = s.MayCheckpoint(request); !status.ok()) return status;
  return s.saves.Begin(request, {s.engine, s.view.get(), s.incarnation});
}

void ShardExecutor::WaitCheckpoint(const v1::WaitCheckpointRequest& request,
                                   ShardCheckpoints::Reply reply) {
  impl_->saves.Wait(request, std::move(reply));
}

absl::Status ShardExecutor::EndCheckpoint(const v1::EndCheckpointRequest& request) {
  return impl_->saves.End(request);
}

absl::Status ShardExecutor::BeginRestore(const v1::BeginRestoreRequest& request) {
  Impl& s = *impl_;
  s.ReadClock();
  if (absl::Status status = s.MayCheckpoint(request); !status.ok()) return status;
  return s.restores.Begin(request, {s.engine, s.view.get(), s.incarnation});
}

void ShardExecutor::WaitRestore(const v1::WaitRestoreRequest& request, ShardRestores::Reply reply) {
  impl_->restores.Wait(request, std::move(reply));
}

ShardSnapshot ShardExecutor::Snapshot() const {
  const Impl& s = *impl_;
  ShardSnapshot snapshot;
  snapshot.counters = s.counters;
  if (s.engine != nullptr) {
    snapshot.counters.engine = s.engine->counters();
    snapshot.counters.saves = s.engine->checkpoints().counters();
    snapshot.counters.cold = s.engine->cold().counters();
    snapshot.tables = s.engine->tables();
  }
  snapshot.jobs = s.JobSnapshots();
  snapshot.counters.credit_messages = s.retired_credit_messages;
  snapshot.counters.links = s.peer_links->counters();
  for (const auto& lane : s.lanes) {
    if (lane == nullptr) continue;
    snapshot.counters.credit_messages += lane->lane->counters().credits;
    if (lane->closing) continue;
    ++snapshot.counters.lanes_open;
    snapshot.counters.queue_depth += lane->lane->unanswered_count();
    v1::LaneStatistics& out = snapshot.lanes.emplace_back();
    out.set_lane(lane->id);
    out.set_worker(lane->peer.incarnation);
    out.set_transport(std::string(s.links[lane->transport].endpoint->transport()));
    out.set_device(s.links[lane->transport].endpoint->device());
    out.set_settings(s.links[lane->transport].endpoint->settings());
    out.set_reason(lane->reason);
    out.set_rail(s.links[lane->transport].rail);
    out.set_of_server(lane->peer.server);
    out.set_source_shard(lane->peer.shard);
  }
  snapshot.counters.waiting_for_room = s.waiting.size();
  snapshot.counters.replica_log = s.options.replica_log;
  snapshot.missing = s.missing;
  snapshot.lanes_refused = std::string(s.LaneShortage().message());
  if (s.options.cold_store != nullptr) {
    snapshot.cold_unwritten = std::string(s.options.cold_store->health().message());
  }
  snapshot.replicas = s.ReplicaStatistics();
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
  Impl& s = *impl_;
  bool worked = s.inbox.RunOnce();
  worked |= s.calls.RunOne();
  if (s.control != nullptr) worked |= s.control->RunOnce();
  for (size_t i = 0; i < s.links.size(); ++i) {
    worked |= s.PollEvents(i);
    worked |= s.PollCompletions(i);
  }
  worked |= s.peer_links->RunOnce();
  worked |= s.saves.RunOnce();
  worked |= s.restores.RunOnce();
  worked |= s.DrainEngine();
  worked |= s.RetryWaiting();
  // Tests that listen to the links themselves send themselves.
  const bool replicates = s.options.peer_listener == nullptr;
  if (replicates) {
    worked |= s.replication->Send();
    // A learner may have had applies made first that others wait for.
    worked |= s.DrainEngine();
  }
  if (!s.closing.empty()) worked |= s.ReapClosing();
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
  if (!s.samples.empty()) s.FlushSamples();
  return worked;
}

int64_t ShardExecutor::Impl::NextTimer() const {
  int64_t next = std::min(
      {next_write_check_ns, next_pending_check_ns, next_starved_check_ns, NextWaitingNanos(),
       peer_links->NextTimerNanos(), saves.NextTimerNanos(), restores.NextTimerNanos(),
       options.peer_listener == nullptr ? replication->NextTimerNanos() : kNever});
  // A transport whose peer has to confirm the close reports it by an event; this look is for the
  // other transports.
  if (!closing.empty()) next = std::min(next, now_ns + int64_t{10'000'000});
  return next;
}

int64_t ShardExecutor::NextTimerNanos() const { return impl_->NextTimer(); }

bool ShardExecutor::Arm() {
  Impl& s = *impl_;
  if (!s.calls.empty() || !s.inbox.Arm()) return false;
  for (size_t i = 0; i < s.links.size(); ++i) {
    if (s.links[i].endpoint->Arm(rdma::SleepUntil::kAnything)) continue;
    while (i > 0) s.links[--i].endpoint->Disarm();
    s.inbox.Disarm();
    return false;
  }
  return true;
}

void ShardExecutor::Disarm() {
  for (auto& link : impl_->links) link.endpoint->Disarm();
  impl_->inbox.Disarm();
}

void ShardExecutor::AppendDescriptors(std::vector<int>* fds) const {
  if (impl_->inbox.wake_fd() >= 0) fds->push_back(impl_->inbox.wake_fd());
  if (impl_->control != nullptr && impl_->control->wake_fd() >= 0) {
    fds->push_back(impl_->control->wake_fd());
  }
  for (const auto& link : impl_->links) link.endpoint->AppendDescriptors(fds);
}

}  // namespace verbena::server
