// Between memory of a device and the data plane, where no transport reaches the former: pinned
// buffers, and the copies that go through them.
//
// A chunk that is pushed is copied to a buffer before its record is posted; one that is pulled
// comes to a buffer and is copied from there. Each direction has buffers of its own, because pulls
// keep theirs while the server parks them. A caller's mark (what it had enqueued in its stream) is
// waited for here, not on the device: a push has no buffer before its copy can run. (A pull that is
// answered before the destination's mark has passed does keep its buffer until then.)
//
// A device has no descriptor that tells of its progress: it is asked, every kPollNanos while copies
// are under way, and less and less often for marks, because a step may compute for long.
//
// States of a copy: waiting (its mark has not passed; of pulls only) -> running -> handed to the
// listener.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A copy that was started is handed to the listener once, in the order of its direction, after
//     the device has stopped touching its memory.
//  2. The destructor waits for copies that run: what they touch may be unmapped afterwards.
#ifndef VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_
#define VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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
  // The cookie of a copy, and whether it is there. Not OK: the device is lost.
  using Listener = absl::FunctionRef<void(uint64_t cookie, const absl::Status& status)>;

  static constexpr int64_t kPollNanos = 20'000;
  static constexpr int64_t kMaxPollNanos = 500'000;  // of marks

  // At most so many bytes of pinned memory in each direction, taken when they are needed.
  DeviceStaging(std::shared_ptr<rdma::Device> device, size_t bytes);
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  const rdma::Device& device() const { return *device_; }
  Staging* buffers(Direction direction) { return &lines_[static_cast<size_t>(direction)].buffers; }

  // Whether the mark has passed (a null one has); when not, it is asked about again before long.
  absl::StatusOr<bool> Passed(const Mark& mark, int64_t now);
  // From the device to a buffer, now.
  absl::Status CopyOut(const std::byte* from, std::byte* to, size_t bytes, uint64_t cookie);
  // From a buffer to the device, once the mark has passed.
  absl::Status CopyIn(const std::byte* from, std::byte* to, size_t bytes, const Mark& mark,
                      uint64_t cookie, int64_t now);

  // Takes back a copy that waits for its mark. False: it runs, or there is none.
  bool Cancel(uint64_t cookie);

  // Hands over what is done by now. Returns whether there was any.
  bool RunOnce(int64_t now, Listener listener);
  // When to call that, and to look again at what waits for a mark; INT64_MAX: never.
  int64_t NextTimerNanos() const;
  // Calls f(cookie) for each copy that was not handed over yet.
  template <typename F>
  void ForEach(F f) const {
    for (const Line& line : lines_) {
      for (const Running& copy : line.running) f(copy.cookie);
    }
    for (const Waiting& copy : waiting_) f(copy.cookie);
  }

 private:
  struct Running {
    uint64_t number;  // the device's
    uint64_t cookie;
    RangeId range;
  };
  struct Line {  // of a direction
    Staging buffers;
    std::deque<Running> running;
  };
  struct Waiting {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
    Mark mark;
    uint64_t cookie;
  };
  absl::Status Start(Direction direction, const std::byte* from, std::byte* to, size_t bytes,
                     uint64_t cookie);
  bool StartWaiting(int64_t now, Listener listener);
  bool HandOver(Direction direction, Listener listener);
  void WaitForMark(int64_t now);

  const std::shared_ptr<rdma::Device> device_;
  Line lines_[2];
  std::deque<Waiting> waiting_;  // of pulls, in order: one that waits holds up those behind it
  int64_t asked_at_ = 0;
  int64_t mark_poll_ = kPollNanos;
  int64_t mark_at_ = INT64_MAX;  // when to look at marks again
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_
