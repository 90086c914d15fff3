#include "server/coordinator/view_polls.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::server {

bool ViewPolls::Add(Poll poll) {
  const Caller caller = poll.caller;
  next_ns_ = std::min(next_ns_, poll.due_ns);
  polls_.push_back(std::move(poll));
  if (caller.queue.empty() || ++of_caller_[{caller.queue, caller.member}] <= MostOf(caller)) {
    return true;
  }
  const auto oldest = std::find_if(polls_.begin(), polls_.end(),
                                   [&](const Poll& waiting) { return waiting.caller == caller; });
  due_.push_back(std::move(*oldest));
  polls_.erase(oldest);
  Forget(caller);
  return false;
}

void ViewPolls::Forget(const Caller& caller) {
  const auto it = of_caller_.find({caller.queue, caller.member});
  if (it != of_caller_.end() && --it->second == 0) of_caller_.erase(it);
}

void ViewPolls::Changed(const ViewEditor::Concern& concern) {
  for (Poll& poll : polls_) {
    poll.concerned |= concern.everyone || poll.job.empty() || concern.jobs.contains(poll.job);
  }
}

void ViewPolls::Collect(int64_t now) {
  std::vector<Poll> waiting;
  const bool publish = polls_.size() < kMany || now >= publish_from_ns_;
  next_ns_ = kNever;
  for (Poll& poll : polls_) {
    if ((poll.concerned && publish) || poll.due_ns <= now) {
      Forget(poll.caller);
      due_.push_back(std::move(poll));
    } else {
      next_ns_ = std::min({next_ns_, poll.due_ns, poll.concerned ? publish_from_ns_ : kNever});
      waiting.push_back(std::move(poll));
    }
  }
  polls_ = std::move(waiting);
}

std::optional<ViewPolls::Poll> ViewPolls::Take(int64_t now) {
  if (due_.empty()) Collect(now);
  if (due_.empty()) return std::nullopt;
  Poll poll = std::move(due_.front());
  due_.pop_front();
  return poll;
}

std::vector<ViewPolls::Poll> ViewPolls::TakeAll() {
  next_ns_ = kNever;
  std::vector<Poll> all = std::exchange(polls_, {});
  of_caller_.clear();
  std::move(due_.begin(), due_.end(), std::back_inserter(all));
  due_.clear();
  return all;
}

void ViewPolls::Published(int64_t began, int64_t ended) {
  // Polls whose wait is over, or that end during a gap, do not postpone the others.
  if (began < publish_from_ns_) return;
  publishing_ns_ += ended - began;
  if (!due_.empty()) return;
  const int64_t took = std::exchange(publishing_ns_, 0);
  publish_from_ns_ = ended + std::clamp(4 * took, kGapNanos, kLongestGapNanos);
}

}  // namespace verbena::server
