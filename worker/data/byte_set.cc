#include "worker/data/byte_set.h"

#include <algorithm>

namespace verbena::worker {
namespace {

class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::string bytes) : bytes_(std::move(bytes)) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status Fetch(absl::Span<const uint64_t> positions, uint64_t before,
                     std::vector<uint8_t>* out) override {
    out->assign(positions.size() * (before + 1), 0);
    uint8_t* to = out->data();
    for (const uint64_t position : positions) {
      const uint64_t n = std::min(position, before);
      std::copy_n(bytes_.data() + position - n, n + 1, to + before - n);
      to += before + 1;
    }
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

}  // namespace

ByteSet::ByteSet(std::string bytes) : source_(std::make_shared<MemoryBytes>(std::move(bytes))) {}

}  // namespace verbena::worker
