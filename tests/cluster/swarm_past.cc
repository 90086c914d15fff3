#include "tests/cluster/swarm_past.h"

#include <algorithm>

namespace verbena::test {

void SwarmPast::Note(const SwarmTable& table, int64_t now, int64_t longest_ns) {
  if (table.embedding() || table.dropped()) return;
  for (uint32_t u = 0; u < table.units().size(); ++u) {
    std::deque<Moment>& moments = units_[{table.id(), u}];
    const Moment last = {now, table.Least(u), table.life(table.units()[u].partition)};
    if (moments.empty() || moments.back().least != last.least || moments.back().life != last.life) {
      moments.push_back(last);
    }
    while (moments.size() > 1 && moments[1].time <= now - longest_ns) moments.pop_front();
  }
}

std::optional<double> SwarmPast::Least(const SwarmTable& table, uint32_t unit, int64_t time) const {
  const auto found = units_.find({table.id(), unit});
  if (found == units_.end()) return 0;
  const std::deque<Moment>& moments = found->second;
  const auto after = std::find_if(moments.begin(), moments.end(),
                                  [time](const Moment& m) { return m.time > time; });
  const auto first = after == moments.begin() ? after : std::prev(after);
  const uint32_t life = table.life(table.units()[unit].partition);
  const auto other = [life](const Moment& m) { return m.life != life; };
  if (std::any_of(first, moments.end(), other)) return std::nullopt;
  return after == moments.begin() ? 0 : std::prev(after)->least;
}

}  // namespace verbena::test
