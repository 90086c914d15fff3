// A device whose memory the host cannot touch and whose copies take a time that the test sets.
//
// Its addresses are mapped without any access, so that code that reads or writes them by mistake
// crashes; the bytes are in another mapping. A copy moves them when it is done, not when it is
// started: code that does not wait for it sees the old bytes.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_FAKE_DEVICE_H_
#define VERBENA_TESTS_CLIENT_FAKE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rdma/base/clock.h"
#include "rdma/memory/device.h"

namespace verbena::test {

class FakeDevice final : public rdma::Device {
 public:
  explicit FakeDevice(const Clock* clock) : clock_(clock) {}
  ~FakeDevice() override;

  // ---- the script ----
  int64_t copy_nanos = 50'000;     // of each copy, one after the other in a direction
  bool holds[2] = {false, false};  // by direction: copies are not done while true
  std::map<uintptr_t, bool> busy;  // streams whose marks do not pass
  size_t pinnable = SIZE_MAX;      // bytes
  absl::Status lost;               // not OK: from now on
  absl::Status refuse_copy;   // not OK: of the next StartCopy(), once; StartCopies() fails, too
  absl::Status refuse_flush;  // not OK: of FlushPeerWrites()

  // ---- observed by the device ----
  size_t started[2] = {0, 0};
  size_t together[2] = {0, 0};         // the most by one StartCopies()
  size_t pinned = 0, most_pinned = 0;  // bytes
  size_t allocations() const { return memory_.size(); }
  size_t running(Direction direction) const { return copies_[Index(direction)].size(); }
  size_t marks = 0;  // alive
  size_t flushes = 0;
  // The bytes at an address of the device.
  std::byte* Bytes(const std::byte* data);

  int ordinal() const override { return 0; }
  std::string name() const override { return "fake:0"; }
  absl::StatusOr<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* data) override;
  absl::Status CheckMemory(const std::byte* data, size_t bytes) override;
  absl::Status Pin(std::byte* data, size_t bytes) override;
  void Unpin(std::byte* data) override;
  absl::Status FlushPeerWrites() override {
    ++flushes;
    return refuse_flush;
  }
  absl::StatusOr<std::unique_ptr<Mark>> MarkStream(uintptr_t stream) override;
  absl::StatusOr<uint64_t> StartCopy(Direction direction, const std::byte* from, std::byte* to,
                                     size_t bytes) override;
  absl::StatusOr<uint64_t> StartCopies(Direction direction, absl::Span<const Copy> copies) override;
  absl::StatusOr<uint64_t> CopiesDone(Direction direction) override;

 private:
  class FakeMark;
  struct Memory {
    size_t bytes;
    std::byte* shadow;
  };
  struct Started {
    Copy copy;
    int64_t done_at;
  };
  absl::Status Check(Direction direction, const Copy& copy);
  static size_t Index(Direction direction) { return static_cast<size_t>(direction); }
  bool IsPinned(const std::byte* data, size_t bytes) const;

  const Clock* clock_;
  std::map<const std::byte*, Memory> memory_;
  std::map<const std::byte*, size_t> pins_;
  std::deque<Started> copies_[2];
  uint64_t done_[2] = {0, 0};
  int64_t asked_at_ = 0;
  int asked_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_FAKE_DEVICE_H_
