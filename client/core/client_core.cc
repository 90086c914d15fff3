#include "client/core/client_core.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "client/core/client_core_impl.h"
#include "client/core/failpoints.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {
namespace {

SessionOptions SessionOptionsOf(const CoreOptions& options) {
  return {options.cluster,     options.job,  options.name,    options.expected_workers,
          options.max_workers, options.rank, options.observer};
}

std::vector<LaneTransport> TransportsOf(const CoreOptions& options) {
  std::vector<LaneTransport> transports;
  for (const auto& t : options.transports) transports.push_back({t.endpoint, t.host, t.rail});
  return transports;
}

}  // namespace

ClientCore::Impl::Impl(CoreOptions o)
    : options(std::move(o)),
      random(options.seed),
      staging(options.staging_bytes),
      packing(options.staging_bytes),
      keeper(options.cluster, options.control, options.clock, options.log,
             [this](int64_t now) { registrar.Report(now); }),
      registrar(options.clock, options.log),
      session(SessionOptionsOf(options), options.control, options.clock, &random, &keeper,
              {[this](const ViewDifference& what) { OnView(what); },
               [this](absl::Status status) { Close(status); }}),
      tracker(&session, &operations, &staging, &packing, options.clock, &random,
              options.direct_only),
      lanes(TransportsOf(options), options.missing, &session, options.control, options.clock,
            &random, keeper.current_call(), &registrar, &tracker) {
  tracker.set_lanes(&lanes);
}

ClientCore::ClientCore(CoreOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ClientCore::~ClientCore() = default;

// ---- control ------------------------------------------------------------------------------------

void ClientCore::Join(int64_t deadline_ns, Done done) {
  impl_->session.Join(deadline_ns, std::move(done));
}

void ClientCore::Leave(int64_t deadline_ns, Done done) {
  impl_->Close(absl::CancelledError("the client left the cluster"));
  impl_->session.Leave(deadline_ns, std::move(done));
}

void ClientCore::CreateTable(const v1::TableSpec& spec, int64_t deadline_ns,
                             std::function<void(absl::StatusOr<v1::Table>)> done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  v1::TableSpec own = spec;
  if (own.job().empty()) own.set_job(impl_->options.job);
  auto normal = NormalizeTableSpec(std::move(own));
  if (!normal.ok()) return done(normal.status());
  impl_->session.CreateTable(*normal, impl_->tracker.admissions.EndedSteps(), deadline_ns,
                             impl_->Remembering(std::move(done)));
}

void ClientCore::OpenTable(const std::string& name, int64_t deadline_ns,
                           std::function<void(absl::StatusOr<v1::Table>)> done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.OpenTable(name, deadline_ns, impl_->Remembering(std::move(done)));
}

void ClientCore::DropTable(const std::string& name, int64_t deadline_ns, Done done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.DropTable(name, deadline_ns, std::move(done));
}

void ClientCore::DropTable(uint32_t id, int64_t deadline_ns, Done done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.DropTable(
      id, deadline_ns, [impl = impl_.get(), id, done = std::move(done)](absl::Status status) {
        done(absl::IsNotFound(status) ? impl->NoSuchTable("drop", id) : std::move(status));
      });
}

void ClientCore::ListTables(int64_t deadline_ns,
                            std::function<void(absl::StatusOr<std::vector<v1::Table>>)> done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.ListTables(deadline_ns, std::move(done));
}

// ---- operations ---------------------------------------------------------------------------------

void ClientCore::Cancel(OperationId id) {
  Operation* operation = impl_->operations.Find(id);
  if (operation == nullptr || !operation->live) return;
  impl_->WithdrawPatience();
  impl_->tracker.settlement.End(operation, absl::CancelledError("the operation was cancelled"));
}

bool ClientCore::BufferReleased(OperationId id) const {
  const Operation* operation = impl_->operations.Find(id);
  if (operation == nullptr) return true;
  // Failpoint: released at the deadline while its record is still in flight.
  if (!operation->live && operation->buffers > 0 &&
      VERBENA_FAILPOINT(client, release_buffer_at_deadline)) {
    return true;
  }
  return operation->buffers == 0;
}

void ClientCore::ReleaseBlock(uint64_t block_id) {
  impl_->WithdrawPatience();
  const CurrentCall::Scope scope(impl_->keeper.current_call(), "releasing a region", 0);
  impl_->tracker.ReleaseBlock(block_id);
}
bool ClientCore::InUse(uint64_t block_id) const { return impl_->tracker.InUse(block_id); }

// ---- progress -----------------------------------------------------------------------------------

bool ClientCore::Poll() { return impl_->lanes.Poll(); }

bool ClientCore::RunOnce() {
  Impl& c = *impl_;
  c.missed = false;
  bool worked = c.options.control->RunOnce();
  worked |= c.lanes.Poll();
  if (c.lanes.RunMemory()) c.tracker.staging.OnMemoryReady();
  const int64_t now = c.options.clock->NowNanos();
  c.tracker.admissions.RunOnce(now);
  worked |= c.session.RunOnce(now);
  worked |= c.lanes.RunTimers(now);
  worked |= c.tracker.RunTimers(now);
  worked |= c.tracker.poster.Pump();
  worked |= c.operations.Deliver();
  return worked;
}

bool ClientCore::long_turn() const { return impl_->tracker.long_turn(); }

bool ClientCore::RunControl() {
  const bool answered = impl_->options.control->RunOnce();
  const int64_t now = impl_->options.clock->NowNanos();
  impl_->tracker.admissions.RunOnce(now);
  return impl_->session.RunOnce(now) || answered;
}

int64_t ClientCore::NextTimerNanos() const {
  if (impl_->operations.has_finished() || impl_->missed) return 0;
  return std::min({impl_->tracker.admissions.next_ns(), impl_->session.NextTimerNanos(),
                   impl_->lanes.NextTimerNanos(), impl_->tracker.NextTimerNanos()});
}

bool ClientCore::HasOperations() const {
  return impl_->operations.has_finished() || impl_->operations.first_live() != nullptr;
}

bool ClientCore::Busy() const {
  return HasOperations() || impl_->tracker.busy() || impl_->session.busy();
}

bool ClientCore::Arm() {
  // With one operation, only the last reply can end anything that a thread waits for.
  const Operation* const only = impl_->operations.first_live();
  const bool patient = only != nullptr && Operations::next_live(only) == nullptr &&
                       impl_->tracker.poster.OnlyAnswersLeft(only);
  const bool armed =
      impl_->lanes.Arm(patient ? rdma::SleepUntil::kLastAnswer : rdma::SleepUntil::kAnything);
  impl_->patient = patient && armed;
  return armed;
}

void ClientCore::Disarm() {
  impl_->patient = false;
  impl_->lanes.Disarm();
}

// The owner holds the core during this call and the posts that follow, so the endpoints see the
// withdrawal before the requests (Endpoint::WakeOnAnything()).
void ClientCore::Impl::WithdrawPatience() {
  if (!patient || VERBENA_FAILPOINT(client, keep_patience)) return;
  patient = false;
  if (!lanes.WakeOnAnything()) missed = true;
}

void ClientCore::AppendDescriptors(std::vector<int>* fds) const {
  impl_->lanes.AppendDescriptors(fds);
  const int control = impl_->options.control->wake_fd();
  if (control >= 0) fds->push_back(control);
  if (impl_->registrar.threaded()) fds->push_back(impl_->registrar.wake_fd());
}

LeaseKeeper& ClientCore::lease_keeper() { return impl_->keeper; }
Registrar& ClientCore::registrar() { return impl_->registrar; }

uint64_t ClientCore::incarnation() const { return impl_->session.incarnation(); }
const v1::ClusterView& ClientCore::view() const { return impl_->session.view(); }

static_assert(std::tuple_size_v<decltype(ClientCounters::staleness)> == kStalenessBuckets);

CoreStatistics ClientCore::statistics() const {
  static constexpr const char* kStates[] = {"idle", "asking", "opening", "open", "closing"};
  CoreStatistics statistics;
  statistics.rank = impl_->session.rank();
  static_cast<ClientCounters&>(statistics) = impl_->tracker.counters;
  statistics.tables = impl_->tracker.tables.size();
  const LaneCounters lanes = impl_->lanes.counters();
  statistics.lanes_opened = lanes.opened;
  statistics.lanes_lost = lanes.lost;
  statistics.credit_stalls = lanes.credit_stalls;
  for (const auto& stream : impl_->lanes.streams()) {
    if (stream->server == 0 || impl_->session.FindServer(stream->server) == nullptr) continue;
    statistics.lanes.push_back({stream->server, stream->shard, stream->transport, stream->reason,
                                kStates[static_cast<int>(stream->state)], stream->device,
                                stream->rail, static_cast<uint32_t>(stream->posted.size()),
                                static_cast<uint32_t>(stream->pulls.size())});
  }
  for (const auto& [id, table] : impl_->tracker.tables.all()) {
    if (table->first_step > 0) statistics.first_steps[id] = table->first_step;
  }
  for (const DeviceReach& reach : impl_->lanes.memory().reaches()) {
    const rdma::Endpoint& endpoint = *impl_->options.transports[reach.endpoint].endpoint;
    statistics.device_paths.push_back({reach.device->name(), std::string(endpoint.transport()),
                                       endpoint.device(), reach.path, reach.last_refusal});
  }
  return statistics;
}

uint64_t OwnFirstStep(const ClientCore& core, uint32_t table) {
  const std::map<uint32_t, uint64_t> used = core.statistics().first_steps;
  if (const auto it = used.find(table); it != used.end()) return it->second;
  for (const v1::Job& job : core.view().jobs()) {
    const v1::Worker* own = FindMember(core.incarnation(), job);
    const v1::FirstStep* first = own == nullptr ? nullptr : FirstStepOf(table, *own, job);
    if (first != nullptr) return first->step();
  }
  return 0;
}

}  // namespace verbena::client
