#include "server/executor/fair_queue.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace verbena::server {

absl::Status FairQueue::Post(const std::string& caller, Inbox::Closure& closure, Refuse refuse) {
  const int64_t now = clock_.NowNanos();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = waiting_.find(caller);
  const size_t of_caller = it == waiting_.end() ? 0 : it->second.size();
  if (of_caller >= kMostOfCaller || size_ >= kMostInAll) {
    return absl::UnavailableError(absl::StrCat(of_caller, " calls of ", caller, " and ", size_,
                                               " in all wait; at most ", kMostOfCaller, " and ",
                                               kMostInAll, " may; retry later"));
  }
  if (it == waiting_.end()) turns_.push_back(caller);
  waiting_[caller].push_back({std::move(closure), std::move(refuse), now});
  ++size_;
  return absl::OkStatus();
}

bool FairQueue::RunOne() {
  Inbox::Closure closure;
  std::vector<Waiting> late;
  const int64_t since = clock_.NowNanos() - kLongestWaitNanos;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (turns_.empty()) return false;
    const auto it = waiting_.find(turns_.front());
    std::deque<Waiting>& calls = it->second;
    while (calls.size() > kCrowd && calls.front().since_ns < since) {
      late.push_back(std::move(calls.front()));
      calls.pop_front();
    }
    closure = std::move(calls.front().run);
    calls.pop_front();
    size_ -= late.size() + 1;
    if (calls.empty()) {
      waiting_.erase(it);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
  }
  for (Waiting& call : late) {
    call.refuse(absl::UnavailableError(
        absl::StrCat("it has waited for ", kLongestWaitNanos / 1'000'000'000, " s among more than ",
                     kCrowd, " calls of its caller; retry later")));
  }
  closure();
  return true;
}

bool FairQueue::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return turns_.empty();
}

}  // namespace verbena::server
