// How connections of a verbs endpoint end: failing, lost, retired.
//
// **Thread safety**: the endpoint's thread.
//
// Invariants:
//  1. While completions are read, a failing connection is only marked. It is retired
//     (LoseFailing()) when none of its completions is unread.
//  2. A connection whose queue pair the device does not destroy is not dead: destruction is
//     retried, its flushed completions are held back, and its memory is kept.
#ifndef VERBENA_RDMA_VERBS_VERBS_ENDS_H_
#define VERBENA_RDMA_VERBS_VERBS_ENDS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rdma/verbs/verbs_connection.h"

namespace verbena::rdma {

class VerbsEndpointImpl;

class VerbsEnds {
 public:
  explicit VerbsEnds(VerbsEndpointImpl* core) : core_(*core) {}

  // The connection is failing.
  void Fail(ConnectionId id) { failing_.push_back(id); }
  bool failing() const { return !failing_.empty(); }
  void LoseFailing();
  // Ends the connection; reports kLost, or kFailed if it was not established yet.
  void Lose(VerbsConnection* connection, absl::Status reason);
  void Retire(VerbsConnection* connection);
  // A connection that its owner has destroyed and the device has not.
  void Keep(std::unique_ptr<VerbsConnection> connection) {
    forgotten_.push_back(std::move(connection));
  }
  void RetryStuck();
  // The device is closed: gives up objects that it does not destroy.
  void Abandon();

 private:
  bool TryRetire(VerbsConnection* connection);

  VerbsEndpointImpl& core_;
  std::vector<ConnectionId> failing_;
  std::vector<VerbsConnection*> stuck_;  // the device refused to destroy them: not dead
  std::vector<std::unique_ptr<VerbsConnection>> forgotten_;  // of stuck_, after Destroy()
  std::vector<Completion> unread_;
  int64_t next_retry_ns_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_ENDS_H_
