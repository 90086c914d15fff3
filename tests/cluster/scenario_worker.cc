#include "tests/cluster/scenario_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cluster/heap_block.h"

namespace verbena::test {
namespace {

constexpr float kScribble = 1e6f;

absl::Span<float> Floats(rdma::MemoryBlock& block) {
  return {reinterpret_cast<float*>(block.data()), block.size() / sizeof(float)};
}

}  // namespace

ScenarioWorker::ScenarioWorker(ScenarioState* state, SimWorker* process, int rank, uint64_t seed)
    : state_(state), process_(process), rank_(rank), spec_(state->table->spec()), random_(seed) {}

int64_t ScenarioWorker::RandomDeadline() {
  return state_->cluster->now() +
         std::uniform_int_distribution<int64_t>(1 * kMilli, 1500 * kMilli)(random_);
}

// Every operation gets memory of its own, so that every late access is seen.
std::shared_ptr<ScenarioWorker::Use> ScenarioWorker::NewUse(bool is_push) {
  auto use = std::make_shared<Use>();
  use->block = HeapBlock(state_->table->elements() * sizeof(float));
  use->is_push = is_push;
  use->deadline = RandomDeadline();
  uses_.push_back(use);
  return use;
}

void ScenarioWorker::Ended(const std::shared_ptr<Use>& use, const absl::Status& status) {
  if (use->done) state_->Violation("an operation ended twice");
  use->done = true;
  use->status = status;
  // A stalled process cannot notice; otherwise an operation ends by its deadline.
  const int64_t latest = std::max(use->deadline, process_->stalled_until()) + 10 * kMilli;
  if (state_->cluster->now() > latest) {
    state_->Violation(absl::StrCat("operation of ", process_->host(), " ended ",
                                   (state_->cluster->now() - use->deadline) / kMilli,
                                   " ms after its deadline: ", status.ToString()));
  }
  if (status.code() == absl::StatusCode::kAborted) phase_ = Phase::kExpired;
}

// The incarnation was retired: the worker's part is over.
bool ScenarioWorker::Fatal(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kAborted &&
      status.code() != absl::StatusCode::kFailedPrecondition) {
    return false;
  }
  phase_ = Phase::kExpired;
  return true;
}

void ScenarioWorker::Join() {
  phase_ = Phase::kJoining;
  process_->core().Join(process_->At(state_->cluster->now() + 2 * kSecond),
                        [this](absl::Status status) {
                          if (status.ok()) {
                            phase_ = Phase::kJoined;
                            // Too late: the run it was to join is over, and another one waits for
                            // all its workers.
                            if (process_->core().view().jobs(0).generation() > 1) Leave();
                          } else if (!Fatal(status)) {
                            phase_ = Phase::kStart;
                          }
                        });
}

void ScenarioWorker::Open() {
  phase_ = Phase::kOpening;
  process_->core().CreateTable(spec_, process_->At(state_->cluster->now() + 2 * kSecond),
                               [this](absl::StatusOr<v1::Table> table) {
                                 if (table.ok()) {
                                   table_ = table->id();
                                   phase_ = Phase::kStep;
                                   Begin();
                                 } else if (!Fatal(table.status())) {
                                   phase_ = Phase::kJoined;
                                 }
                               });
}

void ScenarioWorker::Begin() {
  last_ = static_cast<uint64_t>(state_->options.steps);
  if (!state_->options.elastic) return;
  step_ = first_ = client::OwnFirstStep(process_->core(), table_);
  if (first_ > 0) ++state_->result->admitted;
  // Some leave early.
  if (step_ < last_ && std::bernoulli_distribution(0.3)(random_)) {
    last_ = std::uniform_int_distribution<uint64_t>(step_ + 1, last_)(random_);
    if (last_ < static_cast<uint64_t>(state_->options.steps)) ++state_->result->left;
  }
}

void ScenarioWorker::PushStep() {
  int64_t& started = state_->result->started_ns;
  if (started == 0) started = state_->cluster->now();
  auto use = NewUse(true);
  if (phase_ == Phase::kExpired) return;
  std::vector<float> gradient(state_->table->elements());
  const bool sync = spec_.consistency() == v1::CONSISTENCY_SYNC;
  for (uint64_t e = 0; e < gradient.size(); ++e) {
    // A float has room for the counts of three workers: those that come late push zeros.
    gradient[e] = sync ? SyncGradient(rank_, step_, e) : late() ? 0 : AsyncGradient(rank_);
  }
  state_->table->PutGradients(gradient, use->block->data());
  // Some sync steps leave chunks out: they count as zero, and only the end of the step reports it.
  const ScenarioTable& table = *state_->table;
  uint32_t first = 0, chunks = table.chunks();
  if (sync && std::bernoulli_distribution(0.3)(random_)) {
    first = std::uniform_int_distribution<uint32_t>(0, chunks)(random_);
    chunks = std::uniform_int_distribution<uint32_t>(0, chunks - first)(random_);
  }
  const uint64_t begin = table.first(first);
  const uint64_t end = table.first(first + chunks);
  if (begin < end) {
    ++attempted_;
    auto id = Push(use, begin, end);
    if (!id.ok()) {
      Ended(use, id.status());
      Fatal(id.status());
      return;
    }
    use->id = *id;
  } else {
    use->done = true;
  }
  auto last = std::make_shared<Use>();
  last->deadline = RandomDeadline();
  auto end_id =
      process_->core().EndStep(table_, process_->At(last->deadline),
                               [this, last](absl::Status status) { Ended(last, status); });
  if (!end_id.ok() && Fatal(end_id.status())) return;
  ++ended_;
  if (phase_ == Phase::kStep) phase_ = Phase::kPull;
}

absl::StatusOr<client::OperationId> ScenarioWorker::Push(const std::shared_ptr<Use>& use,
                                                         uint64_t begin, uint64_t end) {
  const auto done = [this, use](absl::Status status) {
    if (status.ok()) ++acknowledged_;
    Ended(use, status);
  };
  client::ClientCore& core = process_->core();
  const size_t offset = begin * state_->table->gradient_bytes();
  if (state_->table->embedding()) {
    return core.PushRows(table_, state_->table->keys(begin, end), {use->block, offset},
                         process_->At(use->deadline), done);
  }
  return core.Push(table_, {use->block, offset, begin, end - begin}, process_->At(use->deadline),
                   done);
}

void ScenarioWorker::StartPull() {
  pull_ = NewUse(false);
  if (phase_ == Phase::kExpired) return;
  least_.assign(static_cast<size_t>(state_->options.workers), 0);
  for (const auto& other : state_->workers) {
    if (!other->late()) least_[static_cast<size_t>(other->rank())] = other->acknowledged();
  }
  phase_ = Phase::kPulling;
  const ScenarioTable& table = *state_->table;
  const bool sync = spec_.consistency() == v1::CONSISTENCY_SYNC;
  std::optional<uint64_t> version;
  if (sync) version = step_ + 1;
  auto use = pull_;
  client::ClientCore& core = process_->core();
  const auto done = [this, use](absl::Status status) { Ended(use, status); };
  const bool bags = table.embedding() && std::bernoulli_distribution(0.5)(random_);
  const double share = state_->options.push_pulls;
  const bool pushes = !sync && !table.embedding() && !late() && push_pulls_ <= step_ && share > 0 &&
                      std::bernoulli_distribution(share)(random_);
  const int64_t deadline = process_->At(use->deadline);
  auto id = pushes ? PushPull(use)
            : bags ? LookupBags(use, version, deadline, done)
            : table.embedding()
                ? core.Lookup(table_, table.keys(0, table.elements()), {use->block, 0}, version,
                              deadline, done)
                : core.Pull(table_, {use->block, 0, 0, table.elements()}, version, deadline, done);
  if (id.ok()) {
    use->id = *id;
  } else {
    Ended(use, id.status());
    Fatal(id.status());
  }
}

absl::StatusOr<client::OperationId> ScenarioWorker::PushPull(const std::shared_ptr<Use>& use) {
  const ScenarioTable& table = *state_->table;
  use->gradient = HeapBlock(table.elements() * sizeof(float));
  table.PutGradients(std::vector<float>(table.elements(), AsyncGradient(rank_)),
                     use->gradient->data());
  push_pulls_ = step_ + 1;
  ++attempted_;
  return process_->core().PushPull(table_, {use->gradient, 0, 0, table.elements()},
                                   {use->block, 0, 0, table.elements()},
                                   process_->At(use->deadline), [this, use](absl::Status status) {
                                     if (status.ok()) ++acknowledged_;
                                     Ended(use, status);
                                   });
}

// Bags that are the rows: each has one of them, and another one times zero.
absl::StatusOr<client::OperationId> ScenarioWorker::LookupBags(const std::shared_ptr<Use>& use,
                                                               std::optional<uint64_t> version,
                                                               int64_t deadline,
                                                               client::ClientCore::Done done) {
  const absl::Span<const uint64_t> rows = state_->table->keys(0, state_->table->elements());
  std::vector<uint64_t> keys, offsets;
  std::vector<float> weights;
  for (size_t i = 0; i < rows.size(); ++i) {
    offsets.push_back(keys.size());
    keys.insert(keys.end(), {rows[(i * 7 + 3) % rows.size()], rows[i]});
    weights.insert(weights.end(), {0, 1});
  }
  return process_->core().LookupBags(table_, {keys, offsets, weights, client::BagMode::kSum},
                                     {use->block, 0}, version, deadline, std::move(done));
}

void ScenarioWorker::CheckPull(const Use& use) {
  const std::vector<float> data = state_->table->Parameters(use.block->data());
  if (spec_.consistency() == v1::CONSISTENCY_SYNC) {
    const std::string wrong = state_->reference->Check(data, step_ + 1);
    if (!wrong.empty()) state_->Violation(absl::StrCat(process_->host(), " pulled: ", wrong));
    return;
  }
  const ScenarioTable& table = *state_->table;
  for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk) {
    const uint64_t first = table.first(chunk);
    for (uint64_t e = first; e < table.end(chunk); ++e) {
      if (data[e] == data[first]) continue;
      state_->Violation(absl::StrCat(process_->host(), " pulled half a chunk: element ", first,
                                     " is ", data[first], ", element ", e, " is ", data[e]));
      return;
    }
  }
  if (data[0] > last_seen_) {
    state_->Violation(absl::StrCat(process_->host(), " pulled ", data[0], " after ", last_seen_));
  }
  last_seen_ = data[0];
  CheckCounts(data);
  if (spec_.consistency() == v1::CONSISTENCY_SSP) CheckStaleness();
}

// A pull that is answered holds every push that was acknowledged to any worker before it began:
// only the primary answers it.
void ScenarioWorker::CheckCounts(absl::Span<const float> data) {
  const ScenarioTable& table = *state_->table;
  for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk) {
    if (table.first(chunk) == table.end(chunk)) continue;
    for (int rank = 0; rank < state_->options.workers; ++rank) {
      const uint32_t count = AsyncCount(data[table.first(chunk)], rank);
      const uint32_t least = least_[static_cast<size_t>(rank)];
      if (count >= least) continue;
      state_->Violation(absl::StrCat(process_->host(), " pulled ", count, " pushes of rank ", rank,
                                     " in chunk ", chunk, ", of which ", least,
                                     " had been acknowledged"));
      return;
    }
  }
}

// A server cannot have counted more steps of a member than that member has ended.
void ScenarioWorker::CheckStaleness() {
  const auto& counts = process_->core().statistics().staleness;
  for (uint32_t s = spec_.staleness() + 1; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    state_->Violation(absl::StrCat(process_->host(), " read at staleness ", s));
  }
  if (late()) return;  // where it began, only the servers know
  for (const auto& other : state_->workers) {
    const uint64_t incarnation = other->process()->core().incarnation();
    const auto& members = state_->cluster->view().jobs(0).members();
    const bool member = std::any_of(members.begin(), members.end(), [&](const v1::Worker& w) {
      return w.incarnation() == incarnation;
    });
    if (!member || other->late() || other->ended() + spec_.staleness() >= ended_) continue;
    state_->Violation(absl::StrCat(process_->host(), " read after ", ended_, " steps, when ",
                                   other->Describe(), " had ended ", other->ended()));
  }
}

// A worker that stays without making steps would block the other workers on an ssp table.
void ScenarioWorker::Leave() {
  int64_t& fast = state_->result->fast_ns;
  if (rank_ != 0) fast = std::max(fast, state_->cluster->now());
  const auto& counts = process_->core().statistics().staleness;
  for (size_t s = 0; s < counts.size(); ++s) state_->result->staleness[s] += counts[s];
  if (spec_.consistency() != v1::CONSISTENCY_SSP && !state_->options.elastic) {
    phase_ = Phase::kFinished;
    return;
  }
  phase_ = Phase::kLeaving;
  process_->core().Leave(process_->At(state_->cluster->now() + 2 * kSecond),
                         [this](absl::Status) { phase_ = Phase::kFinished; });
}

// Buffers that are ours again are marked, and scribbled over, so that any later access shows.
void ScenarioWorker::Settle() {
  for (auto it = uses_.begin(); it != uses_.end();) {
    Use& use = **it;
    const bool released = use.done && (use.id == 0 || process_->core().BufferReleased(use.id));
    if (!released || *it == pull_) {
      ++it;
      continue;
    }
    state_->settled.emplace(use.block->id(), process_->host());
    for (float& f : Floats(*use.block)) f = kScribble;
    if (use.gradient != nullptr) {
      state_->settled.emplace(use.gradient->id(), process_->host());
      for (float& f : Floats(*use.gradient)) f = kScribble;
    }
    it = uses_.erase(it);
  }
}

void ScenarioWorker::Run() {
  if (process_->stalled(state_->cluster->now())) return;
  Settle();
  switch (phase_) {
    case Phase::kStart:
      Join();
      break;
    case Phase::kJoined:
      Open();
      break;
    case Phase::kStep:
      if (step_ >= last_) {
        Leave();
      } else if (state_->options.step_ns > 0 && !computed_) {
        computed_ = true;
        process_->StallUntil(state_->cluster->now() +
                             state_->options.step_ns *
                                 (rank_ == 0 ? state_->options.slow_factor : 1));
      } else {
        computed_ = false;
        PushStep();
      }
      break;
    case Phase::kPull:
      StartPull();
      break;
    case Phase::kPulling:
      if (!pull_->done) break;
      if (pull_->status.ok()) {
        if (pull_->gradient != nullptr) ++least_[static_cast<size_t>(rank_)];
        CheckPull(*pull_);
        ++step_;
        phase_ = Phase::kStep;
      } else {
        ++state_->result->resumed_operations;
        phase_ = Phase::kPull;
      }
      pull_.reset();
      break;
    default:
      break;
  }
}

std::string ScenarioWorker::Describe() const {
  static constexpr const char* kNames[] = {"start", "joining", "joined",  "opening",  "step",
                                           "pull",  "pulling", "leaving", "finished", "expired"};
  return absl::StrCat(process_->host(), " (rank ", rank_, ") at step ", step_, ", ",
                      kNames[static_cast<int>(phase_)]);
}

}  // namespace verbena::test
