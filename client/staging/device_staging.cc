#include "client/staging/device_staging.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/core/backoff.h"

namespace verbena::client {

namespace {

// A batch is started at this size, by the number of running batches: 0, 1, or more. The largest
// size costs 4 % of the bandwidth of an H200 on PCIe 5 (with 256 KiB per copy), and takes 80 us
// there.
constexpr size_t kBatchBytes[] = {512 << 10, 1536 << 10, 4 << 20};
// A batch is also started at this number of copies: requesting one takes the driver 0.5 us.
constexpr size_t kMostCopies = 64;
// With this many running batches the device has work until the next check.
constexpr size_t kEnoughBatches = 2;

}  // namespace

DeviceStaging::DeviceStaging(std::shared_ptr<rdma::Device> device, size_t bytes)
    : device_(std::move(device)),
      lines_{Line(Staging(bytes,
                          [this](size_t size) {
                            return rdma::MemoryBlock::AllocatePinned(device_, size,
                                                                     "verbena-push-staging");
                          })),
             Line(Staging(bytes, [this](size_t size) {
               return rdma::MemoryBlock::AllocatePinned(device_, size, "verbena-pull-staging");
             }))} {}

// Invariant 2. Copies take microseconds each, and a hanging device eventually becomes lost.
DeviceStaging::~DeviceStaging() {
  waiting_.clear();
  for (Line& line : lines_) {
    line.copies.clear();
    line.cookies.clear();
  }
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

void DeviceStaging::CopyIn(const std::byte* from, std::byte* to, size_t bytes, const Mark& mark,
                           uint64_t cookie, int64_t now) {
  waiting_.push_back({{from, to, bytes}, mark, cookie});
  if (waiting_.size() == 1) StartWaiting(now);
}

// Starts copies whose mark has passed, or can never pass: starting them returns the error.
void DeviceStaging::StartWaiting(int64_t now) {
  while (!waiting_.empty()) {
    const absl::StatusOr<bool> passed = Passed(waiting_.front().mark, now);
    if (passed.ok() && !*passed) break;
    const Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    Gather(Direction::kToDevice, waiting.copy, waiting.cookie);
  }
}

void DeviceStaging::Gather(Direction direction, const rdma::Device::Copy& copy, uint64_t cookie) {
  Line& line = LineOf(direction);
  line.copies.push_back(copy);
  line.cookies.push_back(cookie);
  line.gathered_bytes += copy.bytes;
  const size_t under_way = std::min(line.batches.size(), std::size(kBatchBytes) - 1);
  if (line.gathered_bytes >= kBatchBytes[under_way] || line.copies.size() >= kMostCopies) {
    Submit(direction);
  }
}

// Starts all copies together. If that is refused, starts them one by one: refused copies end with
// the device's reason, and the others are copied.
void DeviceStaging::Submit(Direction direction) {
  Line& line = LineOf(direction);
  const char* const what = direction == Direction::kToHost ? "copy to host" : "copy to device";
  const absl::StatusOr<uint64_t> last = device_->StartCopies(direction, line.copies);
  if (last.ok()) line.last = *last - line.copies.size();
  for (size_t i = 0; i < line.copies.size(); ++i) {
    const rdma::Device::Copy& copy = line.copies[i];
    const absl::StatusOr<uint64_t> number =
        last.ok() ? line.last + 1 : device_->StartCopy(direction, copy.from, copy.to, copy.bytes);
    if (number.ok()) line.last = *number;
    const RangeId range = BeginRange(what, copy.bytes);
    line.running.push_back({line.last, line.cookies[i], range, number.status()});
  }
  line.batches.push_back(line.last);
  line.copies.clear();
  line.cookies.clear();
  line.gathered_bytes = 0;
  // Copies that waited for a mark have started, so the next mark is polled soon again.
  mark_poll_ = kPollNanos;
}

void DeviceStaging::Flush() {
  for (const Direction direction : {Direction::kToHost, Direction::kToDevice}) {
    const Line& line = LineOf(direction);
    if (!line.copies.empty() && line.batches.size() < kEnoughBatches) Submit(direction);
  }
}

bool DeviceStaging::Cancel(uint64_t cookie) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [cookie](const Waiting& copy) { return copy.cookie == cookie; });
  if (it == waiting_.end()) return false;
  waiting_.erase(it);
  return true;
}

// ---- progress -----------------------------------------------------------------------------------

bool DeviceStaging::HandOver(Direction direction, Listener listener) {
  Line& line = LineOf(direction);
  if (line.running.empty()) return false;
  const absl::StatusOr<uint64_t> done = device_->CopiesDone(direction);
  while (!line.batches.empty() && (!done.ok() || line.batches.front() <= *done)) {
    line.batches.pop_front();
  }
  bool worked = false;
  // A lost device touches no memory any more: all copies are over.
  while (!line.running.empty() && (!done.ok() || line.running.front().number <= *done)) {
    Running copy = std::move(line.running.front());
    EndRange(&copy.range);
    line.running.pop_front();
    listener(copy.cookie, copy.status.ok() ? done.status() : copy.status);
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
    worked = true;  // the caller checks its waiting entries again
    StartWaiting(now);
  }
  worked |= HandOver(Direction::kToHost, listener);
  worked |= HandOver(Direction::kToDevice, listener);
  Flush();
  return worked;
}

int64_t DeviceStaging::NextTimerNanos() const {
  int64_t next = mark_at_;
  for (const Line& line : lines_) {
    if (!line.copies.empty() && line.batches.size() < kEnoughBatches) return 0;
    if (!line.running.empty()) next = std::min(next, asked_at_ + kPollNanos);
  }
  return next;
}

}  // namespace verbena::client
