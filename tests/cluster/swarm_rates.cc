#include "tests/cluster/swarm_rates.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace verbena::test {
namespace {

void Include(double rate, SwarmBounds* bounds) {
  *bounds = {std::min(bounds->low, rate), std::max(bounds->high, rate)};
}

}  // namespace

SwarmRates::SwarmRates(double initial, uint32_t partitions)
    : initial_(initial), ever_{initial, initial}, partitions_(partitions, {ever_, {}}) {}

uint64_t SwarmRates::Attempt(uint64_t step, int32_t rank, double rate) {
  const Change change = {step, rank, ++changes_, rate};
  Include(rate, &ever_);
  for (Partition& p : partitions_) {
    const auto before = [](const Change& a, const Change& b) {
      return std::tie(a.step, a.rank, a.id) < std::tie(b.step, b.rank, b.id);
    };
    p.changes.insert(std::upper_bound(p.changes.begin(), p.changes.end(), change, before), change);
  }
  return change.id;
}

template <typename What>
void SwarmRates::Each(uint64_t id, What what) {
  for (Partition& p : partitions_) {
    for (Change& change : p.changes) {
      if (change.id == id) what(&change);
    }
  }
}

void SwarmRates::Acknowledge(uint64_t id) {
  Each(id, [](Change* change) { change->certain = true; });
}

void SwarmRates::Orphan(uint64_t id) {
  Each(id, [](Change* change) { change->orphan = true; });
}

void SwarmRates::BeginGeneration() {
  for (uint32_t p = 0; p < partitions_.size(); ++p) {
    partitions_[p] = {At(p, std::numeric_limits<uint64_t>::max()), {}};
  }
}

void SwarmRates::Reset(uint32_t partition) { partitions_[partition] = {{initial_, initial_}, {}}; }

void SwarmRates::Restore(const SwarmRates& saved) {
  Include(saved.ever_.low, &ever_);
  Include(saved.ever_.high, &ever_);
  for (Partition& p : partitions_) p = {saved.ever_, {}};
}

SwarmBounds SwarmRates::At(uint32_t partition, uint64_t step) const {
  const Partition& p = partitions_[partition];
  SwarmBounds bounds = {std::numeric_limits<double>::max(), 0};
  bool open = true;  // no change after it is known to be in force
  for (auto change = p.changes.rbegin(); change != p.changes.rend(); ++change) {
    if (change->step > step) continue;
    if (open || change->orphan) Include(change->rate, &bounds);
    open = open && !change->certain;
  }
  if (!open) return bounds;
  return {std::min(bounds.low, p.before.low), std::max(bounds.high, p.before.high)};
}

}  // namespace verbena::test
