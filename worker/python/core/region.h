// Regions of a client: memory that the library allocated or that a Python object owns.
//
// A registered region lives as long as the storage that it describes: an array that owns its
// memory, or a tensor's storage. Operations in flight hold the region and a reference to the
// storage, so neither ends before the library has released the memory.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_REGION_H_
#define VERBENA_WORKER_PYTHON_CORE_REGION_H_

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/python/core/buffer.h"
#include "worker/python/core/status.h"

namespace verbena::python {

// The library's client. Regions and operations may outlive it.
struct LibraryClient {
  verbena_client* handle = nullptr;
  LibraryClient() = default;
  LibraryClient(const LibraryClient&) = delete;
  LibraryClient& operator=(const LibraryClient&) = delete;
  // Without the GIL: closing takes up to a second.
  ~LibraryClient();
};

// A region of the library.
class Region {
 public:
  // Raises the library's error.
  static std::shared_ptr<Region> Allocate(const std::shared_ptr<LibraryClient>& client,
                                          size_t bytes);
  static std::shared_ptr<Region> Register(const std::shared_ptr<LibraryClient>& client,
                                          const Extent& extent);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  // Without the GIL: the library waits until nothing accesses the memory.
  ~Region();

  verbena_region* handle() const { return handle_; }
  const Extent& extent() const { return extent_; }
  bool allocated() const { return allocated_; }
  // Held while the stream is set and an operation starts with it.
  std::mutex& stream_mutex() { return stream_mutex_; }

 private:
  Region(std::shared_ptr<LibraryClient> client, verbena_region* handle, const Extent& extent,
         bool allocated);

  const std::shared_ptr<LibraryClient> client_;
  verbena_region* const handle_;
  const Extent extent_;
  const bool allocated_;
  std::mutex stream_mutex_;
};

// An argument's place in a region.
struct Placed {
  std::shared_ptr<Region> region;
  uint64_t offset = 0;  // bytes from the region's start
};

// The regions of a client, by the storage of their memory.
class RegionCache : public std::enable_shared_from_this<RegionCache> {
 public:
  explicit RegionCache(std::shared_ptr<LibraryClient> client) : client_(std::move(client)) {}

  std::shared_ptr<Region> Allocate(size_t bytes);
  // The region that has the argument's memory; registers its storage if there is none.
  Placed Find(const Buffer& buffer);
  // Frees all regions; arrays of allocated ones keep theirs.
  void Clear();
  size_t registered() const { return registered_.size(); }

 private:
  struct Entry {
    py::object alive;  // a weak reference, or a StorageWatch
    std::shared_ptr<Region> region;
  };
  Placed FindRegistered(const Buffer& buffer);
  // Frees the regions of tensors' storages that ended.
  void Sweep();
  void Forget(uintptr_t identity, const py::handle& alive);
  // An object that shows whether the storage lives; None: it cannot be known.
  py::object Watch(const Storage& storage);

  const std::shared_ptr<LibraryClient> client_;
  std::map<std::byte*, std::weak_ptr<Region>> allocated_;  // by first byte
  std::unordered_map<uintptr_t, Entry> registered_;        // by identity of the storage
  size_t unswept_ = 0, unswept_bytes_ = 0;                 // registered since the last Sweep()
};

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_REGION_H_
