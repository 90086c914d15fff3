// Pulls that followers answer (ReadFrom::kAny): chooses a replica for each chunk, and falls back to
// the primary.
//
// A follower answers at once or refuses. A pull uses a follower only if the lane to it is open; if
// not, the lane is opened for later pulls. After a refusal, a lost lane, a new configuration, or a
// timeout, the pull goes to the primary as a new pull. The timeout is 1 s, or half of the call's
// remaining time: once in the queue of the lane, and once for the reply. The timeout of the reply
// closes the lane first, because the follower may still write.
//
// **Thread safety**: one owner at a time.
//
// Invariant: a chunk that this client has read at a version is never read at an older one from a
// follower, unless a primary has answered with an older version meanwhile (another run of the job,
// or a reset).
#ifndef VERBENA_CLIENT_CORE_FOLLOWER_READS_H_
#define VERBENA_CLIENT_CORE_FOLLOWER_READS_H_

#include <cstdint>

#include "client/core/lane_set.h"
#include "client/core/pending_request.h"

namespace verbena::client {

class RequestTracker;

class FollowerReads {
 public:
  explicit FollowerReads(RequestTracker* tracker) : tracker_(*tracker) {}

  // A new pull of an observer's operation. Its floor is the last version that this client has read
  // of the chunk.
  void Begin(PendingRequest* entry);
  // Queues a new pull of an operation with max_staleness_ms on a follower's lane. False: the
  // primary answers this one, or no such lane is open.
  bool Enqueue(PendingRequest* entry);
  // The pull was posted.
  void Posted(PendingRequest* entry);
  // The reply has `version`. False: it is older than the entry's floor.
  bool Learn(const PendingRequest& entry, uint64_t version);
  // The follower has refused the pull: it goes to the primary.
  void Redirect(PendingRequest* entry);
  // The lane is dead: pulls that were queued on it for a follower go to the primary.
  void OnLaneDead(Stream* stream);

  bool RunTimers(int64_t now);
  int64_t next_ns() const { return next_ns_; }

 private:
  // A shorter timeout closes lanes of busy servers. A longer one delays pulls from servers that
  // hang.
  static constexpr int64_t kPatienceNanos = 1'000'000'000;
  // With less time left a call asks primaries only.
  static constexpr int64_t kLeastTimeNanos = 200'000'000;

  void StartPatience(PendingRequest* entry);
  // Pulls that are queued on the lane for a follower, and whose timeout is over, go to the primary.
  void RedirectQueued(Stream* stream, int64_t now);
  // A lane of the shard; null: none is open.
  Stream* Open(uint64_t server, uint32_t shard);

  RequestTracker& tracker_;
  uint64_t turn_ = 0;
  int64_t next_ns_ = INT64_MAX;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_FOLLOWER_READS_H_
