#include "client/staging/device_staging.h"

#include <algorithm>
#include <utility>

#include "client/core/backoff.h"

namespace verbena::client {

DeviceStaging::DeviceStaging(std::shared_ptr<rdma::Device> device, size_t bytes)
    : device_(std::move(device)),
      lines_{{Staging(bytes,
                      [this](size_t size) {
                        return rdma::MemoryBlock::AllocatePinned(device_, size,
                                                                 "verbena-push-staging");
                      }),
              {}},
             {Staging(bytes,
                      [this](size_t size) {
                        return rdma::MemoryBlock::AllocatePinned(device_, size,
                                                                 "verbena-pull-staging");
                      }),
              {}}} {}

// Invariant 2. Copies take microseconds each, and a device that hangs is lost in the end.
DeviceStaging::~DeviceStaging() {
  waiting_.clear();
  while (!lines_[0].running.empty() || !lines_[1].running.empty()) {
    HandOver(Direction::kToHost, [](uint64_t, const absl::Status&) {});
    HandOver(Direction::kToDevice, [](uint64_t, const absl::Status&) {});
  }
}

// ---- starting -----------------------------------------------------------------------------------

absl::StatusOr<bool> DeviceStaging::Passed(const Mark& mark, int64_t now) {
  if (mark == nullptr) return true;
  const absl::StatusOr<bool> passed = mark->Passed();
  if (passed.ok() && !*passed) WaitForMark(now);
  return passed;
}

void DeviceStaging::WaitForMark(int64_t now) { mark_at_ = std::min(mark_at_, now + mark_poll_); }

absl::Status DeviceStaging::Start(Direction direction, const std::byte* from, std::byte* to,
                                  size_t bytes, uint64_t cookie) {
  RangeId range =
      BeginRange(direction == Direction::kToHost ? "copy to host" : "copy to device", bytes);
  const absl::StatusOr<uint64_t> number = device_->StartCopy(direction, from, to, bytes);
  if (!number.ok()) {
    EndRange(&range);
    return number.status();
  }
  lines_[static_cast<size_t>(direction)].running.push_back({*number, cookie, range});
  // What waited for a mark has gone on: the next one is looked at soon again.
  mark_poll_ = kPollNanos;
  return absl::OkStatus();
}

absl::Status DeviceStaging::CopyOut(const std::byte* from, std::byte* to, size_t bytes,
                                    uint64_t cookie) {
  return Start(Direction::kToHost, from, to, bytes, cookie);
}

absl::Status DeviceStaging::CopyIn(const std::byte* from, std::byte* to, size_t bytes,
                                   const Mark& mark, uint64_t cookie, int64_t now) {
  if (waiting_.empty()) {
    const absl::StatusOr<bool> passed = Passed(mark, now);
    if (!passed.ok()) return passed.status();
    if (*passed) return Start(Direction::kToDevice, from, to, bytes, cookie);
  }
  waiting_.push_back({from, to, bytes, mark, cookie});
  return absl::OkStatus();
}

bool DeviceStaging::Cancel(uint64_t cookie) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [cookie](const Waiting& copy) { return copy.cookie == cookie; });
  if (it == waiting_.end()) return false;
  waiting_.erase(it);
  return true;
}

// ---- progress -----------------------------------------------------------------------------------

bool DeviceStaging::StartWaiting(int64_t now, Listener listener) {
  bool worked = false;
  while (!waiting_.empty()) {
    const absl::StatusOr<bool> passed = Passed(waiting_.front().mark, now);
    if (passed.ok() && !*passed) break;
    const Waiting copy = std::move(waiting_.front());
    waiting_.pop_front();
    absl::Status status = passed.status();
    if (status.ok()) {
      status = Start(Direction::kToDevice, copy.from, copy.to, copy.bytes, copy.cookie);
    }
    if (!status.ok()) listener(copy.cookie, status);
    worked = true;
  }
  return worked;
}

bool DeviceStaging::HandOver(Direction direction, Listener listener) {
  std::deque<Running>& running = lines_[static_cast<size_t>(direction)].running;
  if (running.empty()) return false;
  const absl::StatusOr<uint64_t> done = device_->CopiesDone(direction);
  bool worked = false;
  // A lost device touches nothing any more: all are over.
  while (!running.empty() && (!done.ok() || running.front().number <= *done)) {
    const uint64_t cookie = running.front().cookie;
    EndRange(&running.front().range);
    running.pop_front();
    listener(cookie, done.status());
    worked = true;
  }
  return worked;
}

bool DeviceStaging::RunOnce(int64_t now, Listener listener) {
  bool worked = false;
  asked_at_ = now;
  if (mark_at_ <= now) {
    mark_at_ = kNever;
    mark_poll_ = std::min(mark_poll_ * 2, kMaxPollNanos);
    worked = true;  // the caller looks again at what it has that waits
    StartWaiting(now, listener);
  }
  worked |= HandOver(Direction::kToHost, listener);
  worked |= HandOver(Direction::kToDevice, listener);
  return worked;
}

int64_t DeviceStaging::NextTimerNanos() const {
  const bool running = !lines_[0].running.empty() || !lines_[1].running.empty();
  return std::min(mark_at_, running ? asked_at_ + kPollNanos : kNever);
}

}  // namespace verbena::client
