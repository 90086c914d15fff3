#include "tests/cluster/swarm_client.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/optimizer_values.h"

namespace verbena::test {
namespace {

// A call may end that much before or after its deadline.
constexpr int64_t kSlack = 10 * kMilli;
// Before each operation of a worker with kSlowRecovery: the steps of a few seconds before take it
// minutes.
constexpr int64_t kSlowThink = 800 * kMilli;
// With which sums of gradients stay integers.
constexpr double kRates[] = {1, 2, 4};
constexpr int64_t kMostRate = 4;
constexpr int kScribble = 0x4b;  // numbers of about 13 million

}  // namespace

SwarmClient::SwarmClient(SwarmWorld* world, const SwarmJob* job, uint32_t slot, bool observer,
                         const std::string& host)
    : world_(world), job_(job), slot_(slot), observer_(observer), stepper_(world, job) {
  SimWorker::Options options;
  options.job = job->plan.name;
  options.expected_workers = job->plan.workers;
  options.observer = observer;
  options.seed = static_cast<uint64_t>(world->Between(1, int64_t{1} << 40));
  own_.seed(options.seed);
  options.rails = world->plan.cluster.rails;
  options.staging_bytes = world->plan.staging_bytes;
  process_ = world->cluster->AddWorker(host, options);
  process_->set_sleeps(world->has(SwarmFeature::kSleeps));
  excused_ = world->has(SwarmFeature::kControlLoss) || world->has(SwarmFeature::kOldStates);
}

SwarmClient::~SwarmClient() {
  world_->Trace(absl::StrCat("ends: ", Describe()));
  CheckStaleness();
  for (const auto& [table, change] : unsure_rates_) {
    world_->tables.at(table).rates().Orphan(change);
  }
  world_->cluster->CrashWorker(process_);
}

// Pulls are counted by how many steps the slowest worker was behind.
void SwarmClient::CheckStaleness() const {
  if (!world_->has(SwarmFeature::kSsp)) return;
  uint32_t bound = 0;
  for (const auto& [id, table] : world_->tables) {
    bound = std::max(bound, table.spec().staleness());
  }
  const auto counts = process_->core().statistics().staleness;
  for (uint32_t s = bound + 1; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    world_->Violation(absl::StrCat(Describe(), ": ", counts[s], " pulls at staleness ", s,
                                   "; at most ", bound, " is allowed"));
  }
}

int64_t SwarmClient::DrawDeadline() {
  const bool calm = world_->stage != SwarmStage::kFaults;
  return world_->now() + (calm ? world_->Between(500, 3000) : world_->Between(1, 1500)) * kMilli;
}

// A step takes as long as its slowest worker.
int64_t SwarmClient::DrawStepDeadline() {
  const bool calm = world_->stage != SwarmStage::kFaults;
  return calm ? world_->now() + world_->Between(1000, 8000) * kMilli : DrawDeadline();
}

// ---- the process's life -------------------------------------------------------------------------

void SwarmClient::Run() {
  if (process_->stalled(world_->now()) || process_->held(world_->now())) return;
  // Only a client with one operation sleeps until the last answer.
  if (operations_ > 1 && process_->slept_through()) {
    world_->Violation(absl::StrCat(Describe(), ": an answer has woken nobody"));
  }
  Settle();
  switch (phase_) {
    case Phase::kStart:
      if (leaving_ && calls_ == 0) phase_ = Phase::kEnded;
      if (!leaving_ && world_->now() >= next_at_) Join();
      break;
    case Phase::kRunning:
      if (leaving_) {
        if (!idle()) break;
        phase_ = Phase::kLeaving;
        ++calls_;
        process_->core().Leave(process_->At(world_->now() + 2 * kSecond), [this](absl::Status) {
          --calls_;
          phase_ = Phase::kEnded;
        });
      } else if (world_->stage != SwarmStage::kFinish || reads_all_) {
        OpenTables();
        if (phase_ == Phase::kRunning) Begin();
      }
      break;
    default:
      break;
  }
}

void SwarmClient::Join() {
  phase_ = Phase::kJoining;
  ++calls_;
  process_->core().Join(process_->At(world_->now() + 2 * kSecond), [this](absl::Status status) {
    --calls_;
    last_ = status;
    world_->Trace(absl::StrCat("joins: ", Describe()));
    if (status.ok()) {
      phase_ = Phase::kRunning;
      for (const v1::Job& job : process_->core().view().jobs()) {
        if (job.name() == job_->plan.name) stepper_.Join(job.generation());
      }
    } else if (absl::IsAborted(status)) {
      Expired(status, "Join");
    } else {
      // A job without tables takes no more workers than it expects: later.
      next_at_ = world_->now() + 100 * kMilli;
      phase_ = Phase::kStart;
    }
  });
}

bool SwarmClient::Wants(const SwarmTable& table) const {
  if (table.dropped()) return false;
  return table.spec().job() == job_->plan.name ||
         (observer_ && world_->has(SwarmFeature::kForeignReads));
}

void SwarmClient::OpenTables() {
  if (tables_seen_ == world_->table_changes) return;
  tables_seen_ = world_->table_changes;
  for (const auto& [id, table] : world_->tables) {
    const std::string& name = table.spec().name();
    if (!Wants(table) || opened_.contains(id) || !opening_.insert(name).second) continue;
    ++calls_;
    process_->core().OpenTable(
        name, process_->At(world_->now() + kSecond),
        [this, name, began = world_->now()](absl::StatusOr<v1::Table> opened) {
          --calls_;
          opening_.erase(name);
          tables_seen_ = 0;
          last_ = opened.status();
          if (opened.ok()) {
            opened_.insert(opened->id());
            Prioritize(opened->id());
          } else if (absl::IsAborted(last_) ||
                     absl::StrContains(last_.message(), "connect again") ||
                     (absl::IsFailedPrecondition(last_) && !OfOtherJob(name, began))) {
            Expired(last_, "OpenTable");
          }
        });
    if (phase_ != Phase::kRunning) return;
  }
}

// In every fifth seed: other orders of tables on other workers. No draw, which would move all
// seeds.
void SwarmClient::Prioritize(uint32_t table) {
  if (world_->plan.seed % 5 != 1) return;
  const auto mixed = static_cast<int32_t>((table * 7 + slot_ * 3) % 5);
  process_->core().SetPriority(table, mixed - 2).IgnoreError();
}

// Whether the client follows an older state of the coordinator, which differs from the models. The
// client ends when it hears of the newer state.
bool SwarmClient::FollowsOlder() const {
  const auto& terms = std::as_const(*process_).core().view().terms();
  return !terms.empty() && !world_->terms.contains(terms.rbegin()->id());
}

// A table that is restored in place of another job's has the name before it is served.
bool SwarmClient::OfOtherJob(const std::string& name, int64_t since_ns) const {
  return std::any_of(world_->tables.begin(), world_->tables.end(), [&](const auto& entry) {
    const SwarmTable& table = entry.second;
    return table.spec().name() == name && table.spec().job() != job_->plan.name &&
           table.served_since(since_ns);
  });
}

void SwarmClient::Expired(const absl::Status& status, const char* call) {
  if (phase_ != Phase::kEnded && !excused_) {
    world_->Violation(absl::StrCat(Describe(), ": ", call,
                                   " says that its lease has ended, though ",
                                   "it ran and was heard: ", status.ToString()));
  }
  phase_ = Phase::kEnded;
}

bool SwarmClient::Full() const {
  const bool steps =
      std::any_of(world_->tables.begin(), world_->tables.end(), [this](const auto& table) {
        return !table.second.dropped() && table.second.steps() != nullptr &&
               table.second.spec().job() == job_->plan.name;
      });
  const auto& jobs = world_->cluster->view().jobs();
  return steps && std::any_of(jobs.begin(), jobs.end(), [this](const v1::Job& job) {
           auto ranks = static_cast<uint32_t>(job.departed_ranks_size());
           for (const v1::Worker& member : job.members()) ranks += member.rank() >= 0 ? 1 : 0;
           return job.name() == job_->plan.name && ranks >= job.expected_workers();
         });
}

bool SwarmClient::Proved(std::string* missing) const {
  if (phase_ == Phase::kEnded) return true;
  const bool wants = std::any_of(world_->tables.begin(), world_->tables.end(),
                                 [this](const auto& table) { return Wants(table.second); });
  if (!wants) return true;
  if (phase_ != Phase::kRunning) {
    if (!observer_ && Full()) return true;
    *missing = absl::StrCat(Describe(), " has not joined");
    return false;
  }
  for (const auto& [id, table] : world_->tables) {
    if (!Wants(table)) continue;
    const auto used = used_.find(id);
    const auto [first, end] = table.OwnedBy(slot_, job_->plan.workers);
    bool pushes = table.steps() != nullptr && !observer_;
    for (uint32_t u = first; !observer_ && u < end; ++u) pushes |= table.MayPush(u);
    if (used != used_.end() && used->second.pulled && (used->second.pushed || !pushes)) continue;
    *missing = absl::StrCat(Describe(), " has not used table ", id, " '", table.spec().name(), "'");
    return false;
  }
  return true;
}

std::string SwarmClient::Describe() const {
  static constexpr const char* kNames[] = {"start", "joining", "running", "leaving", "ended"};
  return absl::StrCat(process_->host(), " (incarnation ",
                      std::as_const(*process_).core().incarnation(), ", ",
                      kNames[static_cast<int>(phase_)], ", ", operations_, " operations, ",
                      unsettled_.size(), " buffers out, last: ", last_.ToString(), ")");
}

// ---- operations ---------------------------------------------------------------------------------

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
  if (push && table.steps() == nullptr) range = table.OwnedBy(slot_, job_->plan.workers);
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
      table->steps()->End(stepper_.generation(), operation->step);
      stepper_.End(table->id());
    }
  }
  if (turn.end) EndStep(table);
}

bool SwarmClient::Start(SwarmTable* table, const std::shared_ptr<Operation>& operation) {
  operation->table = table->id();
  operation->amount =
      operation->pushes ? table->PushedAmount(world_->Between(1, 3), job_->plan.workers) : 0;
  operation->began_ns = world_->now();
  operation->known_lost = KnowsLost(*table, operation->units);
  operation->revision = std::as_const(*process_).core().view().revision();
  operation->changes = table->rates().changes();
  Fill(*table, operation.get());
  for (const uint32_t unit : operation->units) {
    operation->lives.push_back(table->life(table->units()[unit].partition));
    operation->least.push_back(table->Least(unit));
    // A push-pull shows its own push, too.
    if (table->steps() == nullptr && operation->pulls) {
      operation->least.back() += table->Gain(unit, operation->amount, operation->changes).low;
    }
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
  const bool varies = steps == nullptr && VariesRate(*table);
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
    operation->values =
        *rdma::MemoryBlock::AllocatePrivate(elements * bytes, rdma::kSharedPages, "swarm values");
  }
  if (!operation->pushes || operation->assigns || operation->state) return;
  const uint32_t bytes = table.gradient_bytes();
  operation->gradient =
      *rdma::MemoryBlock::AllocatePrivate(elements * bytes, rdma::kSharedPages, "swarm gradient");
  const auto bits =
      std::bit_cast<uint32_t>(-static_cast<float>(operation->amount)) >> (bytes == 2 ? 16 : 0);
  for (uint64_t e = 0; e < elements; ++e) {
    std::memcpy(operation->gradient->data() + e * bytes, &bits, bytes);
  }
}

void SwarmClient::FillAssigned(const SwarmTable& table, Operation* operation) {
  uint64_t elements = 0;
  for (const uint32_t unit : operation->units) elements += table.elements(unit);
  const uint32_t bytes = table.parameter_bytes();
  operation->gradient =
      *rdma::MemoryBlock::AllocatePrivate(elements * bytes, rdma::kSharedPages, "swarm parameters");
  std::byte* to = operation->gradient->data();
  for (size_t i = 0; i < operation->units.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(operation->values_to_be[i])) >>
                      (bytes == 2 ? 16 : 0);
    for (uint64_t e = 0; e < table.elements(operation->units[i]); ++e, to += bytes) {
      std::memcpy(to, &bits, bytes);
    }
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
  return core.Pull(table.id(), values, std::nullopt, deadline, done, operation->pulled);
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
  const absl::StatusOr<client::OperationId> id =
      process_->core().EndStep(table->id(), process_->At(step->deadline_ns),
                               [this, step](absl::Status status) { Ended(step, status); });
  if (!id.ok()) return Ended(step, id.status());
  if (table->steps() == nullptr) return;
  table->steps()->End(stepper_.generation(), step->step);
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

void SwarmClient::RateChanged(SwarmTable* table, const Operation& change) {
  table->rates().Acknowledge(*change.change);
  unsure_rates_.erase({table->id(), *change.change});
  SwarmSteps* const steps = table->steps();
  if (steps == nullptr || steps->generation() != stepper_.generation()) return;
  const std::string wrong = steps->RateChanged(change.step);
  if (wrong.empty()) return;
  world_->Violation(absl::StrCat(process_->host(),
                                 ": an acknowledged change of the rate is not in ",
                                 "what was read of table ", table->id(), ", ", wrong));
}

void SwarmClient::Ended(const std::shared_ptr<Operation>& operation, const absl::Status& status) {
  --operations_;
  last_ = status;
  if (std::exchange(operation->done, true)) {
    world_->Violation(absl::StrCat(Describe(), ": an operation ended twice"));
  }
  for (const uint32_t unit : operation->units) {
    const auto pushing = pushing_.find({operation->table, unit});
    if (operation->pushes && --pushing->second == 0) pushing_.erase(pushing);
  }
  for (const auto& block : {operation->gradient, operation->values}) {
    if (block != nullptr) unsettled_.emplace_back(operation->id, block);
  }
  SwarmTable& table = world_->tables.at(operation->table);
  waiting_ -= WaitsForOthers(table) ? 1 : 0;
  if (operation->version.has_value()) stepper_.Reads(false);
  Judge(status, table, *operation);
  if (!status.ok()) {
    world_->Trace(absl::StrCat(process_->host(), ": table ", operation->table, ", ",
                               operation->pushes  ? "push"
                               : operation->pulls ? "pull"
                                                  : "end-step",
                               ": ", status.ToString()));
    // New rows are refused for as long as nobody makes room.
    if (RefusesRows(status) && Proves(*operation)) used_[operation->table].pushed = true;
    // A call that fails at once is not repeated at once: time would stand still.
    next_at_ = std::max(next_at_, world_->now() + world_->Between(1, 5) * kMilli);
    return;
  }
  Succeeded(*operation, &table);
}

void SwarmClient::Succeeded(const Operation& operation, SwarmTable* table) {
  if (operation.change.has_value()) RateChanged(table, operation);
  if (table->steps() != nullptr) Committed(operation, table);
  if (operation.pushes) {
    ++world_->result->pushes;
    for (size_t i = 0; i < operation.units.size(); ++i) {
      Acknowledge(table, operation, i);
    }
  }
  if (operation.pulls) {
    ++world_->result->pulls;
    if (operation.state) {
      CheckStates(operation, *table);
    } else {
      CheckValues(operation, table);
    }
  }
  if (!Proves(operation)) return;
  const bool steps = table->steps() != nullptr;
  used_[operation.table].pushed |= steps ? operation.ends : operation.pushes;
  // A pull of an ssp table may rightly wait for others: pushes prove it.
  used_[operation.table].pulled |=
      operation.pulls || table->spec().consistency() == v1::CONSISTENCY_SSP;
}

void SwarmClient::Acknowledge(SwarmTable* table, const Operation& operation, size_t i) {
  const uint32_t unit = operation.units[i], life = operation.lives[i];
  if (operation.state) {
    if (life == table->life(table->units()[unit].partition)) {
      table->states().Acknowledge(unit, operation.assigned);
    }
    return;
  }
  if (operation.assigns || table->steps() != nullptr) {
    return table->Acknowledge(unit, operation.gains[i], life);
  }
  const SwarmBounds gain = table->Gain(unit, operation.amount, operation.changes);
  table->Acknowledge(unit, static_cast<int64_t>(gain.low), life);
  table->Reconsider(unit, operation.gains[i], static_cast<int64_t>(gain.high), life);
}

bool SwarmClient::Proves(const Operation& operation) const {
  return world_->stage != SwarmStage::kFaults && operation.began_ns >= world_->recovery_began_ns;
}

void SwarmClient::Committed(const Operation& operation, SwarmTable* table) {
  SwarmSteps* steps = table->steps();
  const uint32_t generation = stepper_.generation();
  world_->result->steps += operation.ends ? 1 : 0;
  for (size_t i = 0; operation.pushes && i < operation.units.size(); ++i) {
    const uint32_t unit = operation.units[i];
    if (operation.lives[i] != table->life(table->units()[unit].partition)) continue;
    steps->Commit(generation, unit, operation.step + 1);
    if (operation.state) continue;
    const std::string wrong =
        operation.assigns ? steps->AcknowledgeAssign(generation, operation.step, unit)
                          : steps->Acknowledge(generation, operation.step, unit, operation.amount);
    if (wrong.empty() || !table->exact()) continue;
    world_->Violation(absl::StrCat(process_->host(), ": an acknowledged push is not in what was ",
                                   "read of table ", table->id(), ", unit ", unit, ": ", wrong));
  }
  const uint64_t version = operation.version.value_or(operation.step + 1);
  if (operation.ends && world_->trace) {
    world_->Trace(absl::StrCat(process_->host(), ": table ", table->id(), ", step ", operation.step,
                               " is committed"));
  }
  if (operation.ends || (operation.whole && operation.pulls)) {
    for (uint32_t unit = 0; unit < table->units().size(); ++unit) {
      if (!table->lost(table->units()[unit].partition)) steps->Commit(generation, unit, version);
    }
    stepper_.Known(table->id(), version);
  }
}

void SwarmClient::CheckValues(const Operation& operation, SwarmTable* table) {
  const std::byte* from = operation.values->data();
  const uint32_t bytes = table->parameter_bytes();
  std::vector<float> values;
  for (size_t i = 0; i < operation.units.size(); ++i) {
    const uint32_t unit = operation.units[i];
    values.resize(table->elements(unit));
    for (float& value : values) {
      uint32_t bits = 0;
      std::memcpy(&bits, from, bytes);
      value = std::bit_cast<float>(bits << (bytes == 2 ? 16 : 0));
      from += bytes;
    }
    std::string wrong =
        table->Check(unit, values, operation.least[i], operation.lives[i], operation.bags);
    // One that has ended more steps since may have been shown a later one.
    const bool known = operation.version.has_value() && table->exact() &&
                       stepper_.Shows(*table, unit, *operation.version) &&
                       operation.lives[i] == table->life(table->units()[unit].partition);
    if (wrong.empty() && known) {
      wrong = table->steps()->Check(stepper_.generation(), unit, *operation.version,
                                    static_cast<double>(values[0]), operation.bags);
      if (!wrong.empty()) {
        wrong = absl::StrCat("table ", table->id(), " '", table->spec().name(), "' unit ", unit,
                             ": ", wrong);
      }
    }
    if (!wrong.empty()) world_->Violation(absl::StrCat(process_->host(), ": ", wrong));
  }
}

bool SwarmClient::RefusesRows(const absl::Status& status) const {
  return world_->has(SwarmFeature::kShortMemory) && absl::IsResourceExhausted(status) &&
         absl::StrContains(status.message(), "has reached its memory limit");
}

bool SwarmClient::MayBeRefused(const SwarmTable& table, const Operation& operation) const {
  if (!operation.pushes) return false;
  if (table.steps() != nullptr || !table.complete()) return true;
  for (size_t i = 0; i < operation.units.size(); ++i) {
    const SwarmTable::Unit& unit = table.units()[operation.units[i]];
    if (operation.lives[i] != table.life(unit.partition) || table.lost(unit.partition)) return true;
    if (operation.least[i] <= 0) return true;
  }
  return false;
}

// A reset ends the loss for every client that has seen the reset.
bool SwarmClient::MayBeLost(const SwarmTable& table, uint32_t partition,
                            const Operation& operation) const {
  if (table.lost(partition)) return true;
  // Revisions cannot be compared after an older state was put back.
  if (world_->has(SwarmFeature::kOldStates)) return table.ever_lost(partition);
  return table.reset_revision(partition) > operation.revision;
}

void SwarmClient::Judge(const absl::Status& status, const SwarmTable& table,
                        const Operation& operation) {
  const int64_t now = world_->now();
  const char* const call = operation.pushes ? "a push" : operation.pulls ? "a pull" : "an end-step";
  const auto wrong = [&](const char* problem) {
    world_->Violation(absl::StrCat(Describe(), ": ", call, " on table ", table.id(), " '",
                                   table.spec().name(), "' ", problem, " (deadline ",
                                   operation.deadline_ns / kMilli, " ms): ", status.ToString()));
  };
  const int64_t ran_ns = std::max(process_->stalled_until(), process_->held_until());
  if (now > std::max(operation.deadline_ns, ran_ns) + kSlack) {
    wrong("ended after its deadline");
  }
  if (RefusesRows(status)) {
    if (!MayBeRefused(table, operation)) wrong("is refused for memory, though all its rows exist");
    return;
  }
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return;
    case absl::StatusCode::kDataLoss:
      for (const uint32_t unit : operation.units) {
        if (MayBeLost(table, table.units()[unit].partition, operation)) return;
      }
      for (uint32_t p = 0; operation.units.empty() && p < kSimPartitions; ++p) {
        if (MayBeLost(table, p, operation)) return;
      }
      return wrong("says that data is lost, which is not");
    case absl::StatusCode::kNotFound:
      if (!table.dropped() && !FollowsOlder()) wrong("says that a table is not there, which is");
      return;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      if (table.dropped()) return;
      return Expired(status, call);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
      if (operation.known_lost && !table.dropped()) {
        wrong("waited for a partition that is lost, which this client knows");
      }
      if (now < operation.deadline_ns - kSlack && !table.dropped()) {
        wrong("failed before its deadline");
      }
      return;
    default:
      return wrong("ended in a way that it must not");
  }
}

// Buffers that are ours again are noted, and scribbled over, so that any later access to them
// shows.
void SwarmClient::Settle() {
  const client::ClientCore& core = std::as_const(*process_).core();
  std::erase_if(unsettled_, [&](const auto& buffer) {
    const auto& [operation, block] = buffer;
    if (operation != 0 && !core.BufferReleased(operation)) {
      if (world_->has(SwarmFeature::kFreeRegions) && world_->Chance(0.01)) {
        process_->core().ReleaseBlock(block->id());
      }
      return false;
    }
    // The client keeps a block registered until then.
    process_->core().ReleaseBlock(block->id());
    world_->settled.emplace(process_->host(), block->id());
    std::memset(block->data(), kScribble, block->size());
    return true;
  });
}

}  // namespace verbena::test
