#include "server/balance/rebalancer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/configurations.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

constexpr absl::Duration kMoveCallTimeout = absl::Seconds(5);
// While moves are in progress, to begin the next ones soon after.
constexpr int64_t kLookWhileMovingNanos = 1000 * kNanosPerMilli;

std::string Percent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

bool IsThere(const BalanceMove& move, const v1::Partition& partition) {
  if (move.primary) return partition.primary() == move.to;
  const auto& followers = partition.followers();
  return std::any_of(followers.begin(), followers.end(),
                     [&](const v1::Replica& r) { return r.server() == move.to; });
}

std::string NameOf(uint64_t server, const v1::ClusterView& view) {
  for (const v1::Server& s : view.servers()) {
    if (s.incarnation() == server) return s.name();
  }
  return "";
}

bool AnySilent(const v1::ClusterView& view) {
  return std::any_of(view.servers().begin(), view.servers().end(),
                     [](const v1::Server& s) { return s.state() != v1::Server::ALIVE; });
}

bool AnyLearner(const v1::ClusterView& view) {
  return std::any_of(view.partitions().begin(), view.partitions().end(),
                     [](const v1::Partition& p) { return !p.learners().empty(); });
}

}  // namespace

Rebalancer::Rebalancer(RebalancerOptions options, const Clock* clock, ControlChannel* control)
    : options_(std::move(options)),
      clock_(clock),
      control_(*control),
      watch_(options_.coordinator, control),
      ids_(options_.seed),
      next_ns_(clock->NowNanos() + options_.every_ns) {}

Rebalancer::~Rebalancer() { *alive_ = false; }

void Rebalancer::Log(bool failed, const std::string& text) const {
  if (options_.log) options_.log(failed, text);
}

void Rebalancer::Idle() {
  moving_ = false;
  above_ = 0;
  moves_.clear();
}

bool Rebalancer::RunOnce() {
  const int64_t now = clock_->NowNanos();
  if (calling_ || next_ns_ > now) return false;
  next_ns_ = now + options_.every_ns;
  if (options_.active && !options_.active()) {
    Idle();
    return true;
  }
  calling_ = true;
  watch_.Ask([this](absl::StatusOr<ClusterLoad> load) {
    calling_ = false;
    OnLoad(std::move(load));
  });
  return true;
}

int64_t Rebalancer::NextTimerNanos() const { return calling_ ? kNever : next_ns_; }

RebalancerStatistics Rebalancer::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

bool Rebalancer::AnyStayed(const v1::ClusterView& view) const {
  return std::any_of(moves_.begin(), moves_.end(), [&](const BalanceMove& move) {
    if (move.partition >= static_cast<uint32_t>(view.partitions_size())) return false;
    const v1::Partition& partition = view.partitions(static_cast<int>(move.partition));
    return !IsThere(move, partition) && partition.last_move() != v1::MOVE_END_UNSPECIFIED;
  });
}

void Rebalancer::OnLoad(absl::StatusOr<ClusterLoad> load) {
  if (!load.ok()) {
    above_ = 0;
    return Log(true, absl::StrCat("the load is not known: ", load.status().message()));
  }
  const v1::ClusterView& view = load->view;
  if (PartitionsInMove(view) > 0) {
    next_ns_ = std::min(next_ns_, clock_->NowNanos() + kLookWhileMovingNanos);
    return;
  }
  if (AnyStayed(view)) {
    Log(true, absl::StrCat("a move had no effect; the next plan is made in ",
                           kPauseLooks * options_.every_ns / 1'000'000'000, " s"));
    next_ns_ = clock_->NowNanos() + kPauseLooks * options_.every_ns;
    return Idle();
  }
  moves_.clear();
  if (AnySilent(view) || AnyLearner(view) || PartitionsIncomplete(view) > 0 ||
      !MayBalance(view).ok()) {
    return Idle();
  }
  BalanceOptions options;
  options.most_moves = kMovesAtOnce;
  const BalancePlan plan = PlanBalance(BalanceInputOf(view, load->reports, load->full), options);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    statistics_.imbalance = plan.before;
    statistics_.imbalance_of_primaries = plan.primaries_before;
    statistics_.known = true;
  }
  const std::string apart =
      absl::StrCat("the servers' bytes differ by ", Percent(plan.before), " of their average, ",
                   Percent(plan.primaries_before), " for primaries alone");
  if (moving_ && plan.balanced()) {
    Log(false, absl::StrCat("balanced: ", apart));
    return Idle();
  }
  if (!moving_) {
    const bool above = plan.before > options_.above || plan.primaries_before > kPrimariesAbove;
    above_ = above ? above_ + 1 : 0;
    if (above_ < kLooksAbove) return;
  }
  if (plan.moves.empty()) {
    if (moving_) Log(false, absl::StrCat("no move brings the servers closer: ", apart));
    return Idle();
  }
  if (!moving_) Log(false, absl::StrCat("begins: ", apart));
  moving_ = true;
  BeginMoves(plan, view);
}

void Rebalancer::BeginMoves(const BalancePlan& plan, const v1::ClusterView& view) {
  std::map<std::pair<uint64_t, uint64_t>, v1::MovePartitionsRequest> requests;
  for (const BalanceMove& move : plan.moves) {
    requests[{move.to, move.primary ? 0 : move.from}].add_partitions(move.partition);
  }
  requests_.clear();
  for (auto& [servers, request] : requests) {
    request.set_request_id(ids_.RequestId());
    request.set_to(NameOf(servers.first, view));
    if (servers.second != 0) request.set_from(NameOf(servers.second, view));
    requests_.push_back(std::move(request));
  }
  planned_ = plan.moves;
  next_ns_ = std::min(next_ns_, clock_->NowNanos() + kLookWhileMovingNanos);
  SendNext();
}

void Rebalancer::SendNext() {
  if (requests_.empty()) return;
  const v1::MovePartitionsRequest request = std::move(requests_.front());
  requests_.pop_front();
  calling_ = true;
  Call<v1::MovePartitionsResponse>(
      control_, options_.coordinator, "/verbena.v1.Cluster/MovePartitions", request,
      kMoveCallTimeout,
      [this, alive = alive_](absl::StatusOr<v1::MovePartitionsResponse> response) {
        if (!*alive) return;
        calling_ = false;
        if (!response.ok()) {
          // The view has changed meanwhile, or the coordinator is away: the next look shows it.
          requests_.clear();
          return Log(true, absl::StrCat("moves are not begun: ", response.status().message()));
        }
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          statistics_.begun += static_cast<uint64_t>(response->partitions_size());
        }
        const auto& begun = response->partitions();
        std::copy_if(planned_.begin(), planned_.end(), std::back_inserter(moves_),
                     [&](const BalanceMove& move) {
                       return std::find(begun.begin(), begun.end(), move.partition) != begun.end();
                     });
        SendNext();
      });
}

}  // namespace verbena::server
