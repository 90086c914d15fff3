#include "worker/stores/client_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/spec/option_value.h"
#include "worker/cuda/stream.h"
#include "worker/stores/option_differences.h"
#include "worker/train/job_progress.h"

namespace verbena::worker {
namespace {

bool Stopped(const ClusterOptions& options) {
  return options.stop != nullptr && options.stop->load(std::memory_order_relaxed);
}

v1::Consistency ConsistencyOf(Consistency consistency) {
  switch (consistency) {
    case Consistency::kSync:
      return v1::CONSISTENCY_SYNC;
    case Consistency::kSsp:
      return v1::CONSISTENCY_SSP;
    case Consistency::kAsync:
      return v1::CONSISTENCY_ASYNC;
  }
  return v1::CONSISTENCY_UNSPECIFIED;
}

bool MayHave(const TableOption& option, const std::string& value, TableKind kind) {
  if (option.kind != TableKind::kAny && option.kind != kind) return false;
  if (FieldOf(option).enum_type() == nullptr) return true;
  const std::vector<std::string> words = EnumWords(option, kind);
  return std::find(words.begin(), words.end(), value) != words.end();
}

// The command line has checked the names and values.
void SetOptions(const TrainingSpec& spec, TableKind kind, v1::TableSpec* table) {
  for (const auto& [name, value] : spec.table_options) {
    const TableOption* option = FindTableOption(name);
    if (option == nullptr || !MayHave(*option, value, kind)) continue;
    (void)SetOption(*option, value, table);
  }
}

bool IsNarrow(v1::DType dtype) { return dtype == v1::DTYPE_BF16 || dtype == v1::DTYPE_F16; }

// The fields that tables of all kinds share. `index` counts the tables of the job.
v1::TableSpec BaseSpec(const std::string& name, Tensor::Initial initial, double scale, size_t index,
                       const std::string& job, const TrainingSpec& spec) {
  v1::TableSpec table;
  table.set_name(absl::StrCat(job, "/", name));
  table.set_job(job);
  table.set_dtype(v1::DTYPE_F32);
  table.set_gradient_dtype(v1::DTYPE_F32);
  table.set_consistency(ConsistencyOf(spec.consistency));
  table.set_staleness(spec.staleness);
  table.set_reduction(spec.sum ? v1::REDUCTION_SUM : v1::REDUCTION_MEAN);
  table.set_non_finite(v1::NON_FINITE_REJECT);
  v1::Initializer* initializer = table.mutable_initializer();
  switch (initial) {
    case Tensor::Initial::kZeros:
      initializer->set_kind(v1::Initializer::ZEROS);
      break;
    case Tensor::Initial::kUniform:
      initializer->set_kind(v1::Initializer::UNIFORM);
      initializer->set_a(-scale);
      initializer->set_b(scale);
      break;
    case Tensor::Initial::kNormal:
      initializer->set_kind(v1::Initializer::NORMAL);
      initializer->set_a(0);
      initializer->set_b(scale);
      break;
  }
  // Tables of one shape must not start equal.
  initializer->set_seed(TableSeed(spec.seed, index));
  v1::Optimizer* optimizer = table.mutable_optimizer();
  optimizer->set_name(spec.optimizer);
  optimizer->set_rate(spec.rate);
  if (spec.weight_decay) (*optimizer->mutable_parameters())["weight_decay"] = *spec.weight_decay;
  optimizer->set_clip_global_norm(spec.clip_global_norm);
  optimizer->mutable_schedule()->set_warmup_steps(spec.warmup_applies);
  if (spec.cosine_applies > 0) {
    optimizer->mutable_schedule()->set_kind(v1::Schedule::COSINE);
    optimizer->mutable_schedule()->set_period(spec.cosine_applies);
  }
  return table;
}

}  // namespace

v1::TableSpec TableSpecOf(const Tensor& tensor, size_t index, const std::string& job,
                          const TrainingSpec& spec) {
  v1::TableSpec table = BaseSpec(tensor.name, tensor.initial, tensor.scale, index, job, spec);
  for (const uint64_t dimension : tensor.shape) table.add_shape(dimension);
  if (tensor.counter) {
    table.clear_optimizer();
    table.mutable_optimizer()->set_name("sgd");
    table.mutable_optimizer()->set_rate(1);
    table.set_reduction(v1::REDUCTION_SUM);
    return table;  // in f32: sums of small integers are exact
  }
  SetOptions(spec, TableKind::kDense, &table);
  return table;
}

v1::TableSpec TableSpecOf(const EmbeddingTable& table, size_t index, const std::string& job,
                          const TrainingSpec& spec) {
  v1::TableSpec result = BaseSpec(table.name, table.initial, table.scale, index, job, spec);
  result.set_dim(table.dim);
  SetOptions(spec, TableKind::kEmbedding, &result);
  return result;
}

absl::StatusOr<std::unique_ptr<ClientStore>> ClientStore::Connect(
    const ClusterOptions& options, const Layout& layout, absl::Span<const EmbeddingTable> tables,
    const TrainingSpec& spec) {
  ClientOptions client_options;
  client_options.cluster = options.cluster;
  client_options.job = options.job;
  client_options.expected_workers = options.workers;
  client_options.max_workers = options.max_workers;
  client_options.rank = options.max_workers > 0 ? -1 : options.rank;
  client_options.transport = options.transport;
  client_options.rdma = options.rdma;
  client_options.fabric = options.fabric;
  client_options.tls = options.tls;
  client_options.token_file = options.token_file;
  client_options.timeout = options.timeout;
  std::unique_ptr<ClientStore> store(new ClientStore(options, layout));
  if (options.devices.size() > 1) {  // before others wait for this worker
    auto group = GpuGroup::Open(options.devices);
    if (!group.ok()) return group.status();
    store->group_ = *std::move(group);
  }
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(client_options);
  if (!client.ok()) return client.status();
  store->client_ = *std::move(client);
  if (absl::Status status = store->CreateTables(tables, spec); !status.ok()) return status;
  if (absl::Status status = store->AllocateRegions(spec); !status.ok()) return status;
  return store;
}

absl::Status ClientStore::AllocateRegions(const TrainingSpec& spec) {
  if (on_device()) {
    if (absl::Status status = AllocateOnDevices(); !status.ok()) return status;
  }
  v1::TableSpec options;
  SetOptions(spec, TableKind::kDense, &options);
  struct Wanted {
    std::optional<Region>* region;
    size_t element_bytes;
    bool needed;
  };
  const Wanted all[] = {
      {&gradient_, sizeof(float), true},
      {&parameters_, sizeof(float), !on_device()},
      {&narrow_gradient_, sizeof(uint16_t), IsNarrow(options.gradient_dtype())},
      {&narrow_parameters_, sizeof(uint16_t), IsNarrow(options.dtype())},
  };
  for (const Wanted& wanted : all) {
    if (!wanted.needed) continue;
    absl::StatusOr<Region> allocated =
        client_->AllocateRegion(layout_.floats() * wanted.element_bytes);
    if (!allocated.ok()) return allocated.status();
    *wanted.region = *std::move(allocated);
  }
  return absl::OkStatus();
}

absl::Status ClientStore::CreateTables(absl::Span<const EmbeddingTable> embeddings,
                                       const TrainingSpec& spec) {
  const absl::Time deadline = absl::Now() + options_.timeout;
  for (size_t i = 0; i < layout_.size(); ++i) {
    absl::StatusOr<Table> table =
        CreateTable(TableSpecOf(layout_[i], i, options_.job, spec), deadline);
    // Its shape is by the number of ranks. Another difference has another reason.
    if (layout_[i].counter && absl::IsAlreadyExists(table.status()) &&
        absl::StrContains(table.status().message(), ": shape is ")) {
      const bool elastic = options_.max_workers > 0;
      const uint32_t workers = elastic ? options_.max_workers : options_.workers;
      const char* const option = elastic ? "--max-workers" : "--workers";
      return absl::AlreadyExistsError(absl::StrCat(
          table.status().message(), ". With ", option, " ", workers, " steps are counted for ",
          JobProgress::Ranks(workers), " ranks (64, or the next power of two), and those of job '",
          options_.job, "' were counted for another number of ranks: go on with ", option,
          " that need as many, or begin with another --job"));
    }
    if (!table.ok()) return OfOptions(table.status(), i, layout_[i].sizes);
    tables_.push_back(*std::move(table));
  }
  std::vector<Table> tables;
  for (size_t i = 0; i < embeddings.size(); ++i) {
    absl::StatusOr<Table> table =
        CreateTable(TableSpecOf(embeddings[i], layout_.size() + i, options_.job, spec), deadline);
    if (!table.ok()) {
      return OfOptions(table.status(), layout_.size() + i, {embeddings[i].size});
    }
    tables.push_back(*std::move(table));
  }
  rows_ = std::make_unique<ClientRows>(client_.get(), embeddings, std::move(tables), options_.stop);
  return absl::OkStatus();
}

absl::Status ClientStore::OfOptions(const absl::Status& status, size_t index,
                                    const std::vector<std::string>& sizes) const {
  if (!absl::IsAlreadyExists(status)) return status;
  const OptionDifference differs = OptionDifferenceOf(status.message(), index, sizes);
  if (differs.option.empty()) return status;
  const std::string values = absl::StrCat(differs.option, " is ", differs.given, ", and ");
  if (options_.resume) {
    return absl::FailedPreconditionError(absl::StrCat("--resume: ", values,
                                                      "the run that is resumed had ", differs.kept,
                                                      "; give the options of that run"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(values, "the tables of job '", options_.job, "' were made with ", differs.kept,
                   "; give the options with which they were made, or another --job"));
}

absl::StatusOr<Table> ClientStore::CreateTable(const v1::TableSpec& spec, absl::Time deadline) {
  for (;;) {
    absl::StatusOr<Table> table;
    if (options_.resume) table = client_->OpenTable(spec.name());
    if (!options_.resume || table.ok()) table = client_->CreateTable(spec);  // compares, then
    if (absl::IsNotFound(table.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("--resume: there is no table '", spec.name(), "': no run of job '",
                       options_.job, "' has left it, and it was not restored"));
    }
    // UNAVAILABLE: the expected servers have not all joined yet.
    if (!absl::IsUnavailable(table.status()) || absl::Now() >= deadline) return table;
    if (Stopped(options_)) return absl::CancelledError("stopped by a signal");
    absl::SleepFor(std::min(kStopCheck, deadline - absl::Now()));
  }
}

Range ClientStore::RangeOf(size_t tensor, size_t element_bytes) const {
  return {.region_offset = layout_.offset(tensor) * element_bytes};
}

void ClientStore::Push(size_t tensor) {
  if (OnDevice(tensor)) return PushSlices(tensor);
  const Table& table = tables_[tensor];
  const Range range = RangeOf(tensor, table.gradient_element_bytes());
  if (table.gradient_dtype() == v1::DTYPE_F32) {
    tickets_.push_back(client_->Push(table, *gradient_, range));
    return;
  }
  const uint64_t first = layout_.offset(tensor);
  BFloat16sFromFloats(gradient() + first, narrow_gradient_->half_data() + first, table.elements());
  tickets_.push_back(client_->Push(table, *narrow_gradient_, range));
}

bool ClientStore::MayLeave() const {
  const absl::StatusOr<Membership> membership = client_->membership(tables_[0]);
  if (!membership.ok()) return true;
  const uint64_t next = membership->first_step + steps_ + 1;
  bool others = false, later = false;
  for (const Member& member : membership->members) {
    if (member.rank == client_->rank()) continue;
    (member.first_step > next ? later : others) = true;
  }
  return others || !later;
}

void ClientStore::EndStep() {
  ++steps_;
  for (const Table& table : tables_) tickets_.push_back(client_->EndStep(table));
  rows_->EndStep();
}

void ClientStore::Pull(size_t tensor) {
  if (OnDevice(tensor)) return PullSlices(tensor);
  const Table& table = tables_[tensor];
  const bool narrow = table.dtype() != v1::DTYPE_F32;
  if (narrow) narrow_pulls_.push_back(tensor);
  tickets_.push_back(client_->Pull(table, narrow ? *narrow_parameters_ : *parameters_,
                                   RangeOf(tensor, table.element_bytes()), PullOptionsFor(tensor)));
}

PullOptions ClientStore::PullOptionsFor(size_t tensor) {
  PullOptions options;
  if (notes_versions_) {
    options.versions = std::make_shared<StateVersions>();
    versions_.emplace_back(tensor, options.versions);
  }
  return options;
}

absl::StatusOr<std::vector<AppliedSteps>> ClientStore::PullApplied() {
  notes_versions_ = true;
  versions_.clear();
  for (size_t i = 0; i < layout_.size(); ++i) Pull(i);
  notes_versions_ = false;
  if (absl::Status status = Wait(); !status.ok()) return status;
  std::vector<AppliedSteps> applied(layout_.size(), {UINT64_MAX, 0});
  for (const auto& [tensor, versions] : versions_) {
    // A server of an earlier version, during an upgrade, reports none.
    if (versions->least_applies > versions->greatest_applies) return std::vector<AppliedSteps>();
    applied[tensor].least = std::min(applied[tensor].least, versions->least_applies);
    applied[tensor].greatest = std::max(applied[tensor].greatest, versions->greatest_applies);
  }
  return applied;
}

void ClientStore::Widen(size_t tensor) {
  const Table& table = tables_[tensor];
  const uint64_t first = layout_.offset(tensor);
  const uint16_t* from = narrow_parameters_->half_data() + first;
  if (table.dtype() == v1::DTYPE_BF16) {
    FloatsFromBFloat16s(from, parameters() + first, table.elements());
  } else {
    FloatsFromHalves(from, parameters() + first, table.elements());
  }
}

absl::Status ClientStore::Wait() {
  absl::Status first = WaitAll(&tickets_, options_.stop);
  if (first.ok()) {
    for (const size_t tensor : narrow_pulls_) Widen(tensor);
  }
  narrow_pulls_.clear();
  first.Update(std::exchange(reduced_, absl::OkStatus()));
  if (first.ok()) first = SpreadParameters();
  pulled_to_devices_.clear();
  first.Update(rows_->Wait());
  return first;
}

// ---- GPUs ---------------------------------------------------------------------------------------

absl::Status ClientStore::AllocateOnDevices() {
  const size_t bytes = layout_.floats() * sizeof(float);
  for (GpuArenas* arenas : {&gpu_gradients_, &gpu_parameters_}) {
    for (const auto& device : options_.devices) {
      absl::StatusOr<Region> region =
          client_->AllocateRegion(bytes, MemoryKind::kCuda, device->ordinal());
      if (!region.ok()) return region.status();
      arenas->arenas.push_back(region->floats());
      arenas->regions.push_back(*std::move(region));
    }
  }
  // Page-locked, for the copies of SpreadParameters().
  absl::StatusOr<Region> pinned =
      client_->AllocateRegion(bytes, MemoryKind::kPinned, options_.devices[0]->ordinal());
  if (!pinned.ok()) return pinned.status();
  parameters_ = *std::move(pinned);
  return absl::OkStatus();
}

std::vector<GpuGroup::Slice> ClientStore::SlicesOf(size_t tensor) const {
  const Table& table = tables_[tensor];
  return GpuGroup::Cut(layout_.offset(tensor), table.elements(), table.chunk_elements(),
                       options_.devices.size());
}

Range ClientStore::RangeOf(size_t tensor, const GpuGroup::Slice& slice) const {
  return {slice.first - layout_.offset(tensor), slice.count, slice.first * sizeof(float)};
}

void ClientStore::PushSlices(size_t tensor) {
  const std::vector<GpuGroup::Slice> slices = SlicesOf(tensor);
  if (group_ != nullptr && reduced_.ok()) {
    reduced_ = group_->Reduce(gpu_gradients_.arenas, slices);
  }
  if (!reduced_.ok()) return;
  for (const GpuGroup::Slice& slice : slices) {
    tickets_.push_back(
        client_->Push(tables_[tensor], gpu_gradients_.regions[slice.gpu], RangeOf(tensor, slice)));
  }
}

void ClientStore::PullSlices(size_t tensor) {
  for (const GpuGroup::Slice& slice : SlicesOf(tensor)) {
    tickets_.push_back(client_->Pull(tables_[tensor], gpu_parameters_.regions[slice.gpu],
                                     RangeOf(tensor, slice), PullOptionsFor(tensor)));
    pulled_to_devices_.push_back(slice);
  }
}

absl::Status ClientStore::SpreadParameters() {
  constexpr auto kToHost = rdma::Device::Direction::kToHost;
  std::vector<uint64_t> last(options_.devices.size());  // by GPU: number of its last copy
  absl::Status first;
  for (const GpuGroup::Slice& slice : pulled_to_devices_) {
    const float* from = gpu_parameters_.arenas[slice.gpu] + slice.first;
    const absl::StatusOr<uint64_t> number = options_.devices[slice.gpu]->StartCopy(
        kToHost, reinterpret_cast<const std::byte*>(from),
        reinterpret_cast<std::byte*>(parameters() + slice.first), slice.count * sizeof(float));
    first.Update(number.status());
    if (!number.ok()) break;
    last[slice.gpu] = *number;
  }
  if (group_ != nullptr && first.ok()) {
    first = group_->Broadcast(gpu_parameters_.arenas, pulled_to_devices_);
  }
  // After an error, too: target memory of a copy must not be released before the copy ends.
  for (size_t g = 0; g < last.size(); ++g) {
    first.Update(WaitForCopies(options_.devices[g].get(), kToHost, last[g]));
  }
  return first;
}

StoreStatistics ClientStore::statistics() const {
  const ClientStatistics from = client_->statistics();
  StoreStatistics statistics;
  statistics.bytes_pushed = from.bytes_pushed;
  statistics.bytes_pulled = from.bytes_pulled;
  for (size_t steps = 0; steps < from.staleness.size(); ++steps) {
    statistics.ssp_pulls += from.staleness[steps];
    statistics.steps_behind += steps * from.staleness[steps];
  }
  std::vector<std::string> transports;
  for (const ClientStatistics::Lane& lane : from.lanes) transports.push_back(lane.transport);
  std::sort(transports.begin(), transports.end());
  transports.erase(std::unique(transports.begin(), transports.end()), transports.end());
  for (const std::string& transport : transports) {
    absl::StrAppend(&statistics.transport, statistics.transport.empty() ? "" : ",", transport);
  }
  return statistics;
}

absl::Status ClientStore::DropTables() {
  absl::Status first;
  for (size_t i = 0; i < layout_.size(); ++i) {
    first.Update(client_->DropTable(tables_[i]));
  }
  first.Update(rows_->DropTables());
  return first;
}

}  // namespace verbena::worker
