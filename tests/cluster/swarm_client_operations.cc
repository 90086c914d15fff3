// The operations that a client of the swarm begins.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "proto/spec/optimizer_values.h"
#include "tests/cluster/heap_block.h"
#include "tests/cluster/swarm_client.h"

namespace verbena::test {
namespace {

// Before each operation of a worker with kSlowRecovery: the steps of a few seconds before take it
// minutes.
constexpr int64_t kSlowThink = 800 * kMilli;
// With which sums of gradients stay integers.
constexpr double kRates[] = {1, 2, 4};
constexpr int64_t kMostRate = 4;

// An element of 2 or 4 bytes, `count` times.
void Repeat(uint32_t bits, uint32_t bytes, uint64_t count, std::byte* to) {
  if (bytes == sizeof(uint32_t)) {
    std::fill_n(reinterpret_cast<uint32_t*>(to), count, bits);
  } else {
    std::fill_n(reinterpret_cast<uint16_t*>(to), count, static_cast<uint16_t>(bits));
  }
}

}  // namespace

void SwarmClient::Begin() {
  // A worker that let steps of one table wait for those of another would block all workers.
  if (operations_ - waiting_ >= world_->plan.operations || world_->now() < next_at_) return;
  next_at_ = world_->now() + world_->Between(0, world_->plan.think_ns);
  const bool recovery = world_->stage == SwarmStage::kRecovery;
  if (recovery && !observer_ && world_->has(SwarmFeature::kSlowRecovery)) {
    // A step with a norm needs operations on all of its tables: in time for those that wait.
    next_at_ += world_->has(SwarmFeature::kNorms) ? kSlowThink / 4 : kSlowThink;
  }
  std::vector<SwarmTable*> tables;
  for (auto& [id, table] : world_->tables) {
    if (reads_all_ && used_.contains(id)) continue;
    if (Wants(table) && opened_.contains(id)) tables.push_back(&table);
  }
  if (!tables.empty()) BeginOn(tables[world_->Pick(tables.size())]);
}

std::vector<uint32_t> SwarmClient::DrawUnits(const SwarmTable& table, bool push) {
  std::pair<uint32_t, uint32_t> range = {0, static_cast<uint32_t>(table.units().size())};
  if (push && table.steps() == nullptr) range = table.OwnedBy(slot_, job_->plan.places());
  std::vector<uint32_t> units;
  if (range.first == range.second) return units;
  if (reads_all_) {
    units.resize(table.units().size());
    std::iota(units.begin(), units.end(), 0);
    return units;
  }
  if (!table.embedding()) {
    const auto first = static_cast<uint32_t>(world_->Between(range.first, range.second - 1));
    const auto last = static_cast<uint32_t>(world_->Between(first, range.second - 1));
    for (uint32_t u = first; u <= last; ++u) units.push_back(u);
    return units;
  }
  const size_t count = 1 + world_->Pick(world_->has(SwarmFeature::kShortMemory) ? 4 : 24);
  std::set<uint32_t> drawn;
  for (size_t i = 0; i < count; ++i) {
    const auto u = static_cast<uint32_t>(world_->Between(range.first, range.second - 1));
    if (!push || table.MayPush(u)) drawn.insert(u);
  }
  return {drawn.begin(), drawn.end()};
}

// Drawn from nothing, so that other seeds' worlds stay as they are.
bool SwarmClient::Assigns(const SwarmTable& table, const Operation& operation) {
  constexpr uint32_t kAssignEvery = 6;
  return operation.pushes && !operation.pulls && ++pushes_ % kAssignEvery == 0 &&
         MayAssign(table, operation);
}

bool SwarmClient::MayAssign(const SwarmTable& table, const Operation& operation) const {
  return std::all_of(operation.units.begin(), operation.units.end(), [&](uint32_t unit) {
    // Pushes in flight would be acknowledged, though the assignment hides them.
    const bool alone = table.steps() != nullptr ? table.steps()->MayAssign(operation.step, unit)
                                                : !pushing_.contains({table.id(), unit});
    return alone && table.MayAssign(unit);
  });
}

void SwarmClient::BeginOn(SwarmTable* table) {
  if (!observer_ && !table->exact() && table->complete() && world_->Chance(0.1)) {
    return SetOptimizer(
        table, table->spec().optimizer().rate() / (1 + static_cast<double>(world_->Pick(3))));
  }
  if (!observer_ && VariesRate(*table) && std::bernoulli_distribution(0.1)(own_)) {
    return SetOptimizer(table, kRates[std::uniform_int_distribution<size_t>(0, 2)(own_)]);
  }
  if (table->steps() != nullptr && !observer_) return BeginStep(table);
  auto operation = std::make_shared<Operation>();
  operation->pushes = !observer_ && world_->Chance(0.6);
  operation->pulls = !operation->pushes || (!table->embedding() && world_->Chance(0.2) &&
                                            table->spec().consistency() == v1::CONSISTENCY_ASYNC);
  operation->units = DrawUnits(*table, operation->pushes);
  if (operation->units.empty()) return;
  operation->assigns = Assigns(*table, *operation);
  operation->state = OfState(*table, *operation);
  DrawReplicas(*table, operation.get());
  operation->deadline_ns = DrawDeadline();
  // A pull that waits for slower workers holds up the pushes that others wait for. Not one of all
  // units at the end, when nobody pushes: many of its rows may have to come from the disk.
  if (operation->pulls && !reads_all_ && table->spec().consistency() == v1::CONSISTENCY_SSP) {
    operation->deadline_ns =
        std::min(operation->deadline_ns, world_->now() + world_->Between(1, 200) * kMilli);
  }
  const bool begun = Start(table, operation);
  if (begun && operation->pushes && table->spec().consistency() == v1::CONSISTENCY_SSP) {
    EndStep(table);
  }
}

void SwarmClient::BeginStep(SwarmTable* table) {
  if (table->clipped() && stepper_.Apart(process_->core().view())) {
    for (SwarmJob& job : world_->jobs) job.restart |= &job == job_;
  }
  const SwarmStepper::Turn turn = stepper_.Draw(*table, process_->core().view());
  auto operation = std::make_shared<Operation>();
  operation->step = stepper_.step(table->id());
  operation->pushes = turn.push || turn.push_pull;
  operation->pulls = turn.read || turn.push_pull;
  operation->ends = turn.push_pull;
  operation->whole = turn.whole || turn.push_pull;
  operation->deadline_ns = DrawStepDeadline();
  if (operation->pulls) operation->version = operation->step + (turn.push_pull ? 1 : 0);
  if (operation->whole) {
    operation->units.resize(table->units().size());
    std::iota(operation->units.begin(), operation->units.end(), 0);
  } else if (operation->pushes || operation->pulls) {
    operation->units = DrawUnits(*table, operation->pushes);
    if (operation->pushes) operation->units = stepper_.Unpushed(*table, operation->units);
  }
  if (!operation->units.empty()) {
    operation->assigns = Assigns(*table, *operation);
    operation->state = OfState(*table, *operation);
    if (operation->pulls) stepper_.Reads(true);
    if (!Start(table, operation)) return;
    if (operation->pushes) stepper_.Pushed(table->id(), operation->units);
    if (operation->ends) {
      table->steps()->End(stepper_.generation(), operation->step, stepper_.first(table->id()));
      stepper_.End(table->id());
    }
  }
  if (turn.end) EndStep(table);
}

bool SwarmClient::Start(SwarmTable* table, const std::shared_ptr<Operation>& operation) {
  operation->table = table->id();
  operation->amount =
      operation->pushes ? table->PushedAmount(world_->Between(1, 3), job_->plan.places()) : 0;
  operation->began_ns = world_->now();
  operation->known_lost = KnowsLost(*table, operation->units);
  operation->revision = std::as_const(*process_).core().view().revision();
  operation->changes = table->rates().changes();
  operation->run = observer_ ? RunOf(*table) : 0;
  Fill(*table, operation.get());
  for (const uint32_t unit : operation->units) {
    operation->lives.push_back(table->life(table->units()[unit].partition));
    operation->least.push_back(table->Least(unit));
    // A push-pull shows its own push, too.
    if (table->steps() == nullptr && operation->pulls) {
      operation->least.back() += table->Gain(unit, operation->amount, operation->changes).low;
    }
    AllowPast(*table, unit, operation.get());
    if (operation->pushes) Attempt(table, operation.get(), unit);
  }
  if (operation->assigns) FillAssigned(*table, operation.get());
  if (operation->state) BeginState(table, operation.get());
  ++operations_;
  waiting_ += WaitsForOthers(*table) ? 1 : 0;
  const absl::StatusOr<client::OperationId> id = Issue(*table, operation);
  if (!id.ok()) {
    Ended(operation, id.status());
    return false;
  }
  operation->id = *id;
  return true;
}

void SwarmClient::Attempt(SwarmTable* table, Operation* operation, uint32_t unit) {
  ++pushing_[{table->id(), unit}];
  SwarmSteps* const steps = table->steps();
  const uint64_t worker = std::as_const(*process_).core().incarnation();
  if (steps != nullptr) {
    world_->members.Pushed(worker, table->id(), operation->step, unit);
    if (operation->ends) world_->members.Ended(worker, table->id(), operation->step);
  }
  if (operation->state) {
    operation->gains.push_back(0);
    if (steps != nullptr) steps->AttemptState(stepper_.generation(), operation->step, unit);
    return;
  }
  if (operation->assigns && steps == nullptr) {
    const auto [value, gain] = table->AttemptAssign(unit, operation->amount);
    operation->values_to_be.push_back(value);
    operation->gains.push_back(gain);
    return;
  }
  // The push of a process that dies may come behind changes by the next one.
  const bool varies =
      steps == nullptr &&
      (VariesRate(*table) || (table->from_checkpoint() && world_->has(SwarmFeature::kRates)));
  operation->gains.push_back(operation->amount * (varies ? kMostRate : 1));
  table->Attempt(unit, operation->gains.back());
  if (operation->assigns) {
    operation->values_to_be.push_back(
        steps->AttemptAssign(stepper_.generation(), operation->step, unit));
  } else if (steps != nullptr) {
    steps->Attempt(stepper_.generation(), operation->step, unit, operation->amount);
  }
}

bool SwarmClient::KnowsLost(const SwarmTable& table, absl::Span<const uint32_t> units) const {
  const client::ClientCore& core = std::as_const(*process_).core();
  for (const v1::Table& known : core.view().tables()) {
    if (known.id() != table.id()) continue;
    const auto& lost = known.lost_partitions();
    return std::any_of(units.begin(), units.end(), [&](uint32_t unit) {
      return std::find(lost.begin(), lost.end(), table.units()[unit].partition) != lost.end();
    });
  }
  return false;
}

void SwarmClient::Fill(const SwarmTable& table, Operation* operation) {
  uint64_t elements = 0;
  for (const uint32_t unit : operation->units) elements += table.elements(unit);
  if (operation->pulls) {
    const size_t bytes = operation->state ? sizeof(float) : table.parameter_bytes();
    operation->values = HeapBlock(elements * bytes);
  }
  if (!operation->pushes || operation->assigns || operation->state) return;
  const uint32_t bytes = table.gradient_bytes();
  operation->gradient = HeapBlock(elements * bytes);
  const auto bits =
      std::bit_cast<uint32_t>(-static_cast<float>(operation->amount)) >> (bytes == 2 ? 16 : 0);
  Repeat(bits, bytes, elements, operation->gradient->data());
}

void SwarmClient::FillAssigned(const SwarmTable& table, Operation* operation) {
  uint64_t elements = 0;
  for (const uint32_t unit : operation->units) elements += table.elements(unit);
  const uint32_t bytes = table.parameter_bytes();
  operation->gradient = HeapBlock(elements * bytes);
  std::byte* to = operation->gradient->data();
  for (size_t i = 0; i < operation->units.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(operation->values_to_be[i])) >>
                      (bytes == 2 ? 16 : 0);
    Repeat(bits, bytes, table.elements(operation->units[i]), to);
    to += table.elements(operation->units[i]) * bytes;
  }
}

absl::StatusOr<client::OperationId> SwarmClient::Issue(
    const SwarmTable& table, const std::shared_ptr<Operation>& operation) {
  client::ClientCore& core = process_->core();
  const auto done = [this, operation](absl::Status status) { Ended(operation, status); };
  const int64_t deadline = process_->At(operation->deadline_ns);
  if (table.embedding()) {
    std::vector<uint64_t> keys;
    for (const uint32_t unit : operation->units) keys.push_back(table.units()[unit].key);
    if (operation->pushes) {
      return core.PushRows(table.id(), keys, {operation->gradient, 0}, deadline, done, nullptr,
                           operation->write());
    }
    return Lookup(table, operation, keys);
  }
  const uint64_t first = table.first_element(operation->units.front());
  const uint64_t count = table.first_element(operation->units.back()) +
                         table.elements(operation->units.back()) - first;
  const client::ClientCore::Slice gradient{operation->gradient, 0, first, count};
  const client::ClientCore::Slice values{operation->values, 0, first, count};
  if (operation->pushes && operation->pulls) {
    return core.PushPull(table.id(), gradient, values, deadline, done);
  }
  if (operation->pushes) {
    return core.Push(
        table.id(), gradient, deadline, done, nullptr, operation->write(),
        {operation->state ? uint8_t{1} : uint8_t{0}, SwarmStates::AppliesOf(operation->assigned)});
  }
  return core.Pull(table.id(), values, std::nullopt, deadline, done, operation->pulled,
                   operation->staleness_ms);
}

// Looks up rows, or bags that equal the rows: each bag has one of them, and another one times zero.
absl::StatusOr<client::OperationId> SwarmClient::Lookup(const SwarmTable& table,
                                                        const std::shared_ptr<Operation>& operation,
                                                        absl::Span<const uint64_t> keys) {
  client::ClientCore& core = process_->core();
  const auto done = [this, operation](absl::Status status) { Ended(operation, status); };
  const int64_t deadline = process_->At(operation->deadline_ns);
  if (!world_->has(SwarmFeature::kBags) || world_->Chance(0.5)) {
    return core.Lookup(table.id(), keys, {operation->values, 0}, std::nullopt, deadline, done);
  }
  operation->bags = true;
  std::vector<uint64_t> pairs, offsets;
  std::vector<float> weights;
  for (size_t i = 0; i < keys.size(); ++i) {
    offsets.push_back(pairs.size());
    pairs.insert(pairs.end(), {keys[(i * 7 + 3) % keys.size()], keys[i]});
    weights.insert(weights.end(), {0, 1});
  }
  return core.LookupBags(table.id(), {pairs, offsets, weights, client::BagMode::kSum},
                         {operation->values, 0}, std::nullopt, deadline, done);
}

void SwarmClient::EndStep(SwarmTable* table) {
  auto step = std::make_shared<Operation>();
  step->table = table->id();
  step->ends = true;
  step->step = stepper_.step(table->id());
  step->began_ns = world_->now();
  step->revision = std::as_const(*process_).core().view().revision();
  step->deadline_ns = table->steps() == nullptr ? DrawDeadline() : DrawStepDeadline();
  ++operations_;
  waiting_ += WaitsForOthers(*table) ? 1 : 0;
  world_->members.Ended(std::as_const(*process_).core().incarnation(), table->id(), step->step);
  const absl::StatusOr<client::OperationId> id =
      process_->core().EndStep(table->id(), process_->At(step->deadline_ns),
                               [this, step](absl::Status status) { Ended(step, status); });
  if (!id.ok()) return Ended(step, id.status());
  if (table->steps() == nullptr) return;
  table->steps()->End(stepper_.generation(), step->step, stepper_.first(table->id()));
  stepper_.End(table->id());
}

void SwarmClient::SetOptimizer(SwarmTable* table, double rate) {
  auto change = std::make_shared<Operation>();
  change->table = table->id();
  change->began_ns = world_->now();
  change->revision = std::as_const(*process_).core().view().revision();
  change->deadline_ns = table->steps() == nullptr ? DrawDeadline() : DrawStepDeadline();
  auto values = std::make_shared<client::OptimizerUpdate>();
  if (table->exact()) AttemptRate(table, change.get(), rate);
  values->values.push_back(MakeNamedValue("rate", rate));
  ++operations_;
  waiting_ += WaitsForOthers(*table) ? 1 : 0;
  const absl::StatusOr<client::OperationId> id = process_->core().SetOptimizer(
      table->id(), std::move(values), process_->At(change->deadline_ns),
      [this, change](absl::Status status) { Ended(change, status); });
  if (!id.ok()) Ended(change, id.status());
}

void SwarmClient::AttemptRate(SwarmTable* table, Operation* change, double rate) {
  SwarmRates& rates = table->rates();
  SwarmSteps* const steps = table->steps();
  if (steps == nullptr) {
    change->change = rates.Attempt(rates.changes() + 1, 0, rate);
    unsure_rates_.emplace(table->id(), *change->change);
    return;
  }
  if (steps->generation() != stepper_.generation()) return;
  change->step = stepper_.unpushed_step(table->id());
  change->change =
      rates.Attempt(change->step, std::as_const(*process_).core().statistics().rank, rate);
  steps->RateChanged(change->step);
}

}  // namespace verbena::test
