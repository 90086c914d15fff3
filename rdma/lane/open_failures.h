// Decides when a transport is to be given up for a peer whose lanes over it do not open.
//
// Failures that show a busy transport (many lanes open at once, connections are slow), not one that
// does not work, do not count: the peer has too many requests waiting (ABORTED, transport.h), or
// other lanes over the same transport opened meanwhile. So a start of thousands of lanes leaves
// nobody on a worse transport.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_LANE_OPEN_FAILURES_H_
#define VERBENA_RDMA_LANE_OPEN_FAILURES_H_

#include <cstdint>

#include "absl/status/status.h"

namespace verbena::rdma {

class OpenFailures {
 public:
  // Failures in a row after which the next lane is asked for over another transport.
  static constexpr int kMost = 2;

  // A lane connects. `opened`: lanes, to any peer, that have opened over its transport so far.
  void Begin(uint64_t opened) { opened_ = opened; }
  // It did not open, and why; `opened` as for Begin().
  void Failed(const absl::Status& why, uint64_t opened) {
    if (!absl::IsAborted(why) && opened == opened_) ++count_;
  }
  // It did, or the next lane is over another transport.
  void Reset() { count_ = 0; }

  bool enough() const { return count_ >= kMost; }

 private:
  uint64_t opened_ = 0;
  int count_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_OPEN_FAILURES_H_
