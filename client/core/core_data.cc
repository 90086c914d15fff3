// Calls on dense tables and the end of a step: checks them and passes them to the request tracker.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/client_core_impl.h"
#include "proto/spec/optimizer_values.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {
namespace {

// Maximum number of ended steps of a table without a known commit: EndStep() then returns an error.
constexpr uint64_t kMaxStepsAhead = 64;

// "bf16 gradient": the type of an element in pushes (`push`) or pulls.
std::string ElementWord(const TableState& table, bool push) {
  const v1::TableSpec& spec = table.info.spec();
  const ElementType type = push ? GradientType(spec) : ParameterType(spec);
  absl::string_view name = type == ElementType::kBf16  ? "bf16"
                           : type == ElementType::kF16 ? "f16"
                                                       : "f32";
  return absl::StrCat(name, push ? " gradient" : " parameter");
}

// A chunk's parameters may overwrite its own gradient, which was read by then, but not another
// chunk's, which may still have to be sent.
absl::Status CheckInPlace(const TableState& table, const ClientCore::Slice& gradient,
                          const ClientCore::Slice& destination) {
  const DenseLayout& layout = table.layout;
  const std::byte* from = gradient.block->data() + gradient.offset;
  const std::byte* to = destination.block->data() + destination.offset;
  const bool same = layout.gradient_bytes == layout.parameter_bytes;
  if (same && from == to) return absl::OkStatus();
  const bool apart = from + gradient.count * layout.gradient_bytes <= to ||
                     to + destination.count * layout.parameter_bytes <= from;
  if (apart) return absl::OkStatus();
  if (same) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push-pull: the destination is ", to < from ? from - to : to - from, " bytes ",
        to < from ? "before" : "behind",
        " the gradient and overlaps it; allowed: the same place, or memory without overlap"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "push-pull: the destination overlaps the gradient, which is allowed where both start at the "
      "same byte and have as many; one ",
      ElementWord(table, true), " has ", layout.gradient_bytes, ", one ", ElementWord(table, false),
      " ", layout.parameter_bytes));
}

}  // namespace

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

absl::Status ClientCore::Impl::CheckMemory(const TableState& table, const Slice& slice,
                                           Data data) const {
  const bool push = data == Data::kGradients;
  const bool state = data == Data::kState || data == Data::kPulledState;
  if (slice.block == nullptr) {
    return absl::InvalidArgumentError("the region is empty, or was destroyed");
  }
  const size_t size = slice.block->size();
  const uint32_t element_bytes = state  ? sizeof(float)
                                 : push ? table.layout.gradient_bytes
                                        : table.layout.parameter_bytes;
  const auto word = [&] { return state ? std::string("f32 of state") : ElementWord(table, push); };
  const uint64_t needed = slice.count * element_bytes;
  if (slice.offset % element_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("region_offset is ", slice.offset,
                                                   "; allowed: multiples of ", element_bytes,
                                                   ", the bytes of one ", word()));
  }
  if (slice.offset > size || needed > size - slice.offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the region is too small: ", slice.count, " elements of table '", table.name(), "' need ",
        needed, " bytes (", element_bytes, " for each ", word(), "); the region has ", size,
        " bytes, ", slice.offset > size ? 0 : size - slice.offset, " from offset ", slice.offset));
  }
  return absl::OkStatus();
}

absl::StatusOr<TableState*> ClientCore::Impl::CheckTable(std::string_view what, uint32_t id,
                                                         bool push) {
  const absl::string_view call(what.data(), what.size());
  if (absl::Status s = session.Usable(); !s.ok()) return s;
  if (push && options.observer) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": an observer only pulls"));
  }
  TableState* table = tracker.tables.FindTable(id);
  if (table != nullptr) {
    if (absl::Status s = session.CheckJob(table->info); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(call, ": ", s.message()));
    }
    return table;
  }
  return NoSuchTable(what, id);
}

std::function<void(absl::StatusOr<v1::Table>)> ClientCore::Impl::Remembering(
    std::function<void(absl::StatusOr<v1::Table>)> done) {
  return [this, done = std::move(done)](absl::StatusOr<v1::Table> table) {
    if (table.ok()) {
      table_names[table->id()] = table->spec().name();
      if (table_names.size() > kMostTableNames) table_names.erase(table_names.begin());
    }
    done(std::move(table));
  };
}

absl::Status ClientCore::Impl::NoSuchTable(std::string_view what, uint32_t id) const {
  const auto name = table_names.find(id);
  const std::string table = name == table_names.end()
                                ? absl::StrCat("table with id ", id)
                                : absl::StrCat("table '", name->second, "' (id ", id, ")");
  return absl::NotFoundError(absl::StrCat(absl::string_view(what.data(), what.size()), ": no ",
                                          table, " in cluster ", options.cluster,
                                          "; it may have been dropped"));
}

absl::StatusOr<ClientCore::Impl::Target> ClientCore::Impl::Check(std::string_view what, uint32_t id,
                                                                 const Slice& slice, Data data) {
  const absl::string_view call(what.data(), what.size());
  const bool push = data != Data::kPulled && data != Data::kPulledState;
  auto table = CheckTable(what, id, push);
  if (!table.ok()) return table.status();
  Target target;
  target.table = *table;
  if (target.table->embedding()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": table '", target.table->name(), "' is an embedding table of dim ",
                     target.table->dim, ": use ",
                     data == Data::kState || data == Data::kPulledState
                         ? "checkpoints for the optimizer's state of its rows"
                         : "PushRows() and Lookup()"));
  }
  absl::Status status = CheckRange(*target.table, slice);
  const DenseLayout& layout = target.table->layout;
  if (status.ok()) status = CheckMemory(*target.table, slice, data);
  if (status.ok()) status = CheckCodec(*target.table, slice, data);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(call, ": ", status.message()));
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

absl::StatusOr<Operation*> ClientCore::Impl::Start(std::string_view name, TableState* table,
                                                   int64_t deadline_ns, Done done) {
  WithdrawPatience();
  Operation* operation =
      operations.Start(name, table, options.clock->NowNanos(), deadline_ns, std::move(done));
  if (operation == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxOperations, " operations are outstanding; wait for some"));
  }
  operation->step = table->step;
  return operation;
}

// ---- data ---------------------------------------------------------------------------------------

absl::StatusOr<OperationId> ClientCore::Push(uint32_t table, const Slice& slice,
                                             int64_t deadline_ns, Done done,
                                             std::unique_ptr<PushEncoding> encoded, Write write,
                                             const AssignedState& state) {
  Impl& c = *impl_;
  PushRequests& requests = c.tracker.requests.chunks_of(write);
  const bool assigns = requests.traits().assigns;
  auto target = c.Check(requests.name(), table, slice,
                        requests.traits().state ? Impl::Data::kState
                        : assigns               ? Impl::Data::kParameters
                                                : Impl::Data::kGradients);
  if (!target.ok()) return target.status();
  auto operation = c.Start(requests.name(), target->table, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost =
      c.tracker.tables.CheckLost(*target->table, target->first, target->chunks);
  if (!lost.ok()) {
    c.tracker.settlement.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  (*operation)->blocks[0] = slice.block;
  (*operation)->marks[0] = slice.after;
  size_t offset = slice.offset;
  absl::Status ready;
  if (!assigns) ready = c.Encoded(*target, slice, std::move(encoded), *operation, &offset);
  if (!ready.ok()) {
    c.tracker.settlement.End(*operation, ready);
    return c.operations.IdOf(**operation);
  }
  requests.Add(*operation, target->first, target->chunks, offset, state);
  if (target->table->sync) {
    c.tracker.commits.WaitForCommit(*operation, target->first, target->chunks,
                                    target->table->step + 1);
  }
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::Pull(uint32_t table, const Slice& slice,
                                             std::optional<uint64_t> min_version,
                                             int64_t deadline_ns, Done done,
                                             std::shared_ptr<PulledState> state,
                                             uint32_t max_staleness_ms) {
  Impl& c = *impl_;
  const bool of_state = state != nullptr && state->array != 0;
  PullRequests& requests = of_state ? c.tracker.requests.pull_state : c.tracker.requests.pull;
  auto target = c.Check(requests.name(), table, slice,
                        of_state ? Impl::Data::kPulledState : Impl::Data::kPulled);
  if (!target.ok()) return target.status();
  auto operation = c.Start(requests.name(), target->table, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost =
      c.tracker.tables.CheckLost(*target->table, target->first, target->chunks);
  if (!lost.ok()) {
    c.tracker.settlement.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  const uint64_t version = min_version.value_or(target->table->VersionToPull());
  (*operation)->version = version;
  // A worker's pull shows its own pushes.
  (*operation)->max_staleness_ms = c.options.observer ? max_staleness_ms : 0;
  (*operation)->blocks[1] = slice.block;
  (*operation)->marks[1] = slice.after;
  const uint8_t array = state != nullptr ? state->array : 0;
  (*operation)->pulled = std::move(state);
  requests.Add(*operation, target->first, target->chunks, slice.offset, version, array);
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::PushPull(uint32_t table, const Slice& gradient,
                                                 const Slice& destination, int64_t deadline_ns,
                                                 Done done, std::unique_ptr<PushEncoding> encoded) {
  Impl& c = *impl_;
  auto target = c.Check("push-pull", table, gradient, Impl::Data::kGradients);
  if (!target.ok()) return target.status();
  absl::Status memory = c.CheckMemory(*target->table, destination, Impl::Data::kPulled);
  if (memory.ok()) memory = c.CheckCodec(*target->table, destination, Impl::Data::kPulled);
  if (!memory.ok()) {
    return absl::Status(memory.code(), absl::StrCat("push-pull destination: ", memory.message()));
  }
  if (destination.first != gradient.first || destination.count != gradient.count) {
    return absl::InvalidArgumentError("push-pull: both slices must be of the same range");
  }
  if (absl::Status s = CheckInPlace(*target->table, gradient, destination); !s.ok()) return s;
  TableState* state = target->table;
  const bool ends_step = state->sync && target->chunks == state->chunks();
  if (ends_step) {
    if (absl::Status s = c.tracker.norms.CheckNormStep("push-pull", *state); !s.ok()) return s;
  }
  auto operation = c.Start("push-pull", state, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.tracker.tables.CheckLost(*state, target->first, target->chunks);
  if (!lost.ok()) {
    c.tracker.settlement.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  const uint64_t version = state->sync ? state->step + 1 : state->VersionToPull();
  (*operation)->version = version;
  (*operation)->blocks[0] = gradient.block;
  (*operation)->blocks[1] = destination.block;
  (*operation)->marks[0] = gradient.after;
  (*operation)->marks[1] = destination.after;
  size_t offset = gradient.offset;
  if (absl::Status s = c.Encoded(*target, gradient, std::move(encoded), *operation, &offset);
      !s.ok()) {
    c.tracker.settlement.End(*operation, s);
    return c.operations.IdOf(**operation);
  }
  c.tracker.requests.push.AddWithPulls(*operation, target->first, target->chunks, offset,
                                       destination.offset, version);
  if (ends_step) {
    (*operation)->ends_step = true;
    c.tracker.requests.end_step.Add(state, nullptr, false);
  }
  return c.Started(*operation);
}

absl::StatusOr<OperationId> ClientCore::EndStep(uint32_t table, int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  auto found = c.CheckTable("end-step", table, true);
  if (!found.ok()) return found.status();
  TableState* state = *found;
  if (state->sync && state->step >= state->committed + kMaxStepsAhead) {
    return absl::ResourceExhaustedError(
        absl::StrCat("end-step: ", kMaxStepsAhead, " steps of table '", state->name(),
                     "' are ended and not committed; wait for them"));
  }
  if (absl::Status s = c.tracker.norms.CheckNormStep("end-step", *state); !s.ok()) return s;
  auto operation = c.Start(c.tracker.requests.end_step.name(), state, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.tracker.tables.CheckLost(*state, 0, state->chunks());
  // The remaining parts of the table continue: the step still ends there.
  c.tracker.requests.end_step.Add(state, *operation, state->sync);
  if (!lost.ok()) {
    c.tracker.settlement.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  if (state->sync) c.tracker.commits.WaitForCommit(*operation, 0, 0, state->step);
  return c.Started(*operation);
}

absl::Status ClientCore::SetPriority(uint32_t table, int32_t priority) {
  Impl& c = *impl_;
  auto found = c.CheckTable("priority", table, false);
  if (!found.ok()) return found.status();
  c.tracker.queue.Prioritize(*found, priority);
  return absl::OkStatus();
}

absl::StatusOr<OperationId> ClientCore::SetOptimizer(uint32_t table,
                                                     std::shared_ptr<OptimizerUpdate> change,
                                                     int64_t deadline_ns, Done done) {
  Impl& c = *impl_;
  // An observer may, if its token may write.
  auto found = c.CheckTable("change of the optimizer", table, false);
  if (!found.ok()) return found.status();
  TableState* state = *found;
  const auto& allowed = state->info.optimizer_values();
  const absl::Status valid = CheckOptimizerValues(
      std::vector<const v1::OptimizerValue*>(allowed.pointer_begin(), allowed.pointer_end()),
      change->values);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer \"", state->info.spec().optimizer().name(), "\" of table '",
                     state->name(), "': ", valid.message()));
  }
  auto operation =
      c.Start(c.tracker.requests.set_optimizer.name(), state, deadline_ns, std::move(done));
  if (!operation.ok()) return operation.status();
  const absl::Status lost = c.tracker.tables.CheckLost(*state, 0, state->chunks());
  if (!lost.ok()) {
    c.tracker.settlement.End(*operation, lost);
    return c.operations.IdOf(**operation);
  }
  (*operation)->change = std::move(change);
  c.tracker.requests.set_optimizer.Add(*operation);
  return c.Started(*operation);
}

}  // namespace verbena::client
