#include "rdma/shm/peer_ranges.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {

absl::Status PeerRanges::Map(const ShmMessage& message, std::vector<UniqueFd>* fds) {
  if (fds->size() != 1) return absl::InvalidArgumentError("shm: exposed memory without a memfd");
  if (ranges_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shm: the peer exposes more than ", kMost, " ranges"));
  }
  if (message.address + message.bytes < message.address || contains(message.key)) {
    return absl::InvalidArgumentError("shm: the peer exposes a range that cannot be");
  }
  auto pages = ForeignPages::Map(fds->front().get(), message.offset, message.bytes,
                                 /*writable=*/true, "exposed memory");
  if (!pages.ok()) return pages.status();
  ranges_[message.key] =
      std::make_unique<Range>(Range{message.address, message.bytes, std::move(*pages)});
  return absl::OkStatus();
}

void PeerRanges::Unmap(uint64_t key) {
  last_ = nullptr;
  last_key_ = 0;
  ranges_.erase(key);
}

void PeerRanges::UnmapAll() {
  last_ = nullptr;
  for (const auto& range : ranges_) borrowed_.push_back(range.second->pages);
  ranges_.clear();
}

bool PeerRanges::AnyBorrowed() {
  std::erase_if(borrowed_, [](const auto& pages) { return pages.expired(); });
  return !borrowed_.empty();
}

}  // namespace verbena::rdma
