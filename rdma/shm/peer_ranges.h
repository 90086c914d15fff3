// The peer's memory that a shm connection may write: the ranges that the peer has exposed, mapped
// here.
//
// **Thread safety**: the endpoint's thread.
#ifndef VERBENA_RDMA_SHM_PEER_RANGES_H_
#define VERBENA_RDMA_SHM_PEER_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "rdma/base/unique_fd.h"
#include "rdma/shm/shared_pages.h"
#include "rdma/shm/shm_socket.h"
#include "rdma/transport.h"

namespace verbena::rdma {

class PeerRanges {
 public:
  struct Range {
    uint64_t address;
    uint64_t bytes;
    std::shared_ptr<ForeignPages> pages;
  };
  // Per connection, on both sides, so that a peer cannot exhaust this process's mappings.
  static constexpr size_t kMost = 4096;

  // Null: those bytes are not in a range of that key.
  Range* Find(const RemoteMemory& remote, uint64_t bytes) {
    Range* range = remote.key == last_key_ ? last_ : nullptr;
    if (range == nullptr) {
      const auto it = ranges_.find(remote.key);
      if (it == ranges_.end()) return nullptr;
      range = it->second.get();
      last_key_ = remote.key;
      last_ = range;
    }
    const uint64_t offset = remote.address - range->address;
    const bool inside = remote.address >= range->address && offset <= range->bytes &&
                        bytes <= range->bytes - offset;
    return inside ? range : nullptr;
  }
  bool contains(uint64_t key) const { return ranges_.contains(key); }
  // Maps the range of a kExpose. INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the peer breaks the rules.
  absl::Status Map(const ShmMessage& message, std::vector<UniqueFd>* fds);
  void Unmap(uint64_t key);
  // Unmaps all ranges that are not borrowed.
  void UnmapAll();
  // Whether memory is still mapped because it was borrowed at UnmapAll().
  bool AnyBorrowed();
  // The same as of the last call of AnyBorrowed() or UnmapAll().
  bool borrowed() const { return !borrowed_.empty(); }

 private:
  absl::flat_hash_map<uint64_t, std::unique_ptr<Range>> ranges_;
  uint64_t last_key_ = 0;  // key of last_
  Range* last_ = nullptr;
  std::vector<std::weak_ptr<ForeignPages>> borrowed_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_PEER_RANGES_H_
