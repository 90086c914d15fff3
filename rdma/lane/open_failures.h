// Decides when to give up a transport for a peer, because lanes over it do not open.
//
// Failures that indicate a busy transport (many lanes open at once, connecting is slow) do not
// count. Such failures are: the peer has too many requests waiting (ABORTED, transport.h), or other
// lanes opened over the same transport meanwhile. So a start of thousands of lanes does not move a
// client to a worse transport.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_LANE_OPEN_FAILURES_H_
#define VERBENA_RDMA_LANE_OPEN_FAILURES_H_

#include <cstdint>

#include "absl/status/status.h"

namespace verbena::rdma {

class OpenFailures {
 public:
  // Number of consecutive failures after which the next lane uses another transport.
  static constexpr int kMost = 2;

  // A lane starts to connect. `opened`: number of lanes, to any peer, opened over its transport so
  // far.
  void Begin(uint64_t opened) { opened_ = opened; }
  // The lane failed to open with this status; `opened` as for Begin().
  void Failed(const absl::Status& why, uint64_t opened) {
    if (!absl::IsAborted(why) && opened == opened_) ++count_;
  }
  // The lane opened, or the next lane uses another transport.
  void Reset() { count_ = 0; }

  bool enough() const { return count_ >= kMost; }

 private:
  uint64_t opened_ = 0;
  int count_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_OPEN_FAILURES_H_
