#include "tests/cluster/swarm_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::test {
namespace {

// Rounding error of the f32 arithmetic of one clipped step.
constexpr double kRounding = 2.5e-7;

}  // namespace

SwarmSteps::SwarmSteps(std::vector<uint64_t> elements, bool mean,
                       std::function<double(double)> shown, bool reads_exactly)
    : mean_(mean), shown_(std::move(shown)), reads_exactly_(reads_exactly) {
  units_.resize(elements.size());
  for (size_t u = 0; u < elements.size(); ++u) {
    units_[u].elements = elements[u];
    units_[u].bounds.resize(1);
  }
}

void SwarmSteps::Scale(const SwarmRates* rates, std::vector<uint32_t> partitions) {
  rates_ = rates;
  partitions_ = std::move(partitions);
}

void SwarmSteps::Leave(uint32_t generation) {
  if (generation == generation_) return;
  for (uint32_t u = 0; u < units_.size(); ++u) units_[u].left = {Low(u), High(u)};
}

void SwarmSteps::FollowJob(uint32_t generation, uint32_t expected, uint32_t departed) {
  if (generation != generation_) {
    for (Unit& u : units_) u = {u.elements, 0, {}, {u.left}, {}, {}, 0};
    reset_.clear();
    hidden_.clear();
    newest_ = ended_ = 0;
    generation_ = generation;
  }
  expected_ = std::max(expected, 1u);
  departed_ = departed;
}

void SwarmSteps::Reset(uint32_t unit) {
  Unit& u = units_[unit];
  if (reset_.size() < u.sums.size()) reset_.resize(u.sums.size());
  for (uint64_t step = 0; step < u.sums.size(); ++step) reset_[step] += SquaresOf(u, step).high;
  u = {u.elements, 0, {}, {{}}, {}, {}, 0};
}

void SwarmSteps::Restore(uint32_t unit, double value) {
  Unit& u = units_[unit];
  u.known = 0;
  u.seen.clear();
  u.bounds.assign(1, {value, value});
}

SwarmSteps::Sum& SwarmSteps::SumOf(Unit* unit, uint64_t step) {
  if (unit->sums.size() <= step) unit->sums.resize(step + 1);
  return unit->sums[step];
}

void SwarmSteps::Attempt(uint32_t generation, uint64_t step, uint32_t unit, int64_t amount) {
  if (generation != generation_) return;
  Unit& u = units_[unit];
  SumOf(&u, step).attempted += amount;
  newest_ = std::max(newest_, step + 1);
  if (u.bounds.size() > step + 1) u.bounds.resize(step + 1);
}

std::string SwarmSteps::Acknowledge(uint32_t generation, uint64_t step, uint32_t unit,
                                    int64_t amount) {
  if (generation != generation_) return "";
  Unit& u = units_[unit];
  SumOf(&u, step).certain += amount;
  return Changed(unit, step);
}

int64_t SwarmSteps::AttemptAssign(uint32_t generation, uint64_t step, uint32_t unit) {
  // More than workers that are behind may still push to steps before this one, also after the
  // rounding for readers.
  constexpr double kMore = 20'000;
  const auto value = static_cast<int64_t>(shown_(std::floor(High(unit)) + kMore));
  if (generation != generation_) return value;
  Unit& u = units_[unit];
  std::optional<SwarmBounds>& assigned = SumOf(&u, step).assigned;
  const auto exact = static_cast<double>(value);
  if (!assigned.has_value()) assigned = {exact, exact};
  assigned = SwarmBounds{std::min(assigned->low, exact), std::max(assigned->high, exact)};
  u.last_assigned = step;
  newest_ = std::max(newest_, step + 1);
  if (u.bounds.size() > step + 1) u.bounds.resize(step + 1);
  return value;
}

std::string SwarmSteps::AcknowledgeAssign(uint32_t generation, uint64_t step, uint32_t unit) {
  if (generation != generation_) return "";
  SumOf(&units_[unit], step).assigns = true;
  return Changed(unit, step);
}

std::string SwarmSteps::Changed(uint32_t unit, uint64_t step) {
  Unit& u = units_[unit];
  if (u.bounds.size() > step + 1) u.bounds.resize(step + 1);
  std::string wrong;
  if (u.seen.size() > step + 1) Extend(unit, u.seen.size() - 1, &wrong);
  return wrong;
}

std::string SwarmSteps::RateChanged(uint64_t step) {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    std::string wrong = Changed(unit, step);
    if (!wrong.empty()) return absl::StrCat("unit ", unit, ": ", wrong);
  }
  return "";
}

void SwarmSteps::AttemptState(uint32_t generation, uint64_t step, uint32_t unit) {
  if (generation != generation_) return;
  hidden_.emplace(unit, step);
  Attempt(generation, step, unit, 0);
}

void SwarmSteps::End(uint32_t generation, uint64_t step, uint64_t first) {
  if (generation != generation_) return;
  newest_ = std::max(newest_, step + 1);
  if (first == 0) ended_ = std::max(ended_, step + 1);
}

void SwarmSteps::Commit(uint32_t generation, uint32_t unit, uint64_t version) {
  if (generation != generation_) return;
  Unit& u = units_[unit];
  for (; u.known < version; ++u.known) {
    SumOf(&u, u.known).listed = std::max(expected_ - std::min(departed_, expected_), 1u);
  }
}

std::string SwarmSteps::Divide(uint32_t generation, uint64_t step, uint32_t unit,
                               uint32_t workers) {
  if (generation != generation_ || !mean_ || workers == 0) return "";
  std::optional<SwarmBounds>& divided = SumOf(&units_[unit], step).divided;
  const double now = workers;
  const SwarmBounds before = divided.value_or(SwarmBounds{now, now});
  divided = SwarmBounds{std::min(before.low, now), std::max(before.high, now)};
  return Changed(unit, step);
}

SwarmBounds SwarmSteps::Mean(const Sum& sum) const {
  if (mean_ && sum.divided.has_value()) {
    return {static_cast<double>(sum.certain) / sum.divided->high,
            static_cast<double>(sum.attempted) / sum.divided->low};
  }
  const uint32_t least =
      sum.listed > 0 ? sum.listed : std::max(expected_ - std::min(departed_, expected_), 1u);
  return {static_cast<double>(sum.certain) / (mean_ ? expected_ : 1),
          static_cast<double>(sum.attempted) / (mean_ ? least : 1)};
}

SwarmBounds SwarmSteps::RateOf(const Unit& unit, uint64_t step) const {
  if (rates_ == nullptr) return {1, 1};
  return rates_->At(partitions_[static_cast<size_t>(&unit - units_.data())], step);
}

bool SwarmSteps::Hidden(const Unit& unit, uint64_t step) const {
  const auto number = static_cast<uint32_t>(&unit - units_.data());
  return !hidden_.empty() && hidden_.contains({number, step});
}

SwarmBounds SwarmSteps::Added(const Unit& unit, uint64_t step, bool committed) const {
  if (step >= unit.sums.size()) return {};
  SwarmBounds added = Mean(unit.sums[step]);
  const SwarmBounds rate = RateOf(unit, step);
  added = {added.low * rate.low, added.high * rate.high};
  if (norm_ == nullptr) return added;
  const SwarmBounds scale = committed ? norm_->Scale(generation_, step, limit_) : SwarmBounds{0, 1};
  return {added.low * scale.low, added.high * scale.high};
}

SwarmBounds SwarmSteps::After(const Unit& unit, uint64_t step, const SwarmBounds& before,
                              bool committed) const {
  SwarmBounds added = Added(unit, step, committed);
  if (Hidden(unit, step)) added.low = 0;
  const SwarmBounds sum = {before.low + added.low, before.high + added.high};
  if (step >= unit.sums.size() || !unit.sums[step].assigned.has_value()) return sum;
  const SwarmBounds& assigned = *unit.sums[step].assigned;
  if (committed && unit.sums[step].assigns) return assigned;
  return {std::min(sum.low, assigned.low), std::max(sum.high, assigned.high)};
}

SwarmBounds& SwarmSteps::Extend(uint32_t unit, uint64_t version, std::string* wrong) {
  Unit& u = units_[unit];
  while (u.bounds.size() <= version) {
    const uint64_t at = u.bounds.size();
    SwarmBounds bounds = After(u, at - 1, u.bounds.back(), true);
    if (norm_ != nullptr) bounds.low *= 1 - kRounding, bounds.high *= 1 + kRounding;
    if (at < u.seen.size() && u.seen[at].has_value()) {
      const double value = *u.seen[at];
      if (wrong != nullptr && wrong->empty() && !Within(value, bounds, !reads_exactly_)) {
        *wrong = Wrong(unit, at, value, bounds);
      }
      bounds = {value, value};
    }
    u.bounds.push_back(bounds);
  }
  return u.bounds[version];
}

double SwarmSteps::High(uint32_t unit) {
  const Unit& u = units_[unit];
  SwarmBounds most = At(unit, u.known);
  for (uint64_t step = u.known; step < newest_; ++step) most = After(u, step, most, false);
  return norm_ == nullptr
             ? most.high
             : most.high * (1 + kRounding * static_cast<double>(newest_ - u.known + 1));
}

std::string SwarmSteps::Check(uint32_t generation, uint32_t unit, uint64_t version, double value,
                              bool exact) {
  if (generation != generation_) return "";
  Commit(generation, unit, version);
  Unit& u = units_[unit];
  std::string wrong;
  SwarmBounds& bounds = Extend(unit, version, &wrong);
  if (!wrong.empty()) return wrong;
  if (!Within(value, bounds, exact && !reads_exactly_)) return Wrong(unit, version, value, bounds);
  if (!reads_exactly_ && !exact) return "";
  if (u.seen.size() <= version) u.seen.resize(version + 1);
  u.seen[version] = value;
  bounds = {value, value};
  if (u.bounds.size() > version + 1) u.bounds.resize(version + 1);
  return "";
}

std::string SwarmSteps::Wrong(uint32_t unit, uint64_t version, double value,
                              const SwarmBounds& bounds) const {
  const Unit& u = units_[unit];
  std::string text = absl::StrCat("version ", version, " of generation ", generation_, " is ",
                                  value, ", not ", bounds.low, " to ", bounds.high);
  if (version == 0) return text;
  const Sum& sum = version <= u.sums.size() ? u.sums[version - 1] : Sum();
  absl::StrAppend(&text, "; its step has ", sum.certain, " acknowledged of ", sum.attempted,
                  " attempted, by ", expected_, " workers, ", departed_, " departed; before it ",
                  u.bounds[version - 1].low, " to ", u.bounds[version - 1].high);
  if (norm_ != nullptr) absl::StrAppend(&text, norm_->Describe(generation_, version - 1));
  return text;
}

SwarmBounds SwarmSteps::Squares(uint64_t step) const {
  SwarmBounds squares;
  if (step < reset_.size()) squares.high = reset_[step];
  for (const Unit& u : units_) {
    const SwarmBounds of = SquaresOf(u, step);
    squares.low += of.low;
    squares.high += of.high;
  }
  return squares;
}

SwarmBounds SwarmSteps::SquaresOf(const Unit& unit, uint64_t step) const {
  if (step >= unit.sums.size()) return {};
  const SwarmBounds mean = Mean(unit.sums[step]);
  const auto elements = static_cast<double>(unit.elements);
  // Gradients that an assignment of state replaces are in no norm.
  const double low = Hidden(unit, step) ? 0 : mean.low;
  return {elements * low * low, elements * mean.high * mean.high};
}

void SwarmNorm::Add(const SwarmSteps* steps) {
  const auto same = [steps](const Table& table) { return table.steps == steps; };
  if (std::any_of(tables_.begin(), tables_.end(), same)) return;
  // Workers that end a step from now on know the table; steps that were ended may have it in their
  // norm, or not.
  for (const Table& table : tables_) {
    if (table.dropped || table.steps->newest() == 0) continue;
    disturbed_ = std::max(disturbed_, table.steps->generation());
  }
  tables_.push_back({steps, false});
}

void SwarmNorm::Disturb(const SwarmSteps* steps, bool dropped) {
  disturbed_ = std::max(disturbed_, steps->generation());
  for (Table& table : tables_) {
    if (table.steps == steps) table.dropped |= dropped;
  }
}

bool SwarmNorm::Apart() const {
  uint64_t least = UINT64_MAX, most = 0;
  for (const Table& table : tables_) {
    if (table.dropped) continue;
    least = std::min(least, table.steps->ended());
    most = std::max(most, table.steps->ended());
  }
  return most > 0 && least + 1 < most;
}

std::string SwarmNorm::Describe(uint32_t generation, uint64_t step) const {
  std::string text = disturbed_ == generation ? "; its norm was disturbed, of" : "; its norm is of";
  for (const Table& table : tables_) {
    if (table.steps->generation() != generation) continue;
    const SwarmBounds squares = table.steps->Squares(step);
    absl::StrAppend(&text, " ", squares.low, " to ", squares.high);
  }
  return text;
}

SwarmBounds SwarmNorm::Scale(uint32_t generation, uint64_t step, double limit) const {
  SwarmBounds squares;
  for (const Table& table : tables_) {
    if (table.steps->generation() != generation) continue;  // dropped before
    const SwarmBounds of = table.steps->Squares(step);
    squares.low += of.low;
    squares.high += of.high;
  }
  if (disturbed_ == generation) squares.low = 0;
  const auto scale = [limit](double of) { return of > limit * limit ? limit / std::sqrt(of) : 1; };
  return {scale(squares.high), scale(squares.low)};
}

}  // namespace verbena::test
