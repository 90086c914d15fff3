#include "client/core/request_tracker.h"

#include <algorithm>

#include "client/core/errors.h"
#include "client/core/failpoints.h"

namespace verbena::client {

RequestTracker::RequestTracker(Session* s, Operations* o, Staging* received, Staging* packed,
                               const Clock* c, Random* r, bool direct_only)
    : session(s),
      operations(o),
      clock(c),
      random(r),
      entries(this),
      queue(this),
      poster(this),
      settlement(this),
      staging(this, received, packed),
      commits(this),
      failover(this),
      followers(this),
      rails(this),
      devices(this, direct_only),
      norms(this),
      admissions(this),
      tables(this),
      requests(this) {}

void RequestTracker::ReleaseBlock(uint64_t block_id) {
  lanes->memory().ReleaseBlock(block_id);
  for (Operation* operation = operations->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    for (const auto& block : operation->blocks) {
      if (block != nullptr && block->id() == block_id) {
        settlement.End(operation, absl::CancelledError("the region was destroyed"));
        break;
      }
    }
    operation = next;
  }
  for (const auto& stream : lanes->streams()) {
    if (stream->lane == nullptr) continue;
    bool used = false;
    for (const PendingRequest* entry = stream->posted.front(); entry != nullptr;
         entry = entry->queue_links.next) {
      used |= entry->holds_buffer && entry->block->id() == block_id;
    }
    // Failpoint: the memory is freed while the lane may still use it.
    if (used && !VERBENA_FAILPOINT(client, release_buffer_at_deadline)) {
      lanes->Close(stream.get(), absl::CancelledError("a region it used was destroyed"));
    } else if (!used && stream->open()) {
      stream->lane->Forget(block_id);
    }
  }
}

bool RequestTracker::InUse(uint64_t block_id) {
  if (VERBENA_FAILPOINT(client, release_buffer_at_deadline)) return false;
  for (const auto& stream : lanes->streams()) {
    for (const PendingRequest* entry = stream->posted.front(); entry != nullptr;
         entry = entry->queue_links.next) {
      if (entry->holds_buffer && entry->block->id() == block_id) return true;
    }
  }
  return devices.CopiesUse(block_id) || lanes->memory().InUse(block_id);
}

bool RequestTracker::RunTimers(int64_t now_ns) {
  now = now_ns;
  bool worked = devices.RunDevices(now);
  worked |= failover.RunTimers(now);
  worked |= followers.RunTimers(now);
  worked |= staging.RunTimers(now);
  while (Operation* operation = operations->first_deadline()) {
    if (operation->deadline_ns > now) break;
    settlement.End(operation,
                   norms.WithNormHint(*operation, DeadlineStatus(*session, *operation, now)));
    worked = true;
  }
  return queue.RunTimer(now) || worked;
}

int64_t RequestTracker::NextTimerNanos() const {
  if (queue.touched() || norms.due() || rails.due()) return 0;
  int64_t next = std::min({queue.timer(), devices.NextTimerNanos(), failover.next_ns(),
                           followers.next_ns(), staging.next_ns()});
  if (const Operation* first = operations->first_deadline()) {
    next = std::min(next, first->deadline_ns);
  }
  return next;
}

}  // namespace verbena::client
