// The end of records and operations: replies, refusals, retries, deadlines.
//
// A deadline ends the wait, not the transfer: an operation that ends removes its unposted records.
// Posted pushes stay until settled, as empty records after their lane was lost; posted pulls stay
// until answered or their lane is dead.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_SETTLEMENT_H_
#define VERBENA_CLIENT_CORE_SETTLEMENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "client/core/lane_set.h"
#include "client/core/pending_request.h"

namespace verbena::client {

class RequestTracker;

class Settlement {
 public:
  explicit Settlement(RequestTracker* tracker) : tracker_(*tracker) {}

  // ---- operations ----
  void End(Operation* operation, absl::Status status);
  void EndAll(const absl::Status& status);
  // Ends it if it waits for nothing.
  void MaybeDone(Operation* operation);

  // ---- replies ----
  void OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply);
  static bool Accepted(ReplyStatus status);
  static bool Retryable(ReplyStatus status);  // another attempt may succeed
  // Status of group i of a reply to `entry`.
  static ReplyStatus GroupStatus(const PendingRequest& entry, const Reply& reply, size_t i);
  // The worst status of all groups' replies: final ones before retryable ones; *part is its part.
  static ReplyStatus WorstOf(const PendingRequest& entry, const Reply& reply, uint32_t* part);
  // Handles refusals that end more than this record: kUnknownTable, kDataLoss. False: none of
  // these. The entry stays, without a live operation.
  bool OnFatal(PendingRequest* entry, uint32_t part, ReplyStatus status);
  // Ends the operation with the refusal.
  void Refuse(PendingRequest* entry, ReplyStatus status);
  // Sends a refused push again without data, which settles its sequence (sync: its contribution).
  // Its operation does not wait for that; of a sync table it waits for the commit, which does.
  void SendEmpty(PendingRequest* entry, ReplyStatus status);
  void Retry(PendingRequest* entry, ReplyStatus status);
  void RetryPull(Stream* stream, PendingRequest* entry, ReplyStatus status);
  void Settled(PendingRequest* entry);  // frees it and decrements its operation's count

  // ---- contributions without data ----
  // Whether the caller no longer waits for the entry, while it still has data to send.
  static bool Over(const PendingRequest& entry);
  // Takes the data away. The server may wait for the record (sync: for its contribution; async:
  // for its sequence), so it is resent without elements. That settles it, and it contributes zero.
  void MakeEmpty(PendingRequest* entry);
  // A sync push that will not be sent: the end-step of its step is counted without it.
  void Uncount(PendingRequest* entry);

 private:
  RequestTracker& tracker_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_SETTLEMENT_H_
