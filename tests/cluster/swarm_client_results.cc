// How operations of a client of the swarm end: whether they may end so, and what they show.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/swarm_client.h"

namespace verbena::test {
namespace {

// A call may end that much before or after its deadline.
constexpr int64_t kSlack = 10 * kMilli;
constexpr int kScribble = 0x4b;  // numbers of about 13 million

}  // namespace

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
    if (bytes == sizeof(float)) {
      std::memcpy(values.data(), from, values.size() * sizeof(float));
    } else {
      for (size_t e = 0; e < values.size(); ++e) {
        uint16_t bits = 0;
        std::memcpy(&bits, from + e * sizeof(bits), sizeof(bits));
        values[e] = std::bit_cast<float>(uint32_t{bits} << 16);
      }
    }
    from += values.size() * bytes;
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
    CheckRead(operation, *table, i, values[0]);
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
  // What the client holds changes in its turns and calls.
  const bool draws = world_->has(SwarmFeature::kFreeRegions);
  if (unsettled_.empty() || (!draws && settled_in_ == process_->turns())) return;
  const client::ClientCore& core = std::as_const(*process_).core();
  std::erase_if(unsettled_, [&](const auto& buffer) {
    const auto& [operation, block] = buffer;
    if (operation != 0 && !core.BufferReleased(operation)) {
      if (draws && world_->Chance(0.01)) {
        process_->core().ReleaseBlock(block->id());
      }
      return false;
    }
    // The client keeps a block registered until then.
    process_->core().ReleaseBlock(block->id());
    world_->settled.emplace(block->id(), process_->host());
    std::memset(block->data(), kScribble, block->size());
    return true;
  });
  settled_in_ = process_->turns();
}

}  // namespace verbena::test
