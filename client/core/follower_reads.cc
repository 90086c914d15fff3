#include "client/core/follower_reads.h"

#include <algorithm>
#include <vector>

#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"
#include "proto/protocol_version.h"

namespace verbena::client {

Stream* FollowerReads::Open(uint64_t server, uint32_t shard) {
  Peer* const peer = tracker_.lanes->Get(server, shard);
  const uint32_t rails = std::max(peer->rail_count, 1u);
  for (uint32_t i = 0; i < rails && i < peer->rails.size(); ++i) {
    Stream* const stream = peer->rails[(turn_ + i) % std::min<size_t>(rails, peer->rails.size())];
    if (!stream->open() || stream->lane->ticket().protocol < kFollowersProtocol) continue;
    return stream;
  }
  tracker_.lanes->Want(peer->rails[0]);
  return nullptr;
}

void FollowerReads::Begin(PendingRequest* entry) {
  std::vector<uint64_t>& known = entry->table->read_versions;
  if (known.empty()) known.assign(entry->table->chunks(), 0);
  entry->floor = known[entry->chunk];
}

bool FollowerReads::Enqueue(PendingRequest* entry) {
  TableState* const table = entry->table;
  const v1::ClusterView& view = tracker_.session->view();
  const PartState& part = table->parts[entry->part];
  // A call that cannot wait for a follower's timeout must not close lanes of servers that answer.
  if (entry->operation->deadline_ns - tracker_.now < kLeastTimeNanos) return false;
  if (table->ssp || part.lost || ProtocolInForce(view) < kFollowersProtocol ||
      part.partition >= static_cast<uint32_t>(view.partitions_size())) {
    return false;
  }
  const v1::Partition& info = view.partitions(static_cast<int>(part.partition));
  const auto replicas = static_cast<uint64_t>(info.followers_size()) + 1;
  const auto next = static_cast<int>(turn_++ % replicas);
  if (next == info.followers_size()) return false;
  Stream* const stream = Open(info.followers(next).server(), info.followers(next).shard());
  if (stream == nullptr) return false;
  entry->of_follower = true;
  tracker_.queue.EnqueuePullOn(stream, entry, /*front=*/false);
  StartPatience(entry);
  return true;
}

void FollowerReads::Posted(PendingRequest* entry) { StartPatience(entry); }

void FollowerReads::StartPatience(PendingRequest* entry) {
  const int64_t left = entry->operation->deadline_ns - tracker_.now;
  entry->retry_at = tracker_.now + std::min(left / 2, kPatienceNanos);
  next_ns_ = std::min(next_ns_, entry->retry_at);
}

bool FollowerReads::Learn(const PendingRequest& entry, uint64_t version) {
  std::vector<uint64_t>& known = entry.table->read_versions;
  if (known.empty()) return true;
  uint64_t& floor = known[entry.chunk];
  if (entry.of_follower && version < std::max(entry.floor, entry.min_version)) {
    return VERBENA_FAILPOINT(client, take_older_version);
  }
  // From a primary, a lower one: versions have begun anew.
  floor = version < entry.floor ? version : std::max(floor, version);
  return true;
}

void FollowerReads::Redirect(PendingRequest* entry) {
  if (tracker_.closed || entry->table->dropped) return tracker_.settlement.Settled(entry);
  ++tracker_.counters.follower_redirects;
  entry->of_follower = false;
  tracker_.queue.EnqueuePullFirst(entry);
}

void FollowerReads::OnLaneDead(Stream* stream) { RedirectQueued(stream, INT64_MAX); }

void FollowerReads::RedirectQueued(Stream* stream, int64_t now) {
  std::vector<PendingRequest*> pulls;
  const auto expired = [this, now](const PendingRequest& entry) {
    if (!entry.of_follower) return false;
    if (entry.retry_at > now) next_ns_ = std::min(next_ns_, entry.retry_at);
    return entry.retry_at <= now;
  };
  stream->pulls.TakeIf(expired, &pulls);
  for (PendingRequest* entry : pulls) {
    entry->state = PendingRequest::State::kHeld;
    Redirect(entry);
  }
}

bool FollowerReads::RunTimers(int64_t now) {
  if (next_ns_ > now) return false;
  next_ns_ = INT64_MAX;
  for (size_t i = 0; i < tracker_.lanes->streams().size(); ++i) {
    Stream* const stream = tracker_.lanes->streams()[i].get();
    // The follower does not have these: its lane may be full of requests to it as a primary.
    RedirectQueued(stream, now);
    bool hangs = false;
    for (const PendingRequest* entry = stream->posted.front(); entry != nullptr;
         entry = PendingRequestQueue::Next(entry)) {
      if (!entry->of_follower) continue;
      hangs |= entry->retry_at <= now;
      if (entry->retry_at > now) next_ns_ = std::min(next_ns_, entry->retry_at);
    }
    if (hangs) {
      tracker_.lanes->Close(stream, absl::UnavailableError("a follower does not answer pulls"));
    }
  }
  return true;
}

}  // namespace verbena::client
