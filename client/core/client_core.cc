#include "client/core/client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/journal.h"
#include "client/core/lane_set.h"
#include "client/core/operations.h"
#include "client/core/session.h"
#include "client/core/staging.h"
#include "proto/table_spec.h"
#include "rdma/sim/sim_network.h"

namespace verbena::client {
namespace {

// EndStep() calls of a table whose steps are not known committed: a worker that runs away is told.
constexpr uint64_t kMaxStepsAhead = 64;

SessionOptions SessionOptionsOf(const CoreOptions& options) {
  return {options.cluster,          options.job,  options.name,
          options.expected_workers, options.rank, options.observer};
}

std::vector<LaneTransport> TransportsOf(const CoreOptions& options) {
  std::vector<LaneTransport> transports;
  for (const auto& t : options.transports) transports.push_back({t.endpoint, t.host});
  return transports;
}

}  // namespace

struct ClientCore::Impl {
  explicit Impl(CoreOptions o)
      : options(std::move(o)),
        random(options.seed),
        staging(options.staging_bytes),
        session(SessionOptionsOf(options), options.control, options.clock, &random,
                {[this] { OnView(); }, [this](absl::Status status) { Close(status); }}),
        journal(&session, &operations, &staging, options.clock, &random),
        lanes(TransportsOf(options), options.missing, &session, options.control, options.clock,
              &random, &journal) {
    journal.set_lanes(&lanes);
  }

  void OnView() {
    lanes.OnView();
    journal.OnView();
  }
  void Close(const absl::Status& status) {
    journal.EndAll(status);
    lanes.CloseAll(status);
  }

  // What a call is about, checked.
  struct Target {
    TableState* table = nullptr;
    uint32_t first = 0, chunks = 0;
  };
  absl::StatusOr<Target> Check(std::string_view what, uint32_t table, const Slice& slice,
                               bool push);
  absl::Status CheckRange(const TableState& table, const Slice& slice) const;
  absl::Status CheckMemory(const TableState& table, const Slice& slice) const;
  absl::StatusOr<Operation*> Start(Operation::Kind kind, TableState* table, int64_t deadline_ns,
                                   Done done);
  OperationId Started(Operation* operation) {
    journal.Started(operation);
    journal.Pump();
    return operations.IdOf(*operation);
  }

  const CoreOptions options;
  Random random;
  Operations operations;
  Staging staging;
  Session session;
  Journal journal;
  LaneSet lanes;
};

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
  impl_->session.CreateTable(*normal, deadline_ns, std::move(done));
}

void ClientCore::OpenTable(const std::string& name, int64_t deadline_ns,
                           std::function<void(absl::StatusOr<v1::Table>)> done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.OpenTable(name, deadline_ns, std::move(done));
}

void ClientCore::DropTable(const std::string& name, int64_t deadline_ns, Done done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.DropTable(name, deadline_ns, std::move(done));
}

void ClientCore::ListTables(int64_t deadline_ns,
                            std::function<void(absl::StatusOr<std::vector<v1::Table>>)> done) {
  if (absl::Status s = impl_->session.Usable(); !s.ok()) return done(s);
  impl_->session.ListTables(deadline_ns, std::move(done));
}

// ---- checks -------------------------------------------------------------------------------------

absl::Status ClientCore::Impl::CheckRange(const TableState& table, const Slice& slice) const {
  const DenseLayout& layout = table.layout;
  const std::string name = absl::StrCat("table '", table.name(), "'");
  if (slice.count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the range has 0 elements; ", name, " has ", layout.elements));
  }
  if (slice.first >= layout.elements || slice.count > layout.elements - slice.first) {
    return absl::InvalidArgumentError(absl::StrCat("the range [", slice.first, ", +", slice.count,
                                                   ") lies outside ", name, ", which has ",
                                                   layout.elements, " elements"));
  }
  const uint64_t end = slice.first + slice.count;
  if (slice.first % layout.chunk_elements != 0 ||
      (end % layout.chunk_elements != 0 && end != layout.elements)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the range [", slice.first, ", ", end, ") does not start and end at chunks of ", name,
        ": multiples of ", layout.chunk_elements, " elements, or its end ", layout.elements));
  }
  return absl::OkStatus();
}

absl::Status ClientCore::Impl::CheckMemory(const TableState& table, const Slice& slice) const {
  if (slice.block == nullptr) {
    return absl::InvalidArgumentError("the region is empty, or was destroyed");
  }
  const size_t size = slice.block->size();
  const uint64_t needed = slice.count * table.layout.element_bytes;
  if (slice.offset % sizeof(float) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region_offset is ", slice.offset, "; allowed: multiples of ", sizeof(float)));
  }
  if (slice.offset > size || needed > size - slice.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("the region is too small: ", slice.count, " elements of table '", table.name(),
                     "' need ", needed, " bytes; the region has ", size, " bytes, ",
                     slice.offset > size ? 0 : size - slice.offset, " from offset ", slice.offset));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClientCore::Impl::Target> ClientCore::Impl::Check(std::string_view what, uint32_t id,
                                                                 const Slice& slice, bool push) {
  const absl::string_view call(what.data(), what.size());
  if (absl::Status s = session.Usable(); !s.ok()) return s;
  if (push && options.observer) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": an observer only pulls"));
  }
  Target target;
  target.table = journal.FindTable(id);
  if (target.table == nullptr) {
    return absl::NotFoundError(absl::StrCat(call, ": no table with id ", id, " in cluster ",
                                            options.cluster, "; it may have been dropped"));
  }
  absl::Status status = CheckRange(*target.table, slice);
  if (status.ok()) status = CheckMemory(*target.table, slice);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(call, ": ", status.message()));
  const DenseLayout& layout = target.table->layout;
  target.first = static_cast<uint32_t>(slice.first / layout.chunk_elements);
  target.chunks =
      static_cast<uint32_t>((slice.count + layout.chunk_elements - 1) / layout.chunk_elements);
  if (push && target.table->sync) {
    for (uint32_t c = target.first; c < target.first + target.chunks; ++c) {
      if (target.table->chunk_pushed[c] != target.table->step + 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          call, ": chunk ", c, " of table '", target.table->name(), "' was pushed in step ",
          target.table->step, " already: a step takes one contribution; EndStep() opens the next"));
    }
  }
  return target;
}

absl::StatusOr<Operation*> ClientCore::Impl::Start(Operation::Kind kind, TableState* table,
                                                   int64_t deadline_ns, Done done) {
  Operation* operation =
      operations.Start(kind, table, options.clock->NowNanos(), deadline_ns, std::move(done));
  if (operation == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxOperations, " operations are outstanding; wait for some"));
  }
  operation->step = table->step;
  return operation;
}

// ---- data ---------------------------------------------------------------------------------------

absl::StatusOr<OperationId> ClientCore::Push(uint32_t table, const Slice& slice,
                                             int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  auto target = c.Check("push", table, slice, true);
  if (!target.ok()) return target.status();
  auto operation = c.Start(Operation::Kind::kPush, target->table, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.journal.CheckLost(*target->table, target->first, target->chunks);
  if (!lost.ok()) {
    c.journal.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  (*operation)->blocks[0] = slice.block;
  c.journal.AddPushes(*operation, target->first, target->chunks, slice.offset);
  if (target->table->sync) {
    c.journal.WaitForCommit(*operation, target->first, target->chunks, target->table->step + 1);
  }
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::Pull(uint32_t table, const Slice& slice,
                                             std::optional<uint64_t> min_version,
                                             int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  auto target = c.Check("pull", table, slice, false);
  if (!target.ok()) return target.status();
  auto operation = c.Start(Operation::Kind::kPull, target->table, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.journal.CheckLost(*target->table, target->first, target->chunks);
  if (!lost.ok()) {
    c.journal.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  const uint64_t version = min_version.value_or(target->table->VersionToPull());
  (*operation)->version = version;
  (*operation)->blocks[1] = slice.block;
  c.journal.AddPulls(*operation, target->first, target->chunks, slice.offset, version);
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::PushPull(uint32_t table, const Slice& gradient,
                                                 const Slice& destination, int64_t deadline_ns,
                                                 Done done) {
  Impl& c = *impl_;
  auto target = c.Check("push-pull", table, gradient, true);
  if (!target.ok()) return target.status();
  if (absl::Status s = c.CheckMemory(*target->table, destination); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat("push-pull destination: ", s.message()));
  }
  if (destination.first != gradient.first || destination.count != gradient.count) {
    return absl::InvalidArgumentError("push-pull: both slices must be of the same range");
  }
  TableState* state = target->table;
  auto operation = c.Start(Operation::Kind::kPushPull, state, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.journal.CheckLost(*state, target->first, target->chunks);
  if (!lost.ok()) {
    c.journal.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  const uint64_t version = state->sync ? state->step + 1 : state->VersionToPull();
  (*operation)->version = version;
  (*operation)->blocks[0] = gradient.block;
  (*operation)->blocks[1] = destination.block;
  c.journal.AddPushPulls(*operation, target->first, target->chunks, gradient.offset,
                         destination.offset, version);
  if (state->sync && target->chunks == state->chunks()) {
    (*operation)->ends_step = true;
    c.journal.AddEndStep(state, nullptr, false);
  }
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::EndStep(uint32_t table, int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  if (absl::Status s = c.session.Usable(); !s.ok()) return s;
  if (c.options.observer) {
    return absl::FailedPreconditionError("end-step: an observer only pulls");
  }
  TableState* state = c.journal.FindTable(table);
  if (state == nullptr) {
    return absl::NotFoundError(absl::StrCat("end-step: no table with id ", table, " in cluster ",
                                            c.options.cluster, "; it may have been dropped"));
  }
  if (state->sync && state->step >= state->committed + kMaxStepsAhead) {
    return absl::ResourceExhaustedError(
        absl::StrCat("end-step: ", kMaxStepsAhead, " steps of table '", state->name(),
                     "' are ended and not committed; wait for them"));
  }
  auto operation = c.Start(Operation::Kind::kEndStep, state, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.journal.CheckLost(*state, 0, state->chunks());
  // What is left of the table goes on: the step ends there all the same.
  c.journal.AddEndStep(state, *operation, state->sync);
  if (!lost.ok()) {
    c.journal.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  if (state->sync) c.journal.WaitForCommit(*operation, 0, 0, state->step);
  return c.Started(*operation);
}

void ClientCore::Cancel(OperationId id) {
  Operation* operation = impl_->operations.Find(id);
  if (operation == nullptr || !operation->live) return;
  impl_->journal.End(operation, absl::CancelledError("the operation was cancelled"));
}

bool ClientCore::BufferReleased(OperationId id) const {
  const Operation* operation = impl_->operations.Find(id);
  if (operation == nullptr) return true;
  // A deliberate fault for tests: given back at the deadline, with its record still out.
  if (rdma::planted_bugs().release_buffer_at_deadline && !operation->live) return true;
  return operation->buffers == 0;
}

void ClientCore::ReleaseBlock(uint64_t block_id) { impl_->journal.ReleaseBlock(block_id); }
bool ClientCore::InUse(uint64_t block_id) const { return impl_->journal.InUse(block_id); }

// ---- progress -----------------------------------------------------------------------------------

bool ClientCore::Poll() { return impl_->lanes.Poll(); }

bool ClientCore::RunOnce() {
  Impl& c = *impl_;
  bool worked = c.options.control->RunOnce();
  worked |= c.lanes.Poll();
  const int64_t now = c.options.clock->NowNanos();
  worked |= c.session.RunOnce(now);
  worked |= c.lanes.RunTimers(now);
  worked |= c.journal.RunTimers(now);
  worked |= c.journal.Pump();
  worked |= c.operations.Deliver();
  return worked;
}

bool ClientCore::RunControl() {
  const bool answered = impl_->options.control->RunOnce();
  return impl_->session.RunOnce(impl_->options.clock->NowNanos()) || answered;
}

int64_t ClientCore::NextTimerNanos() const {
  if (impl_->operations.has_finished()) return 0;
  return std::min({impl_->session.NextTimerNanos(), impl_->lanes.NextTimerNanos(),
                   impl_->journal.NextTimerNanos()});
}

bool ClientCore::Busy() const {
  return impl_->operations.has_finished() || impl_->operations.first_live() != nullptr ||
         impl_->journal.busy() || impl_->session.busy();
}

bool ClientCore::Arm() { return impl_->lanes.Arm(); }
void ClientCore::Disarm() { impl_->lanes.Disarm(); }

void ClientCore::AppendDescriptors(std::vector<int>* fds) const {
  impl_->lanes.AppendDescriptors(fds);
  const int control = impl_->options.control->wake_fd();
  if (control >= 0) fds->push_back(control);
}

uint64_t ClientCore::incarnation() const { return impl_->session.incarnation(); }
int ClientCore::rank() const { return impl_->session.rank(); }
const v1::ClusterView& ClientCore::view() const { return impl_->session.view(); }

CoreStatistics ClientCore::statistics() const {
  static constexpr const char* kStates[] = {"idle", "asking", "opening", "open", "closing"};
  const JournalCounters& journal = impl_->journal.counters();
  const LaneCounters lanes = impl_->lanes.counters();
  CoreStatistics statistics;
  statistics.bytes_pushed = journal.bytes_pushed;
  statistics.bytes_pulled = journal.bytes_pulled;
  statistics.pushes = journal.pushes;
  statistics.pulls = journal.pulls;
  statistics.records_resent = journal.resent;
  statistics.staged_bytes = journal.staged_bytes;
  statistics.staleness = journal.staleness;
  statistics.lanes_opened = lanes.opened;
  statistics.lanes_lost = lanes.lost;
  statistics.credit_stalls = lanes.credit_stalls;
  for (const auto& stream : impl_->lanes.streams()) {
    if (stream->server == 0 || impl_->session.FindServer(stream->server) == nullptr) continue;
    statistics.lanes.push_back({stream->server, stream->shard, stream->transport, stream->reason,
                                kStates[static_cast<int>(stream->state)], stream->device});
  }
  return statistics;
}

}  // namespace verbena::client
