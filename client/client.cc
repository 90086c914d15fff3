#include "verbena/client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client_impl.h"
#include "client/operations/operations.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/spec/optimizer_values.h"
#include "proto/spec/table_spec.h"
#include "rdma/memory/cuda/cuda_device.h"

namespace verbena {

using client::ClientCore;

namespace {

// FNV-1a, which is the same on all machines. The result has 63 bits and is not 0.
uint64_t RunOf(const std::string& cluster, const v1::Job& job) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : absl::StrCat(cluster, "/", job.name(), "/", job.generation())) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return std::max<uint64_t>(hash >> 1, 1);
}

}  // namespace

// ---- tables and regions -------------------------------------------------------------------------

absl::StatusOr<Table> Client::CreateTable(const v1::TableSpec& spec, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto info = impl_->Wait<absl::StatusOr<v1::Table>>(
      [&](ClientCore& core, auto done) { core.CreateTable(spec, deadline, std::move(done)); });
  if (!info.ok()) return info.status();
  Table table;
  const DenseLayout layout = LayoutOf(info->spec());
  table.state_ =
      std::make_shared<Table::State>(Table::State{impl_->client_id, *std::move(info), layout});
  return table;
}

absl::StatusOr<Table> Client::OpenTable(std::string_view name, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto info = impl_->Wait<absl::StatusOr<v1::Table>>([&](ClientCore& core, auto done) {
    core.OpenTable(std::string(name), deadline, std::move(done));
  });
  if (!info.ok()) return info.status();
  Table table;
  const DenseLayout layout = LayoutOf(info->spec());
  table.state_ =
      std::make_shared<Table::State>(Table::State{impl_->client_id, *std::move(info), layout});
  return table;
}

absl::StatusOr<std::vector<v1::Table>> Client::ListTables(const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  return impl_->Wait<absl::StatusOr<std::vector<v1::Table>>>(
      [&](ClientCore& core, auto done) { core.ListTables(deadline, std::move(done)); });
}

absl::Status Client::DropTable(std::string_view name, const CallOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  return impl_->Wait<absl::Status>([&](ClientCore& core, auto done) {
    core.DropTable(std::string(name), deadline, std::move(done));
  });
}

absl::Status Client::DropTable(const Table& table, const CallOptions& options) {
  if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
  const int64_t deadline = impl_->Deadline(options.timeout);
  return impl_->Wait<absl::Status>(
      [&](ClientCore& core, auto done) { core.DropTable(table.id(), deadline, std::move(done)); });
}

namespace {

using BlockOr = absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>>;

BlockOr AllocateBlock(size_t bytes, MemoryKind kind, int device) {
  if (bytes == 0) return absl::InvalidArgumentError("0 bytes");
  if (kind == MemoryKind::kHost) return rdma::MemoryBlock::Allocate(bytes, "verbena-region");
  auto opened = rdma::OpenCudaDevice(device);
  if (!opened.ok()) return opened.status();
  if (kind == MemoryKind::kCuda) return rdma::MemoryBlock::AllocateOn(*std::move(opened), bytes);
  return rdma::MemoryBlock::AllocatePinned(*std::move(opened), bytes, "verbena-region");
}

// The host reads pinned memory like other host memory.
BlockOr RegisterBlock(void* data, size_t bytes, MemoryKind kind, int device) {
  if (kind != MemoryKind::kCuda) return rdma::MemoryBlock::Register(data, bytes);
  auto opened = rdma::OpenCudaDevice(device);
  if (!opened.ok()) return opened.status();
  return rdma::MemoryBlock::RegisterOn(*std::move(opened), data, bytes);
}

absl::Status WithCall(const char* call, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(call, ": ", std::string(status.message())));
}

}  // namespace

absl::StatusOr<Region> Client::AllocateRegion(size_t bytes, MemoryKind kind, int device) {
  if (absl::Status s = impl_->CheckOpen(); !s.ok()) return s;
  auto block = AllocateBlock(bytes, kind, device);
  if (!block.ok()) return WithCall("AllocateRegion", block.status());
  Region region;
  region.state_ = std::make_shared<Region::State>(impl_->runtime, *std::move(block));
  return region;
}

absl::StatusOr<Region> Client::RegisterRegion(void* data, size_t bytes, MemoryKind kind,
                                              int device) {
  if (absl::Status s = impl_->CheckOpen(); !s.ok()) return s;
  auto block = RegisterBlock(data, bytes, kind, device);
  if (!block.ok()) return WithCall("RegisterRegion", block.status());
  Region region;
  region.state_ = std::make_shared<Region::State>(impl_->runtime, *std::move(block));
  return region;
}

// ---- data ---------------------------------------------------------------------------------------

absl::Status Client::Impl::CheckOpen() const {
  return runtime->Run([](client::ClientCore&) {}) ? absl::OkStatus() : runtime->WhyNot();
}

absl::Status Client::Impl::CheckTable(const Table& table) const {
  if (table.state_ == nullptr) return absl::InvalidArgumentError("the table is empty");
  if (table.state_->client == client_id) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table '", table.name(),
                   "' was opened by another client, or by one that was freed; open it with this "
                   "client (OpenTable)"));
}

absl::Status Client::Impl::CheckHandles(const Table& table, const Region& region,
                                        const char* role) const {
  if (absl::Status s = CheckTable(table); !s.ok()) return s;
  if (region.state_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", role, " region is empty, or was destroyed"));
  }
  if (region.state_->runtime != runtime) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", role, " region belongs to another client"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ClientCore::Slice> Client::Impl::SliceOf(const Table& table, const Region& region,
                                                        const Range& range, const char* role,
                                                        void* stream) const {
  if (absl::Status s = CheckHandles(table, region, role); !s.ok()) return s;
  ClientCore::Slice slice;
  slice.block = region.state_->block;
  slice.offset = range.region_offset;
  slice.first = range.first;
  slice.count = range.count;
  if (range.count == UINT64_MAX) {
    // An end out of range is kept: the core reports the error.
    if (range.first < table.elements()) slice.count = table.elements() - range.first;
  }
  if (const auto& device = slice.block->device(); device != nullptr) {
    auto mark = device->MarkStream(reinterpret_cast<uintptr_t>(stream));
    if (!mark.ok()) return WithCall(role, mark.status());
    slice.after = *std::move(mark);
  }
  return slice;
}

absl::StatusOr<uint8_t> Client::Impl::ArrayOf(const char* call, const Table& table,
                                              std::string_view array) const {
  const std::vector<std::string> names = table.state_arrays();
  const auto found = std::find(names.begin(), names.end(), array);
  if (found != names.end()) return static_cast<uint8_t>(found - names.begin() + 1);
  const v1::TableSpec& spec = table.spec();
  if (table.embedding()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": table '", spec.name(),
                     "' is an embedding table: checkpoints have the state of its rows"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": table '", spec.name(), "' of optimizer \"", spec.optimizer().name(),
                   "\" has no state array '", absl::string_view(array.data(), array.size()), "'; ",
                   names.empty() ? "it has none" : "it has: ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::unique_ptr<client::PushEncoding>> Client::Impl::Encode(std::string_view call,
                                                                           const Table& table,
                                                                           const Region& gradient,
                                                                           const Range& range) {
  absl::StatusOr<std::unique_ptr<client::PushEncoding>> encoding = nullptr;
  if (!HasPushCodec(table.spec())) return encoding;
  runtime->Run([&](ClientCore& core) {
    auto slice = SliceOf(table, gradient, range, "gradient", nullptr);
    if (slice.ok()) {
      encoding = core.StartEncoding(call, table.id(), *slice);
    } else {
      encoding = slice.status();
    }
  });
  if (encoding.ok() && *encoding != nullptr) (*encoding)->Run();
  return encoding;
}

Ticket Client::Push(const Table& table, const Region& gradient, const Range& range,
                    const PushOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto encoded = impl_->Encode("push", table, gradient, range);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (!encoded.ok()) return encoded.status();
        auto slice = impl_->SliceOf(table, gradient, range, "gradient", options.stream);
        if (!slice.ok()) return slice.status();
        return core.Push(table.id(), *slice, deadline, std::move(done), *std::move(encoded));
      });
  return ticket;
}

Ticket Client::Assign(const Table& table, const Region& parameters, const Range& range,
                      const PushOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, parameters, range, "parameter", options.stream);
        if (!slice.ok()) return slice.status();
        return core.Push(table.id(), *slice, deadline, std::move(done), nullptr,
                         client::Write::kAssign);
      });
  return ticket;
}

Ticket Client::AssignRows(const Table& table, absl::Span<const uint64_t> keys, const Region& rows,
                          const RowOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto sorted = impl_->SortKeys(table, keys);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckHandles(table, rows, "row"); !s.ok()) return s;
        return core.PushRows(table.id(), keys, {rows.state_->block, options.region_offset},
                             deadline, std::move(done), std::move(sorted), client::Write::kAssign);
      });
  return ticket;
}

namespace {

// Makes *done set `versions`, if not null, to the versions of the pulled chunks. Returns the object
// that collects them: `pulled`, or a new one if that is null.
std::shared_ptr<client::PulledState> Versions(const std::shared_ptr<StateVersions>& versions,
                                              std::shared_ptr<client::PulledState> pulled,
                                              ClientCore::Done* done) {
  if (versions == nullptr) return pulled;
  if (pulled == nullptr) pulled = std::make_shared<client::PulledState>();
  *done = [pulled, versions, then = std::move(*done)](absl::Status status) {
    if (status.ok()) {
      *versions = {.least_version = pulled->least_version,
                   .greatest_version = pulled->greatest_version};
      if (pulled->applies_known) {
        versions->least_applies = pulled->least_applies;
        versions->greatest_applies = pulled->greatest_applies;
      } else {
        versions->least_applies = UINT64_MAX;
      }
    }
    then(std::move(status));
  };
  return pulled;
}

}  // namespace

namespace {

absl::StatusOr<uint32_t> MaxStaleness(const PullOptions& options) {
  if (options.read_from == ReadFrom::kPrimary) return 0;
  const int64_t ms = absl::ToInt64Milliseconds(options.max_staleness);
  if (ms >= 1 && ms <= int64_t{UINT32_MAX}) return static_cast<uint32_t>(ms);
  return absl::InvalidArgumentError(absl::StrCat("pull: max_staleness is ",
                                                 absl::FormatDuration(options.max_staleness),
                                                 "; allowed: 1 ms to ", UINT32_MAX, " ms"));
}

}  // namespace

Ticket Client::Pull(const Table& table, const Region& destination, const Range& range,
                    const PullOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, destination, range, "destination", options.stream);
        if (!slice.ok()) return slice.status();
        const auto staleness = MaxStaleness(options);
        if (!staleness.ok()) return staleness.status();
        auto pulled = Versions(options.versions, nullptr, &done);
        return core.Pull(table.id(), *slice, options.min_version, impl_->Deadline(options.timeout),
                         std::move(done), std::move(pulled), *staleness);
      });
  return ticket;
}

Ticket Client::PullState(const Table& table, std::string_view array, const Region& destination,
                         const Range& range, const StateOptions& options) {
  auto pulled = std::make_shared<client::PulledState>();
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, destination, range, "destination", options.stream);
        if (!slice.ok()) return slice.status();
        const auto index = impl_->ArrayOf("pull of state", table, array);
        if (!index.ok()) return index.status();
        pulled->array = *index;
        auto collected = Versions(options.versions, pulled, &done);
        return core.Pull(table.id(), *slice, options.min_version, impl_->Deadline(options.timeout),
                         std::move(done), std::move(collected));
      });
  return ticket;
}

Ticket Client::AssignState(const Table& table, std::string_view array, uint64_t applies,
                           const Region& state, const Range& range, const PushOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        auto slice = impl_->SliceOf(table, state, range, "state", options.stream);
        if (!slice.ok()) return slice.status();
        const auto index = impl_->ArrayOf("assignment of state", table, array);
        if (!index.ok()) return index.status();
        return core.Push(table.id(), *slice, deadline, std::move(done), nullptr,
                         client::Write::kState, {*index, applies});
      });
  return ticket;
}

Ticket Client::PushPull(const Table& table, const Region& gradient, const Region& destination,
                        const Range& range, const PushOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto encoded = impl_->Encode("push-pull", table, gradient, range);
  Ticket ticket;
  ticket.state_ = impl_->Launch([&](ClientCore& core,
                                    ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
    if (!encoded.ok()) return encoded.status();
    auto from = impl_->SliceOf(table, gradient, range, "gradient", options.stream);
    if (!from.ok()) return from.status();
    auto to = impl_->SliceOf(table, destination, range, "destination", options.stream);
    if (!to.ok()) return to.status();
    to->offset = options.destination_offset.value_or(range.region_offset);
    return core.PushPull(table.id(), *from, *to, deadline, std::move(done), *std::move(encoded));
  });
  return ticket;
}

Ticket Client::EndStep(const Table& table, const PushOptions& options) {
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
        return core.EndStep(table.id(), impl_->Deadline(options.timeout), std::move(done));
      });
  return ticket;
}

Ticket Client::SetOptimizer(const Table& table, const OptimizerChange& change,
                            const OptimizerOptions& options) {
  auto update = std::make_shared<client::OptimizerUpdate>();
  if (change.rate.has_value()) update->values.push_back(MakeNamedValue("rate", *change.rate));
  for (const auto& [name, value] : change.parameters) {
    update->values.push_back(MakeNamedValue(name, value));
  }
  Ticket ticket;
  ticket.state_ = impl_->Launch([&](ClientCore& core,
                                    ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
    if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
    if (options.in_force != nullptr) {
      done = [update, in_force = options.in_force, then = std::move(done)](absl::Status status) {
        if (status.ok()) *in_force = {update->first, update->last};
        then(std::move(status));
      };
    }
    return core.SetOptimizer(table.id(), update, impl_->Deadline(options.timeout), std::move(done));
  });
  return ticket;
}

absl::Status Client::SetPriority(const Table& table, int32_t priority) {
  if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
  absl::Status status;
  const bool open = impl_->runtime->Run(
      [&](ClientCore& core) { status = core.SetPriority(table.id(), priority); });
  return open ? status : impl_->runtime->WhyNot();
}

// ---- state --------------------------------------------------------------------------------------

int Client::rank() const {
  int rank = -1;
  impl_->runtime->Run([&](ClientCore& core) { rank = core.statistics().rank; });
  return rank;
}

JobRun Client::run() const {
  JobRun run;
  impl_->runtime->Run([&](ClientCore& core) {
    run.incarnation = core.incarnation();
    const v1::Job* job = FindJobNamed(impl_->options.job, core.view());
    if (job == nullptr) return;
    run.id = RunOf(core.view().cluster_id(), *job);
    run.live_workers = static_cast<uint32_t>(
        std::count_if(job->members().begin(), job->members().end(),
                      [](const v1::Worker& worker) { return worker.rank() >= 0; }));
  });
  return run;
}

absl::StatusOr<Membership> Client::membership(const Table& table) const {
  if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
  Membership membership;
  std::vector<Member>& members = membership.members;
  const bool ran = impl_->runtime->Run([&](ClientCore& core) {
    membership.first_step = client::OwnFirstStep(core, table.id());
    const v1::Job* job = FindJobNamed(impl_->options.job, core.view());
    if (job == nullptr) return;
    for (const v1::Worker& worker : job->members()) {
      if (worker.rank() < 0) continue;
      const v1::FirstStep* first = FirstStepOf(table.id(), worker, *job);
      members.push_back({worker.incarnation(), worker.name(), worker.rank(),
                         first == nullptr ? 0 : first->step()});
    }
  });
  if (!ran) return impl_->runtime->WhyNot();
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.rank < b.rank; });
  return membership;
}

ClientStatistics Client::statistics() const {
  client::CoreStatistics core_statistics;
  impl_->runtime->Run([&](ClientCore& core) { core_statistics = core.statistics(); });
  ClientStatistics statistics;
  static_cast<ClientCounters&>(statistics) = core_statistics;
  for (auto& lane : core_statistics.lanes) {
    statistics.lanes.push_back(
        {lane.server, lane.shard, lane.transport, lane.reason, lane.state, lane.device, lane.rail});
  }
  for (auto& path : core_statistics.device_paths) {
    statistics.gpu_paths.push_back({path.memory, path.transport, path.device,
                                    std::string(rdma::DeviceRouteName(path.path.route)),
                                    path.path.reason, std::string(path.refusal.message())});
  }
  statistics.missing_transports = impl_->missing_transports;
  return statistics;
}

}  // namespace verbena
