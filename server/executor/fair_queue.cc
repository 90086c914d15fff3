#include "server/executor/fair_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::server {

absl::Status FairQueue::Post(const std::string& caller, Inbox::Closure& closure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = waiting_.find(caller);
  const size_t of_caller = it == waiting_.end() ? 0 : it->second.size();
  if (of_caller >= kMostOfCaller || size_ >= kMostInAll) {
    return absl::UnavailableError(absl::StrCat(of_caller, " calls of ", caller, " and ", size_,
                                               " in all wait; at most ", kMostOfCaller, " and ",
                                               kMostInAll, " may; retry later"));
  }
  if (it == waiting_.end()) turns_.push_back(caller);
  waiting_[caller].push_back(std::move(closure));
  ++size_;
  return absl::OkStatus();
}

bool FairQueue::RunOne() {
  Inbox::Closure closure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (turns_.empty()) return false;
    const auto it = waiting_.find(turns_.front());
    closure = std::move(it->second.front());
    it->second.pop_front();
    --size_;
    if (it->second.empty()) {
      waiting_.erase(it);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
  }
  closure();
  return true;
}

bool FairQueue::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return turns_.empty();
}

}  // namespace verbena::server
