#include "shard/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace verbena::shard {

Schedule::Schedule(double rate, v1::Schedule spec) : rate_(rate), spec_(std::move(spec)) {}

double Schedule::Base(uint64_t step) const {
  switch (spec_.kind()) {
    case v1::Schedule::STEP:
      return rate_ * std::pow(spec_.factor(), static_cast<double>(step / spec_.period()));
    case v1::Schedule::COSINE: {  // one period of Loshchilov and Hutter, SGDR, 2017, equation 5
      if (step >= spec_.period()) return spec_.floor();
      const double part = static_cast<double>(step) / static_cast<double>(spec_.period());
      return spec_.floor() +
             (rate_ - spec_.floor()) * 0.5 * (1 + std::cos(std::numbers::pi * part));
    }
    case v1::Schedule::PIECEWISE: {
      const auto& boundaries = spec_.boundaries();
      const auto next = std::upper_bound(boundaries.begin(), boundaries.end(), step);
      const auto passed = static_cast<int>(next - boundaries.begin());
      return passed == 0 ? rate_ : spec_.rates(passed - 1);
    }
    default:
      return rate_;
  }
}

bool Schedule::constant() const {
  const bool varies = spec_.kind() == v1::Schedule::STEP || spec_.kind() == v1::Schedule::COSINE ||
                      spec_.kind() == v1::Schedule::PIECEWISE;
  return !varies && spec_.warmup_steps() == 0;
}

double Schedule::RateAt(uint64_t t) const {
  const uint64_t step = t - 1;
  const double base = Base(step);
  if (step >= spec_.warmup_steps()) return base;
  return base * (static_cast<double>(t) / static_cast<double>(spec_.warmup_steps()));
}

}  // namespace verbena::shard
