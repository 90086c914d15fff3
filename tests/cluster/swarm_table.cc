#include "tests/cluster/swarm_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/optimizer_spec.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"

namespace verbena::test {
namespace {

int64_t DrawBetween(std::mt19937_64* random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(*random);
}
bool DrawChance(std::mt19937_64* random, double p) {
  return std::bernoulli_distribution(p)(*random);
}

// Rounds to the nearest bf16, ties to even.
float RoundToBf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

// Rows of kShortMemory and kWideLoads.
constexpr uint32_t kWideDim = 96;

// How many keys the model of a table has: those of a tiered one do not fit its memory, and those of
// one with an eviction by number exceed it.
uint32_t KeysOf(const v1::TableSpec& spec) {
  if (spec.has_cold_tier()) return 800;
  if (spec.dim() == kWideDim) return 400;
  return spec.row_dtype() == v1::DTYPE_BF16 || spec.eviction().max_rows() > 0 ? 160 : 60;
}

void DrawRows(const SwarmPlan& plan, std::mt19937_64* random, v1::TableSpec* spec) {
  const bool wide = plan.has(SwarmFeature::kShortMemory) || plan.has(SwarmFeature::kWideLoads);
  spec->set_dim(wide ? kWideDim : 2);
  if (plan.has(SwarmFeature::kColdTier) && DrawChance(random, 0.6)) {
    spec->set_dim(64);
    spec->mutable_cold_tier()->set_hot_bytes(64 << 10);
    return;
  }
  if (plan.has(SwarmFeature::kHalfPrecision) && DrawChance(random, 0.5)) {
    spec->set_row_dtype(v1::DTYPE_BF16);
  }
  if (plan.has(SwarmFeature::kAdmission) && DrawChance(random, 0.5)) {
    spec->mutable_admission()->set_kind(v1::Admission::MIN_COUNT);
    spec->mutable_admission()->set_min_count(2);
    spec->mutable_admission()->set_sketch_bytes(64 << 10);
  }
  if (plan.has(SwarmFeature::kEviction) && DrawChance(random, 0.5)) {
    v1::Eviction* eviction = spec->mutable_eviction();
    if (DrawChance(random, 0.5)) {
      eviction->set_kind(v1::Eviction::TTL_STEPS);
      eviction->set_ttl(static_cast<uint64_t>(DrawBetween(random, 5, 50)));
    } else {
      eviction->set_kind(DrawChance(random, 0.5) ? v1::Eviction::LRU : v1::Eviction::LFU);
      eviction->set_max_rows(64);
    }
  }
}

void DrawDense(const SwarmPlan& plan, std::mt19937_64* random, v1::TableSpec* spec) {
  const int64_t chunks = DrawBetween(random, 1, 8);
  spec->add_shape(
      static_cast<uint64_t>(chunks * (kSimChunkBytes / 4) - DrawBetween(random, 0, 900)));
  if (plan.has(SwarmFeature::kHalfPrecision) && DrawChance(random, 0.5)) {
    if (DrawChance(random, 0.5)) spec->set_dtype(v1::DTYPE_BF16);
    if (DrawChance(random, 0.5)) spec->set_gradient_dtype(v1::DTYPE_BF16);
  }
}

}  // namespace

v1::TableSpec DrawTableSpec(const SwarmPlan& plan, std::mt19937_64* random) {
  v1::TableSpec spec;
  const double rows = plan.has(SwarmFeature::kNorms) ? 0.3 : 0.6;
  if (plan.has(SwarmFeature::kShortMemory) ||
      (plan.has(SwarmFeature::kEmbedding) && DrawChance(random, rows))) {
    DrawRows(plan, random, &spec);
  } else {
    DrawDense(plan, random, &spec);
  }
  if (plan.has(SwarmFeature::kCodecs)) {
    const bool pushes_f32 = spec.gradient_dtype() != v1::DTYPE_BF16;
    if (pushes_f32 && DrawChance(random, 0.5)) spec.set_push_codec(v1::CODEC_BF16);
    if (spec.dtype() != v1::DTYPE_BF16 && DrawChance(random, 0.5))
      spec.set_pull_codec(v1::CODEC_BF16);
  }
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  if (plan.has(SwarmFeature::kSsp) && DrawChance(random, 0.5)) {
    spec.set_consistency(v1::CONSISTENCY_SSP);
    spec.set_staleness(static_cast<uint32_t>(DrawBetween(random, 1, 20)));
  }
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.set_chunk_bytes(kSimChunkBytes);
  const bool state = plan.has(SwarmFeature::kOptimizerState) && DrawChance(random, 0.5);
  spec.mutable_optimizer()->set_name(state ? "adagrad" : "sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

void DrawSteps(const SwarmPlan& plan, const SwarmJobPlan& job, std::mt19937_64* random,
               v1::TableSpec* spec) {
  const bool norms = plan.has(SwarmFeature::kNorms);
  if (!job.steps || DrawChance(random, 0.2)) return;
  const bool norm =
      norms && spec->dim() == 0 && (!plan.has(SwarmFeature::kSync) || DrawChance(random, 0.6));
  if (!norm && !plan.has(SwarmFeature::kSync)) return;
  spec->set_consistency(v1::CONSISTENCY_SYNC);
  spec->clear_staleness();
  if (DrawChance(random, 0.4)) spec->set_reduction(v1::REDUCTION_MEAN);
  if (!norm) return;
  v1::Optimizer* optimizer = spec->mutable_optimizer();
  const bool trust = DrawChance(random, 0.3);
  if (trust) optimizer->set_name("lamb"), optimizer->set_rate(0.01);
  if (trust && DrawChance(random, 0.5)) return;
  optimizer->set_clip_global_norm(plan.norm_limit);
}

SwarmTable::SwarmTable(const v1::Table& table, uint64_t revision)
    : id_(table.id()),
      spec_(table.spec()),
      restored_steps_(table.restored_steps()),
      rates_(spec_.optimizer().rate(), kSimPartitions),
      states_(0) {
  lives_.resize(kSimPartitions);
  resets_.resize(kSimPartitions);
  exact_ = spec_.optimizer().name() == "sgd";
  keeps_rows_ = spec_.eviction().kind() <= v1::Eviction::NEVER;
  // A sixteenth below the limit.
  const uint64_t most_rows = spec_.eviction().max_rows() / kSimPartitions;
  rows_left_ = static_cast<uint32_t>(most_rows - most_rows / 16);
  complete_ = keeps_rows_ && spec_.admission().kind() <= v1::Admission::ALWAYS;
  narrow_ = spec_.dtype() == v1::DTYPE_BF16 || spec_.pull_codec() == v1::CODEC_BF16;
  most_ = spec_.row_dtype() == v1::DTYPE_BF16 ? 250 : int64_t{1} << 23;
  if (embedding()) {
    for (uint64_t k = 0; k < KeysOf(spec_); ++k) {
      const uint64_t key = k * k * 1'000'003;
      units_.push_back({key, PartitionOfKey(id_, key, kSimPartitions)});
    }
  } else {
    const DenseLayout layout = LayoutOf(spec_);
    chunk_elements_ = layout.chunk_elements;
    elements_ = layout.elements;
    parameter_bytes_ = ElementBytes(ParameterType(spec_));
    gradient_bytes_ = ElementBytes(GradientType(spec_));
    for (uint32_t c = 0; c < layout.chunks(); ++c) {
      units_.push_back({0, PartitionOfChunk(id_, c, kSimPartitions)});
    }
  }
  if (!embedding() && spec_.optimizer().name() == "adagrad") states_ = SwarmStates(units_.size());
  if (spec_.consistency() == v1::CONSISTENCY_SYNC) MakeSteps();
  Follow(table, revision);
  restoring_ = from_checkpoint_ = table.restoring();
}

void SwarmTable::Restored(const std::vector<float>& values, const SwarmRates& rates) {
  restoring_ = false;
  rates_.Restore(rates);
  states_.Restore();
  for (size_t i = 0; i < units_.size(); ++i) {
    if (lost(units_[i].partition)) continue;
    Unit& unit = units_[i];
    unit.start = values[i];
    if (steps_ != nullptr)
      steps_->Restore(static_cast<uint32_t>(i), static_cast<double>(values[i]));
    if (!exact_) continue;
    // Pushes that were made before the restore ended may be applied now.
    unit.attempted += static_cast<int64_t>(values[i]);
    unit.acknowledged += static_cast<int64_t>(values[i]);
    unit.seen = narrow_ ? 0 : static_cast<int64_t>(values[i]);
  }
}

void SwarmTable::MakeSteps() {
  std::vector<uint64_t> counts;
  for (uint32_t u = 0; u < units_.size(); ++u) counts.push_back(elements(u));
  steps_ = std::make_unique<SwarmSteps>(
      std::move(counts), spec_.reduction() == v1::REDUCTION_MEAN,
      [this](double value) { return static_cast<double>(Shown(value)); }, !narrow_);
  std::vector<uint32_t> partitions;
  for (const Unit& unit : units_) partitions.push_back(unit.partition);
  if (exact_) steps_->Scale(&rates_, std::move(partitions));
  // All workers push at once.
  if (spec_.row_dtype() == v1::DTYPE_BF16) most_ = 200;
}

int64_t SwarmTable::PushedAmount(int64_t drawn, uint32_t workers) const {
  int64_t factor = 1;
  if (spec_.reduction() == v1::REDUCTION_MEAN) {
    for (uint32_t w = 2; w <= workers; ++w) factor = std::lcm(factor, int64_t{w});
  }
  return drawn * factor;
}

uint64_t SwarmTable::elements(uint32_t unit) const {
  if (embedding()) return spec_.dim();
  return std::min<uint64_t>(chunk_elements_, elements_ - first_element(unit));
}

std::pair<uint32_t, uint32_t> SwarmTable::OwnedBy(uint32_t slot, uint32_t slots) const {
  const auto count = static_cast<uint32_t>(units_.size());
  return {slot * count / slots, (slot + 1) * count / slots};
}

std::vector<uint32_t> SwarmTable::Follow(const v1::Table& table, uint64_t revision) {
  std::set<uint32_t> lost(table.lost_partitions().begin(), table.lost_partitions().end());
  std::vector<uint32_t> added;
  std::set_difference(lost.begin(), lost.end(), lost_.begin(), lost_.end(),
                      std::back_inserter(added));
  for (const uint32_t partition : lost_) {
    if (lost.contains(partition)) continue;
    ++lives_[partition];
    rates_.Reset(partition);
    resets_[partition] = revision;
    for (uint32_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      if (unit.partition != partition) continue;
      unit.acknowledged = unit.attempted = unit.seen = 0;
      unit.start = 0;
      if (states_.any()) states_.Reset(u);
      if (steps_ != nullptr) steps_->Reset(u);
    }
  }
  lost_ = std::move(lost);
  return added;
}

void SwarmTable::Acknowledge(uint32_t unit, int64_t amount, uint32_t life) {
  if (life == lives_[units_[unit].partition]) units_[unit].acknowledged += amount;
}

bool SwarmTable::MayChangeRate() const {
  return exact() && !clipped() && !restoring_ && spec_.row_dtype() != v1::DTYPE_BF16;
}

SwarmBounds SwarmTable::Gain(uint32_t unit, int64_t amount, uint64_t changes) const {
  const SwarmBounds rate = rates_.At(units_[unit].partition, changes);
  return {rate.low * static_cast<double>(amount), rate.high * static_cast<double>(amount)};
}

void SwarmTable::Reconsider(uint32_t unit, int64_t counted, int64_t most, uint32_t life) {
  if (life == lives_[units_[unit].partition]) units_[unit].attempted += most - counted;
}

double SwarmTable::Least(uint32_t unit) const {
  const Unit& u = units_[unit];
  if (!keeps_rows_) return 0;
  if (steps_ != nullptr) return complete_ ? steps_->Low(unit) : 0;
  return static_cast<double>(complete_ ? std::max(u.acknowledged, u.seen) : u.seen);
}

float SwarmTable::Shown(double value) const {
  const auto exact = static_cast<float>(value);
  return narrow_ ? RoundToBf16(exact) : exact;
}

std::string SwarmTable::Check(uint32_t unit, absl::Span<const float> values, double least,
                              uint32_t life, bool bag) {
  Unit& u = units_[unit];
  if (life != lives_[u.partition] || lost(u.partition)) return "";
  const float value = values[0];
  const auto wrong = [&](const char* problem) {
    return absl::StrCat("table ", id_, " '", spec_.name(), "' ", embedding() ? "row " : "chunk ",
                        unit, " (partition ", u.partition, "): ", problem, ": read ", value,
                        ", at least ", least, " expected; ", u.acknowledged, " acknowledged, ",
                        u.attempted, " attempted, ", u.seen, " seen");
  };
  for (const float other : values) {
    if (other != value) return wrong("half of an update was read");
  }
  // Decay and a trust ratio may turn a number's sign.
  if (!(value >= 0) && (std::isnan(value) || !NeedsTrustRatio(spec_.optimizer()))) {
    return wrong("no value that pushes can make");
  }
  if (restoring_) return wrong("a table that is being restored was read");
  if (!exact_) {
    const float start = Shown(static_cast<double>(u.start), bag);
    // The moments that it was restored with go on in steps to which nobody pushes.
    const bool moves = u.start != 0 && NeedsTrustRatio(spec_.optimizer());
    // An evicted row begins again: from zero, and with pushes alone.
    if (!moves && value < start && (keeps_rows_ || (value > 0 && u.attempted == 0))) {
      return wrong("less than what it was restored with");
    }
    if (value == 0 && least > 0) return wrong("initial values in place of acknowledged pushes");
    if (!moves && value > start && u.attempted == 0) return wrong("an update that nobody pushed");
    return "";
  }
  const double most = steps_ != nullptr ? steps_->High(unit) : static_cast<double>(u.attempted);
  if (value > Shown(most, bag)) return wrong("more than was pushed");
  if (value < Shown(least, bag)) {
    return wrong(value == 0 ? "initial values in place of acknowledged pushes"
                            : "acknowledged pushes are missing");
  }
  if ((!narrow_ || bag) && steps_ == nullptr)
    u.seen = std::max(u.seen, static_cast<int64_t>(value));
  return "";
}

bool SwarmTable::MayAssign(uint32_t unit) const {
  constexpr int64_t kUnsureAtMost = 1000;
  constexpr double kStepsAtMost = 1 << 22;
  if (!exact_ || restoring_) return false;
  if (steps_ != nullptr) {
    return !clipped() && spec_.row_dtype() != v1::DTYPE_BF16 && steps_->High(unit) < kStepsAtMost;
  }
  const Unit& u = units_[unit];
  const int64_t unsure = u.attempted - u.acknowledged;
  const int64_t most = spec_.dtype() == v1::DTYPE_BF16 ? std::min<int64_t>(most_, 200) : most_;
  return unsure < kUnsureAtMost && u.attempted + unsure + 3 < most;
}

std::pair<int64_t, int64_t> SwarmTable::AttemptAssign(uint32_t unit, int64_t amount) {
  Unit& u = units_[unit];
  const int64_t value = u.attempted + amount, gain = value - u.acknowledged;
  u.attempted += gain;
  return {value, gain};
}

std::string SwarmTable::CheckSaved(uint32_t unit, float value, double least, uint32_t life) const {
  const Unit& u = units_[unit];
  if (!exact_ || life != lives_[u.partition] || lost(u.partition)) return "";
  const char* wrong = nullptr;
  const bool whole = value == std::floor(value) || clipped();
  if (!whole || value < 0) wrong = "no value that pushes can make";
  const double most = steps_ != nullptr ? steps_->High(unit) : static_cast<double>(u.attempted);
  if (value > static_cast<float>(most)) wrong = "more than was pushed";
  if (value < static_cast<float>(least)) wrong = "acknowledged pushes are missing";
  if (wrong == nullptr) return "";
  return absl::StrCat("table ", id_, " '", spec_.name(), "' ", embedding() ? "row " : "chunk ",
                      unit, " (partition ", u.partition, "): ", wrong, ": it has ", value,
                      ", at least ", least, " expected; ", u.acknowledged, " acknowledged, ",
                      u.attempted, " attempted");
}

std::string SwarmTable::CheckSavedStep(uint32_t unit, float value, uint64_t steps,
                                       uint32_t generation, uint32_t life) const {
  const Unit& u = units_[unit];
  if (!exact() || life != lives_[u.partition] || lost(u.partition)) return "";
  const std::string wrong =
      steps_->Check(generation, unit, steps - restored_steps_, static_cast<double>(value), true);
  if (wrong.empty()) return "";
  return absl::StrCat("table ", id_, " '", spec_.name(), "' unit ", unit, " (partition ",
                      u.partition, "), saved after ", steps, " steps: ", wrong);
}

}  // namespace verbena::test
