// Copies between device memory and the data plane through pinned buffers, for device memory that no
// transport can access directly.
//
// A pushed chunk is copied to a buffer before its record is posted. A pulled chunk arrives in a
// buffer and is copied from there. Each direction has its own buffers, because pulls keep theirs
// while the server defers them. A caller's mark (its work enqueued in the stream) is awaited here,
// not on the device: a push has no buffer before its copy can run. (A pull that is answered before
// the destination's mark has passed keeps its buffer until then.)
//
// Batched copies are much cheaper for the device (Device::StartCopies()). So copies that are
// requested while the device has enough work are gathered and started as one batch. The busier the
// device, the larger the batch. The first batch is small, because its chunks are posted when it is
// done; later ones are larger.
//
// A device has no descriptor that reports progress, so it is polled: every kPollNanos while copies
// run. Marks are polled with a growing interval, because a step may compute for long.
//
// States of a copy: waiting (its mark has not passed; pulls only) -> gathered -> running -> passed
// to the listener.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A requested copy is passed to the listener once, in the order of its direction, when the
//     device no longer touches its memory.
//  2. The destructor waits for running copies, because their memory may be unmapped afterwards.
//  3. After Flush() or RunOnce(), a direction with gathered copies has two running batches, and
//     must be checked again soon.
#ifndef VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_
#define VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/staging/staging.h"
#include "client/trace/trace.h"
#include "rdma/memory/device.h"

namespace verbena::client {

class DeviceStaging {
 public:
  using Direction = rdma::Device::Direction;
  using Mark = std::shared_ptr<rdma::Device::Mark>;
  // The cookie of a copy, and its result. Not OK: its memory is not valid (any more), or the device
  // is lost.
  using Listener = absl::FunctionRef<void(uint64_t cookie, const absl::Status& status)>;

  static constexpr int64_t kPollNanos = 20'000;
  static constexpr int64_t kMaxPollNanos = 500'000;  // for marks

  // Maximum bytes of pinned memory in each direction, allocated on demand.
  DeviceStaging(std::shared_ptr<rdma::Device> device, size_t bytes);
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  const rdma::Device& device() const { return *device_; }
  Staging* buffers(Direction direction) { return &lines_[static_cast<size_t>(direction)].buffers; }

  // Whether the mark has passed (true for null). If not, it is polled again soon.
  absl::StatusOr<bool> Passed(const Mark& mark, int64_t now);
  // Copies from the device to a buffer.
  void CopyOut(const std::byte* from, std::byte* to, size_t bytes, uint64_t cookie) {
    Gather(Direction::kToHost, {from, to, bytes}, cookie);
  }
  // Copies from a buffer to the device, after the mark has passed.
  void CopyIn(const std::byte* from, std::byte* to, size_t bytes, const Mark& mark, uint64_t cookie,
              int64_t now);
  // Call when no more copies are requested for now: starts the gathered ones, unless the device has
  // enough work.
  void Flush();

  // Cancels a copy that waits for its mark. False: the copy is running, or does not exist.
  bool Cancel(uint64_t cookie);

  // Passes completed copies to the listener, and flushes. Returns whether there were any.
  bool RunOnce(int64_t now, Listener listener);
  // Time to call RunOnce() and to check entries that wait for a mark; INT64_MAX: never.
  int64_t NextTimerNanos() const;
  // Calls f(cookie) for each copy that was not passed to the listener yet.
  template <typename F>
  void ForEach(F f) const {
    for (const Line& line : lines_) {
      for (const Running& copy : line.running) f(copy.cookie);
      for (const uint64_t cookie : line.cookies) f(cookie);
    }
    for (const Waiting& copy : waiting_) f(copy.cookie);
  }

 private:
  struct Running {
    uint64_t number;  // the device's number; for a refused copy, that of the previous one
    uint64_t cookie;
    RangeId range;
    absl::Status status;  // not OK: it was refused
  };
  struct Line {  // one direction
    explicit Line(Staging b) : buffers(std::move(b)) {}

    Staging buffers;
    // Gathered copies and their cookies.
    std::vector<rdma::Device::Copy> copies;
    std::vector<uint64_t> cookies;
    size_t gathered_bytes = 0;
    std::deque<Running> running;
    std::deque<uint64_t> batches;  // running batches: the number of the last copy of each
    uint64_t last = 0;             // its number
  };
  struct Waiting {
    rdma::Device::Copy copy;
    Mark mark;
    uint64_t cookie;
  };
  Line& LineOf(Direction direction) { return lines_[static_cast<size_t>(direction)]; }
  void Gather(Direction direction, const rdma::Device::Copy& copy, uint64_t cookie);
  void Submit(Direction direction);
  void StartWaiting(int64_t now);
  bool HandOver(Direction direction, Listener listener);
  void WaitForMark(int64_t now);

  const std::shared_ptr<rdma::Device> device_;
  Line lines_[2];
  std::deque<Waiting> waiting_;  // pulls, in order: a waiting one blocks those behind it
  int64_t asked_at_ = 0;
  int64_t mark_poll_ = kPollNanos;
  int64_t mark_at_ = INT64_MAX;  // time of the next check of marks
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_
