#include "server/coordinator/leases.h"

#include <algorithm>
#include <limits>

namespace verbena::server {

void Leases::Grant(uint64_t incarnation, int64_t until_ns) {
  End(incarnation);
  until_[incarnation] = until_ns;
  order_.emplace(until_ns, incarnation);
}

bool Leases::Renew(uint64_t incarnation, int64_t until_ns) {
  if (!Has(incarnation)) return false;
  Grant(incarnation, until_ns);
  return true;
}

void Leases::End(uint64_t incarnation) {
  const auto it = until_.find(incarnation);
  if (it == until_.end()) return;
  order_.erase({it->second, incarnation});
  until_.erase(it);
}

void Leases::ExtendAll(int64_t ns, int64_t limit_ns) {
  order_.clear();
  for (auto& [incarnation, until] : until_) {
    until = std::max(until, std::min(until + ns, limit_ns));
    order_.emplace(until, incarnation);
  }
}

void Leases::Retain(const std::set<uint64_t>& keep) {
  std::vector<uint64_t> gone;
  for (const auto& [incarnation, until] : until_) {
    if (!keep.contains(incarnation)) gone.push_back(incarnation);
  }
  for (const uint64_t incarnation : gone) End(incarnation);
}

std::vector<uint64_t> Leases::Due(int64_t now_ns) const {
  std::vector<uint64_t> due;
  for (const auto& [until, incarnation] : order_) {
    if (until > now_ns) break;
    due.push_back(incarnation);
  }
  return due;
}

int64_t Leases::NextDueNanos() const {
  return order_.empty() ? std::numeric_limits<int64_t>::max() : order_.begin()->first;
}

}  // namespace verbena::server
