#include "bench/gpu/staging.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace verbena::bench {
namespace {

using Clock = std::chrono::steady_clock;

int64_t Nanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// Bytes per second of `transfer`, done again and again.
absl::StatusOr<double> Rate(uint64_t bytes, int milliseconds,
                            const std::function<absl::Status()>& transfer) {
  uint64_t moved = 0;
  const int64_t began = Nanos();
  int64_t now = began;
  do {
    if (absl::Status status = transfer(); !status.ok()) return status;
    moved += bytes;
    now = Nanos();
  } while (now - began < int64_t{milliseconds} * 1'000'000);
  return static_cast<double>(moved) * 1e9 / static_cast<double>(now - began);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagingWorld>> StagingWorld::Make(
    std::shared_ptr<rdma::Device> device, uint64_t bytes) {
  std::unique_ptr<StagingWorld> world(new StagingWorld(device, bytes));
  auto on_device = rdma::MemoryBlock::AllocateOn(device, bytes);
  if (!on_device.ok()) return on_device.status();
  auto pinned = rdma::MemoryBlock::AllocatePinned(device, bytes, "verbena-bench");
  if (!pinned.ok()) return pinned.status();
  world->on_device_ = *std::move(on_device);
  world->pinned_ = *std::move(pinned);
  world->taken_.resize((bytes + kChunk - 1) / kChunk);
  return world;
}

// Until `until` chunks of the transfer are done.
absl::Status StagingWorld::Reap(Direction direction, uint64_t until) {
  absl::Status failed;
  while (done_ < until && failed.ok()) {
    staging_.RunOnce(Nanos(), [&](uint64_t cookie, const absl::Status& status) {
      staging_.buffers(direction)->Give(taken_[cookie], kChunk);
      ++done_;
      if (!status.ok()) failed = status;
    });
  }
  return failed;
}

absl::Status StagingWorld::OneChunked(Direction direction) {
  done_ = 0;
  for (uint64_t i = 0; i < taken_.size(); ++i) {
    client::Staging::Buffer buffer;
    for (;;) {
      absl::Status status = staging_.buffers(direction)->Take(kChunk, &buffer);
      if (!status.ok()) return status;
      if (buffer.data != nullptr) break;
      if (status = Reap(direction, done_ + 1); !status.ok()) return status;
    }
    taken_[i] = buffer.data;
    std::byte* const at = on_device_->data() + i * kChunk;
    const size_t size = std::min<uint64_t>(kChunk, bytes_ - i * kChunk);
    if (direction == Direction::kToHost) {
      staging_.CopyOut(at, buffer.data, size, i);
    } else {
      staging_.CopyIn(buffer.data, at, size, nullptr, i, Nanos());
    }
  }
  return Reap(direction, taken_.size());
}

absl::StatusOr<double> StagingWorld::Chunked(Direction direction, int milliseconds) {
  return Rate(bytes_, milliseconds, [&] { return OneChunked(direction); });
}

absl::StatusOr<double> StagingWorld::Whole(Direction direction, int milliseconds) {
  return Rate(bytes_, milliseconds, [&]() -> absl::Status {
    const bool out = direction == Direction::kToHost;
    const std::byte* const from = out ? on_device_->data() : pinned_->data();
    std::byte* const to = out ? pinned_->data() : on_device_->data();
    const auto number = device_->StartCopy(direction, from, to, bytes_);
    if (!number.ok()) return number.status();
    for (;;) {
      const auto done = device_->CopiesDone(direction);
      if (!done.ok()) return done.status();
      if (*done >= *number) return absl::OkStatus();
    }
  });
}

}  // namespace verbena::bench
