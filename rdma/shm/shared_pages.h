// Memory that two processes map: pages owned by this process, and pages owned by a peer.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_RDMA_SHM_SHARED_PAGES_H_
#define VERBENA_RDMA_SHM_SHARED_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"
#include "rdma/shm/sigbus_guard.h"

namespace verbena::rdma {

// Zeroed pages in a sealed memfd of this process.
class OwnedPages {
 public:
  enum class PeerMay : uint8_t { kRead, kWrite };
  // kRead: sealed so that no other process can map it writable (F_SEAL_FUTURE_WRITE, fcntl(2)).
  static absl::StatusOr<std::unique_ptr<OwnedPages>> Create(size_t bytes, PeerMay peer_may,
                                                            const char* name);
  ~OwnedPages();
  OwnedPages(const OwnedPages&) = delete;
  OwnedPages& operator=(const OwnedPages&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  // Call after every peer has it, to save a descriptor per connection.
  void CloseDescriptor() { fd_.reset(); }

 private:
  OwnedPages(std::byte* data, size_t size, UniqueFd fd)
      : data_(data), size_(size), fd_(std::move(fd)) {}
  std::byte* data_;
  size_t size_;
  UniqueFd fd_;
};

// A mapping of a range of a peer's memfd. The peer may change its contents at any time.
class ForeignPages {
 public:
  // FAILED_PRECONDITION: the descriptor is not a memfd sealed SHRINK|GROW|SEAL, or is shorter than
  // offset + bytes. Such memory could be made to fault. `what` is its name in messages.
  static absl::StatusOr<std::unique_ptr<ForeignPages>> Map(int fd, uint64_t offset, uint64_t bytes,
                                                           bool writable, std::string_view what);
  ~ForeignPages();
  ForeignPages(const ForeignPages&) = delete;
  ForeignPages& operator=(const ForeignPages&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool poisoned() const { return guard_.poisoned(); }

 private:
  ForeignPages() = default;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  SigbusGuard guard_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SHARED_PAGES_H_
