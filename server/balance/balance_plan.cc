#include "server/balance/balance_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

namespace verbena::server {
namespace {

bool SameZone(const BalanceServer& a, const BalanceServer& b) {
  return !a.zone.empty() && a.zone == b.zone;
}

// The loads of servers while moves are added.
class Planner {
 public:
  Planner(const BalanceInput& input, const BalanceOptions& options)
      : input_(input), options_(options) {
    uint64_t bytes = 0;
    for (const BalancePartition& p : input.partitions) bytes += p.bytes;
    counts_partitions_ = bytes == 0;
    for (size_t p = 0; p < input.partitions.size(); ++p) average_ += Weight(p);
    average_ /= static_cast<double>(std::max<size_t>(input.partitions.size(), 1));
    for (size_t i = 0; i < input.servers.size(); ++i) {
      index_[input.servers[i].incarnation] = i;
      if (!input.servers[i].counts) continue;
      (HoldsPartition(input.servers[i]) ? counting_ : too_small_).push_back(i);
    }
    FindShares();
    load_.resize(input.servers.size());
    leads_.resize(input.servers.size());
    lead_bytes_.resize(input.servers.size());
    led_.resize(input.servers.size());
    incoming_.resize(input.servers.size());
    held_.resize(input.servers.size());
    for (size_t p = 0; p < input.partitions.size(); ++p) {
      const BalancePartition& partition = input.partitions[p];
      Hold(p, partition.primary, /*leads=*/true);
      for (const uint64_t follower : partition.followers) Hold(p, follower, /*leads=*/false);
    }
    // The largest first, in a fixed order.
    for (std::vector<size_t>& held : held_) {
      std::sort(held.begin(), held.end(), [&](size_t a, size_t b) {
        return Weight(a) != Weight(b) ? Weight(a) > Weight(b) : a < b;
      });
    }
    moved_.resize(input.partitions.size());
  }

  BalancePlan Run() {
    BalancePlan plan;
    plan.before = Imbalance(load_);
    plan.primaries_before = Imbalance(leads_);
    for (const size_t s : too_small_) plan.too_small.push_back(input_.servers[s].incarnation);
    for (const size_t s : counting_) {
      plan.servers.push_back({.server = input_.servers[s].incarnation,
                              .bytes_before = Bytes(load_[s]),
                              .primary_before = Bytes(lead_bytes_[s]),
                              .primaries_before = led_[s],
                              .memory_limit = input_.servers[s].memory_limit,
                              .load_before = OfShare(s)});
    }
    while (plan.moves.size() < options_.most_moves && Imbalance(load_) > options_.aim) {
      const std::optional<BalanceMove> move = Next();
      if (!move) break;
      plan.moves.push_back(*move);
      plan.bytes += move->bytes;
    }
    const bool exchanges = Imbalance(leads_) > kPrimariesBalanced;
    while (exchanges && plan.moves.size() + 2 <= options_.most_moves &&
           Imbalance(leads_) > options_.primaries_aim) {
      const std::vector<BalanceMove> moves = NextExchange();
      if (moves.empty()) break;
      for (const BalanceMove& move : moves) {
        plan.moves.push_back(move);
        plan.bytes += move.bytes;
      }
    }
    plan.after = Imbalance(load_);
    plan.primaries_after = Imbalance(leads_);
    for (size_t i = 0; i < counting_.size(); ++i) {
      ServerBalance& out = plan.servers[i];
      out.bytes_after = Bytes(load_[counting_[i]]);
      out.primary_after = Bytes(lead_bytes_[counting_[i]]);
      out.primaries_after = led_[counting_[i]];
      out.load_after = OfShare(counting_[i]);
    }
    return plan;
  }

 private:
  // Without any contents yet, partitions are spread by number.
  double Weight(size_t partition) const {
    return counts_partitions_ ? 1 : static_cast<double>(input_.partitions[partition].bytes);
  }
  // Of a primary: a partition without much content has requests, too.
  double Lead(size_t partition) const { return Weight(partition) + average_; }
  uint64_t Bytes(double weight) const {
    return counts_partitions_ ? 0 : static_cast<uint64_t>(weight);
  }

  // Whether it has partitions, or room for the smallest one, beside what a move keeps free.
  bool HoldsPartition(const BalanceServer& server) const {
    if (server.memory_limit == 0 || counts_partitions_) return true;
    uint64_t least = UINT64_MAX;
    for (const BalancePartition& p : input_.partitions) {
      const bool has = p.primary == server.incarnation ||
                       std::find(p.followers.begin(), p.followers.end(), server.incarnation) !=
                           p.followers.end();
      if (p.bytes > 0 && has) return true;  // it is to be relieved of them
      if (p.bytes > 0) least = std::min(least, p.bytes);
    }
    return static_cast<double>(least) <=
           (1 - kMemoryKeptFree) * static_cast<double>(server.memory_limit);
  }

  void FindShares() {
    shares_.assign(input_.servers.size(), 1);
    double sum = 0;
    for (const size_t s : counting_) {
      if (input_.servers[s].memory_limit == 0) return;
      sum += static_cast<double>(input_.servers[s].memory_limit);
    }
    const double average = sum / static_cast<double>(std::max<size_t>(counting_.size(), 1));
    for (const size_t s : counting_) {
      shares_[s] = static_cast<double>(input_.servers[s].memory_limit) / average;
    }
  }

  void Hold(size_t partition, uint64_t server, bool leads) {
    const auto it = index_.find(server);
    if (it == index_.end()) return;
    load_[it->second] += Weight(partition);
    if (leads) CountPrimary(partition, it->second, 1);
    held_[it->second].push_back(partition);
  }

  void CountPrimary(size_t partition, size_t server, int change) {
    leads_[server] += change * Lead(partition);
    lead_bytes_[server] += change * Weight(partition);
    led_[server] += static_cast<size_t>(change);
  }

  double Load(size_t server) const { return load_[server] / shares_[server]; }
  double Average(const std::vector<double>& of) const {
    double sum = 0, shares = 0;
    for (const size_t s : counting_) {
      sum += of[s];
      shares += shares_[s];
    }
    return shares > 0 ? sum / shares : 0;
  }

  // Its part of all bytes over its part of all shares.
  double OfShare(size_t server) const {
    const double average = Average(load_);
    return average > 0 ? Load(server) / average : 1;
  }

  double Imbalance(const std::vector<double>& of) const {
    if (counting_.size() < 2) return 0;
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const size_t s : counting_) {
      least = std::min(least, of[s] / shares_[s]);
      most = std::max(most, of[s] / shares_[s]);
    }
    const double average = Average(of);
    return average > 0 ? (most - least) / average : 0;
  }

  // From the most to the least loaded server first.
  std::optional<BalanceMove> Next() {
    std::vector<size_t> order = counting_;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return Load(a) > Load(b); });
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = order.size() - 1; j > i; --j) {
        if (const auto move = Between(order[i], order[j])) return move;
      }
    }
    return std::nullopt;
  }

  std::optional<BalanceMove> Between(size_t from, size_t to) {
    if (!input_.servers[to].accepts || Load(from) <= Load(to)) return std::nullopt;
    const double average = Average(load_);
    const double needed =
        std::min(load_[from] - average * shares_[from], average * shares_[to] - load_[to]);
    // Of one that is larger, both would pass each other; or stay as far apart.
    const double most =
        (Load(from) - Load(to)) / (1 / shares_[from] + 1 / shares_[to]) * (2 - kLeastGain);
    const bool primary = leads_[from] / shares_[from] > leads_[to] / shares_[to];
    std::optional<size_t> best;
    bool best_role = false;
    for (const size_t p : held_[from]) {
      const BalancePartition& partition = input_.partitions[p];
      if (Weight(p) == 0 || Weight(p) > most || !MayMove(p, from, to)) continue;
      const bool role = (partition.primary == input_.servers[from].incarnation) == primary;
      if (best && !Better(Weight(p), role, Weight(*best), best_role, needed)) continue;
      best = p;
      best_role = role;
    }
    if (!best) return std::nullopt;
    return Move(*best, from, to);
  }

  // The largest that is needed, else the smallest; the role decides between equal ones and among
  // those that are at least half as large.
  static bool Better(double weight, bool role, double best, bool best_role, double needed) {
    const bool fits = weight <= needed, best_fits = best <= needed;
    if (fits != best_fits) return fits;
    if (role != best_role) return role ? 2 * weight >= best : weight > 2 * best;
    return fits ? weight > best : weight < best;
  }

  bool MayMove(size_t p, size_t from, size_t to) const {
    const BalancePartition& partition = input_.partitions[p];
    const BalanceServer& source = input_.servers[from];
    const BalanceServer& target = input_.servers[to];
    if (!partition.movable || moved_[p]) return false;
    int same_before = 0, same_after = 0;
    const auto other = [&](uint64_t server) {
      if (server == target.incarnation) return false;
      const auto it = index_.find(server);
      if (server == source.incarnation || it == index_.end()) return true;
      same_before += SameZone(input_.servers[it->second], source) ? 1 : 0;
      same_after += SameZone(input_.servers[it->second], target) ? 1 : 0;
      return true;
    };
    const bool free = other(partition.primary) &&
                      std::all_of(partition.followers.begin(), partition.followers.end(), other);
    if (!free || same_after > same_before) return false;
    if (target.memory_limit == 0) return true;
    const double later =
        static_cast<double>(target.memory_reserved + incoming_[to] + partition.bytes);
    return later <= (1 - kMemoryKeptFree) * static_cast<double>(target.memory_limit);
  }

  // From the server that leads most to the one that leads least first.
  std::vector<BalanceMove> NextExchange() {
    std::vector<size_t> order = counting_;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return leads_[a] / shares_[a] > leads_[b] / shares_[b];
    });
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = order.size() - 1; j > i; --j) {
        std::vector<BalanceMove> moves = Exchange(order[i], order[j]);
        if (!moves.empty()) return moves;
      }
    }
    return {};
  }

  // How much moves from one to the other of what they have, so that they do not pass each other, or
  // stay as far apart.
  double MostShift(const std::vector<double>& of, size_t from, size_t to) const {
    return (of[from] / shares_[from] - of[to] / shares_[to]) /
           (1 / shares_[from] + 1 / shares_[to]) * (2 - kLeastGain);
  }

  std::vector<BalanceMove> Exchange(size_t from, size_t to) {
    if (!input_.servers[to].accepts || !input_.servers[from].accepts) return {};
    const double most = MostShift(leads_, from, to);
    // The largest that brings the bytes of primaries closer, too; else the smallest.
    const double most_bytes = std::max(0.0, MostShift(lead_bytes_, from, to));
    for (const size_t p : held_[from]) {
      if (Weight(p) > most_bytes) continue;
      std::vector<BalanceMove> moves = ExchangeOf(p, most, from, to);
      if (!moves.empty()) return moves;
    }
    for (auto p = held_[from].rbegin(); p != held_[from].rend(); ++p) {
      std::vector<BalanceMove> moves = ExchangeOf(*p, most, from, to);
      if (!moves.empty()) return moves;
    }
    return {};
  }

  std::vector<BalanceMove> ExchangeOf(size_t p, double most, size_t from, size_t to) {
    if (input_.partitions[p].primary != input_.servers[from].incarnation || Lead(p) > most ||
        !MayMove(p, from, to)) {
      return {};
    }
    std::optional<size_t> back;
    for (const size_t q : held_[to]) {
      if (input_.partitions[q].primary == input_.servers[to].incarnation || !MayMove(q, to, from) ||
          !MayShift(Weight(p) - Weight(q), from, to)) {
        continue;
      }
      if (!back || std::abs(Weight(q) - Weight(p)) < std::abs(Weight(*back) - Weight(p))) {
        back = q;
      }
    }
    if (back) {
      const BalanceMove there = Move(p, from, to);
      return {there, Move(*back, to, from)};
    }
    if (Weight(p) == 0) return {Move(p, from, to)};  // nothing is copied
    return {};
  }

  // Whether so much more may come to `to` from `from` (invariant 3).
  bool MayShift(double weight, size_t from, size_t to) {
    const double squares = weight * ((weight - 2 * load_[from]) / shares_[from] +
                                     (weight + 2 * load_[to]) / shares_[to]);
    if (squares <= 0) return true;
    std::vector<double> later = load_;
    later[from] -= weight;
    later[to] += weight;
    return Imbalance(later) <= options_.aim;
  }

  BalanceMove Move(size_t p, size_t from, size_t to) {
    const BalancePartition& partition = input_.partitions[p];
    const bool primary = partition.primary == input_.servers[from].incarnation;
    load_[from] -= Weight(p);
    load_[to] += Weight(p);
    if (primary) {
      CountPrimary(p, from, -1);
      CountPrimary(p, to, 1);
    }
    incoming_[to] += partition.bytes;
    moved_[p] = true;
    return {partition.id, input_.servers[from].incarnation, input_.servers[to].incarnation, primary,
            partition.bytes};
  }

  // Part of the difference of two loads that a move takes away at least.
  static constexpr double kLeastGain = 0.2;

  const BalanceInput& input_;
  const BalanceOptions options_;
  bool counts_partitions_ = false;
  std::map<uint64_t, size_t> index_;  // of servers
  std::vector<size_t> counting_;      // servers that count
  std::vector<size_t> too_small_;     // servers that would, if their limits were larger
  double average_ = 0;                // weight of a partition
  std::vector<double> shares_, load_;
  std::vector<double> leads_, lead_bytes_;  // of primaries: Lead(), Weight()
  std::vector<size_t> led_;                 // primaries
  std::vector<uint64_t> incoming_;          // bytes of moves
  std::vector<std::vector<size_t>> held_;   // partitions by server, before all moves
  std::vector<bool> moved_;
};

BalanceInput InputAfter(const BalancePlan& plan, BalanceInput input) {
  std::map<uint32_t, BalancePartition*> partitions;
  for (BalancePartition& partition : input.partitions) partitions[partition.id] = &partition;
  for (const BalanceMove& move : plan.moves) {
    BalancePartition& partition = *partitions.at(move.partition);
    if (move.primary) {
      partition.primary = move.to;
    } else {
      std::replace(partition.followers.begin(), partition.followers.end(), move.from, move.to);
    }
    for (BalanceServer& server : input.servers) {
      if (server.incarnation == move.to) server.memory_reserved += move.bytes;
      if (server.incarnation != move.from) continue;
      server.memory_reserved -= std::min(server.memory_reserved, move.bytes);
    }
  }
  return input;
}

}  // namespace

BalancePlan PlanBalance(const BalanceInput& input, const BalanceOptions& options) {
  return Planner(input, options).Run();
}

BalancePlan PlanAllRounds(const BalanceInput& input, const BalanceOptions& options,
                          size_t most_rounds) {
  BalancePlan whole = PlanBalance(input, options);
  BalanceInput now = InputAfter(whole, input);
  whole.rounds = whole.moves.empty() ? 0 : 1;
  if (whole.balanced()) return whole;
  for (size_t round = 2; round <= most_rounds && whole.rounds + 1 == round; ++round) {
    const BalancePlan plan = PlanBalance(now, options);
    if (plan.balanced() || plan.moves.empty()) break;
    whole.rounds = round;
    whole.bytes += plan.bytes;
    whole.after = plan.after;
    whole.primaries_after = plan.primaries_after;
    for (BalanceMove move : plan.moves) {
      move.round = round;
      whole.moves.push_back(move);
    }
    for (const ServerBalance& after : plan.servers) {
      for (ServerBalance& server : whole.servers) {
        if (server.server != after.server) continue;
        server.bytes_after = after.bytes_after;
        server.primary_after = after.primary_after;
        server.primaries_after = after.primaries_after;
        server.load_after = after.load_after;
      }
    }
    now = InputAfter(plan, std::move(now));
  }
  return whole;
}

}  // namespace verbena::server
