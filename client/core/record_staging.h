// Staging buffers of records, and the retries after a temporary refusal of memory or a lane.
//
// Rows are packed into staging, and looked up through staging. It is taken when a record is posted,
// and released when the record is answered or its lane is dead. Pushes have separate staging,
// because lookups keep theirs while the server defers them; so have norms, because pulls that wait
// for a step must not take the last buffer.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_RECORD_STAGING_H_
#define VERBENA_CLIENT_CORE_RECORD_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/staging/staging.h"

namespace verbena::client {

class RequestTracker;

class RecordStaging {
 public:
  // `received`: for received data; `packed`: for sent rows.
  RecordStaging(RequestTracker* tracker, Staging* received, Staging* packed)
      : tracker_(*tracker), received_(received), packed_(packed) {}

  Staging* received() { return received_; }
  Staging* packed() { return packed_; }
  Staging* norms() { return &norms_; }
  // The staging that the record uses.
  Staging* StagingOf(const PendingRequest& entry);

  // Takes a buffer. False: none is free now, or no memory is available now (NotNow()).
  bool TakeStaging(Stream* stream, PendingRequest* entry, Staging* from, uint64_t bytes);
  // The transport no longer accesses the record's staging.
  void GiveStaging(PendingRequest* entry);
  // The record does not wait for a buffer any more.
  void StopAwaiting(PendingRequest* entry);
  // Whether the lane may pull into one more buffer; else it waits. When half of them are taken,
  // pulling lanes share the other half. Otherwise one lane could leave the other servers idle, and
  // no buffer for received data that is copied on to a device.
  bool HasShare(const Stream& stream, const Staging& buffers, uint32_t bytes);
  // Streams are about to be pumped.
  void BeginPump() { lanes_pulling_ = 0; }

  // Handles a transport's temporary refusal: `entry`, which is queued on the stream, is retried
  // after a backoff. Its operation ends at its deadline with `status` as the reason. An error for
  // which retries cannot help (IsFinal()) ends the operation. Memory in registration (LaneMemory)
  // is waited for.
  void NotNow(Stream* stream, PendingRequest* entry, const absl::Status& status);
  void Delay(Stream* stream, PendingRequest* entry,
             const absl::Status& status);  // only the backoff
  static bool IsFinal(const absl::Status& status);
  // Memory in registration is ready, or was refused.
  void OnMemoryReady();

  // A pull keeps its buffer after its operation has ended, until the server answers. That may be
  // never if the version waits for this worker. If a record waits for a buffer and none is free,
  // the lane of such a pull is closed after a second; again, after 2 s, 4 s and so on, because its
  // other records begin anew each time.
  bool RunTimers(int64_t now);
  int64_t next_ns() const { return look_ns_; }

 private:
  // More: waiting records miss their deadlines. Less: lanes of servers are closed that answer soon.
  static constexpr int64_t kReclaimNanos = 1'000'000'000;
  static constexpr int64_t kMostReclaimNanos = 32 * kReclaimNanos;
  static constexpr int64_t kLookNanos = kReclaimNanos / 10;

  // Whether an open lane has pulls for which HasShare() has found no buffer, and none is free yet.
  bool PullsAreShort() const;
  // An open lane that may be closed, with a pull that has long kept such a buffer though its
  // operation has ended; null: none.
  Stream* FindEndedPull(const Staging* from, uint32_t bytes, int64_t now);
  static bool IsNext(const PendingRequest& entry);
  bool MayTake(const PendingRequest& entry, const Staging& from, uint32_t bytes) const;
  void AwaitStaging(Stream* stream, PendingRequest* entry, const Staging* from, uint32_t bytes);

  RequestTracker& tracker_;
  Staging* const received_;
  Staging* const packed_;
  Staging norms_{4 << 20};
  std::vector<PendingRequest*> awaits_;  // few: one for each lane and table
  size_t lanes_pulling_ = 0;             // lanes with waiting pulls in this Pump(); 0: not counted
  // The last pull that had no share: of which buffers. Null: none is known to wait.
  const Staging* short_of_ = nullptr;
  uint32_t short_bytes_ = 0;
  int64_t look_ns_ = INT64_MAX;  // when lanes are looked at that may be closed
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_RECORD_STAGING_H_
