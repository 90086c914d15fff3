#include "tests/client/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace verbena::test {

class FakeDevice::FakeMark final : public rdma::Device::Mark {
 public:
  FakeMark(FakeDevice* device, uintptr_t stream) : device_(device), stream_(stream) {
    ++device_->marks;
  }
  ~FakeMark() override { --device_->marks; }
  absl::StatusOr<bool> Passed() override {
    if (!device_->lost.ok()) return device_->lost;
    return !device_->busy[stream_];
  }

 private:
  FakeDevice* const device_;
  const uintptr_t stream_;
};

FakeDevice::~FakeDevice() {
  while (!memory_.empty()) Free(const_cast<std::byte*>(memory_.begin()->first));
}

absl::StatusOr<std::byte*> FakeDevice::Allocate(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* shadow = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || shadow == MAP_FAILED)
    return absl::ResourceExhaustedError("fake:0 is full");
  memory_[static_cast<std::byte*>(at)] = {bytes, static_cast<std::byte*>(shadow)};
  return static_cast<std::byte*>(at);
}

void FakeDevice::Free(std::byte* data) {
  const auto it = memory_.find(data);
  if (it == memory_.end()) throw std::logic_error("freed twice");
  for (const auto& copies : copies_) {
    for (const auto& [copy, done_at] : copies) {
      if ((copy.from >= data && copy.from < data + it->second.bytes) ||
          (copy.to >= data && copy.to < data + it->second.bytes)) {
        throw std::logic_error("freed while a copy uses it");
      }
    }
  }
  munmap(data, it->second.bytes);
  munmap(it->second.shadow, it->second.bytes);
  memory_.erase(it);
}

std::byte* FakeDevice::Bytes(const std::byte* data) {
  auto it = memory_.upper_bound(data);
  if (it == memory_.begin()) return nullptr;
  --it;
  const auto offset = static_cast<size_t>(data - it->first);
  return offset < it->second.bytes ? it->second.shadow + offset : nullptr;
}

absl::Status FakeDevice::CheckMemory(const std::byte* data, size_t bytes) {
  if (Bytes(data) != nullptr && Bytes(data + bytes - 1) == Bytes(data) + bytes - 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("this is not memory of fake:0");
}

absl::Status FakeDevice::Pin(std::byte* data, size_t bytes) {
  if (bytes > pinnable - std::min(pinnable, pinned)) {
    return absl::ResourceExhaustedError("fake:0 cannot pin as much");
  }
  pins_[data] = bytes;
  pinned += bytes;
  most_pinned = std::max(most_pinned, pinned);
  return absl::OkStatus();
}

void FakeDevice::Unpin(std::byte* data) {
  pinned -= pins_.at(data);
  pins_.erase(data);
}

bool FakeDevice::IsPinned(const std::byte* data, size_t bytes) const {
  auto it = pins_.upper_bound(data);
  if (it == pins_.begin()) return false;
  --it;
  return static_cast<size_t>(data - it->first) + bytes <= it->second;
}

absl::StatusOr<std::unique_ptr<rdma::Device::Mark>> FakeDevice::MarkStream(uintptr_t stream) {
  if (!lost.ok()) return lost;
  return std::make_unique<FakeMark>(this, stream);
}

absl::Status FakeDevice::Check(Direction direction, const Copy& copy) {
  const bool out = direction == Direction::kToHost;
  if (!IsPinned(out ? copy.to : copy.from, copy.bytes)) {
    throw std::logic_error("a copy of memory not pinned");
  }
  return CheckMemory(out ? copy.from : copy.to, copy.bytes);
}

absl::StatusOr<uint64_t> FakeDevice::StartCopy(Direction direction, const std::byte* from,
                                               std::byte* to, size_t bytes) {
  if (!lost.ok()) return lost;
  if (!refuse_copy.ok()) return std::exchange(refuse_copy, absl::OkStatus());
  const Copy copy = {from, to, bytes};
  return StartCopies(direction, {&copy, 1});
}

absl::StatusOr<uint64_t> FakeDevice::StartCopies(Direction direction,
                                                 absl::Span<const Copy> copies) {
  if (!lost.ok()) return lost;
  if (!refuse_copy.ok()) return refuse_copy;
  for (const Copy& copy : copies) {
    if (absl::Status s = Check(direction, copy); !s.ok()) return s;
  }
  std::deque<Started>& queue = copies_[Index(direction)];
  int64_t done_at = std::max(queue.empty() ? 0 : queue.back().done_at, clock_->NowNanos());
  done_at += copy_nanos * static_cast<int64_t>(copies.size());
  for (const Copy& copy : copies) queue.push_back({copy, done_at});
  started[Index(direction)] += copies.size();
  together[Index(direction)] = std::max(together[Index(direction)], copies.size());
  return done_[Index(direction)] + queue.size();
}

absl::StatusOr<uint64_t> FakeDevice::CopiesDone(Direction direction) {
  std::deque<Started>& copies = copies_[Index(direction)];
  if (!lost.ok()) {
    copies.clear();  // it touches nothing any more
    return lost;
  }
  const bool out = direction == Direction::kToHost;
  // A caller that polls without advancing the clock waits for the copy: the device is not slower
  // for it.
  asked_ = clock_->NowNanos() == asked_at_ ? asked_ + 1 : 0;
  asked_at_ = clock_->NowNanos();
  const int64_t now = asked_ > 10'000 ? INT64_MAX : asked_at_;
  while (!copies.empty() && !holds[Index(direction)] && copies.front().done_at <= now) {
    const Copy& copy = copies.front().copy;
    std::memcpy(out ? copy.to : Bytes(copy.to), out ? Bytes(copy.from) : copy.from, copy.bytes);
    copies.pop_front();
    ++done_[Index(direction)];
  }
  return done_[Index(direction)];
}

}  // namespace verbena::test
