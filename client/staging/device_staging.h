// Between memory of a device and the data plane, where no transport reaches the former: pinned
// buffers, and the copies that go through them.
//
// A chunk that is pushed is copied to a buffer before its record is posted; one that is pulled
// comes to a buffer and is copied from there. Each direction has buffers of its own, because pulls
// keep theirs while the server parks them. A caller's mark (what it had enqueued in its stream) is
// waited for here, not on the device: a push has no buffer before its copy can run. (A pull that is
// answered before the destination's mark has passed does keep its buffer until then.)
//
// Copies that are started together cost the device much less (Device::StartCopies()). So what is
// asked for while it has enough to do is gathered, and started as one batch: by then there is more
// of it, the busier the device is. The first batch is small, for its chunks are posted when it is
// done, and later ones are larger.
//
// A device has no descriptor that tells of its progress: it is asked, every kPollNanos while copies
// are under way, and less and less often for marks, because a step may compute for long.
//
// States of a copy: waiting (its mark has not passed; of pulls only) -> gathered -> running ->
// handed to the listener.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A copy that was asked for is handed to the listener once, in the order of its direction, when
//     the device has stopped touching its memory.
//  2. The destructor waits for copies that run: what they touch may be unmapped afterwards.
//  3. Once Flush() or RunOnce() has returned, a direction with gathered copies has two batches that
//     run, and is to be looked at again before long.
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
  // The cookie of a copy, and whether it is there. Not OK: its memory is not (any more), or the
  // device is lost.
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
  // From the device to a buffer.
  void CopyOut(const std::byte* from, std::byte* to, size_t bytes, uint64_t cookie) {
    Gather(Direction::kToHost, {from, to, bytes}, cookie);
  }
  // From a buffer to the device, once the mark has passed.
  void CopyIn(const std::byte* from, std::byte* to, size_t bytes, const Mark& mark, uint64_t cookie,
              int64_t now);
  // To be called when no more copies are asked for at present: starts what is gathered, unless the
  // device has enough to do.
  void Flush();

  // Takes back a copy that waits for its mark. False: it is under way, or there is none.
  bool Cancel(uint64_t cookie);

  // Hands over what is done by now, and flushes. Returns whether there was any.
  bool RunOnce(int64_t now, Listener listener);
  // When to call that, and to look again at what waits for a mark; INT64_MAX: never.
  int64_t NextTimerNanos() const;
  // Calls f(cookie) for each copy that was not handed over yet.
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
    uint64_t number;  // the device's; of a copy that it refused, of the one before
    uint64_t cookie;
    RangeId range;
    absl::Status status;  // not OK: it was refused
  };
  struct Line {  // of a direction
    explicit Line(Staging b) : buffers(std::move(b)) {}

    Staging buffers;
    // Gathered: the copies, and their cookies.
    std::vector<rdma::Device::Copy> copies;
    std::vector<uint64_t> cookies;
    size_t gathered_bytes = 0;
    std::deque<Running> running;
    std::deque<uint64_t> batches;  // that run: the number of the last copy of each
    uint64_t last = 0;             // number
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
  std::deque<Waiting> waiting_;  // of pulls, in order: one that waits holds up those behind it
  int64_t asked_at_ = 0;
  int64_t mark_poll_ = kPollNanos;
  int64_t mark_at_ = INT64_MAX;  // when to look at marks again
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_DEVICE_STAGING_H_
