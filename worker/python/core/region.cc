#include "worker/python/core/region.h"

#include <algorithm>

namespace verbena::python {
namespace {

// Registrations between two searches for tensors' storages that ended: their memory may be locked.
constexpr size_t kMostUnswept = 64;
constexpr size_t kMostUnsweptBytes = 16 << 20;

}  // namespace

LibraryClient::~LibraryClient() {
  const ReleasedGil released;
  verbena_client_free(handle);
}

// ---- Region -------------------------------------------------------------------------------------

Region::Region(std::shared_ptr<LibraryClient> client, verbena_region* handle, const Extent& extent,
               bool allocated)
    : client_(std::move(client)), handle_(handle), extent_(extent), allocated_(allocated) {}

Region::~Region() {
  const ReleasedGil released;
  verbena_region_free(handle_);
}

std::shared_ptr<Region> Region::Allocate(const std::shared_ptr<LibraryClient>& client,
                                         size_t bytes) {
  verbena_region* handle = nullptr;
  Check(WithoutGil([&] {
    return verbena_region_allocate(client->handle, bytes, VERBENA_MEMORY_HOST, 0, &handle);
  }));
  const Extent extent = {static_cast<std::byte*>(verbena_region_data(handle)), bytes,
                         VERBENA_MEMORY_HOST, 0};
  return std::shared_ptr<Region>(new Region(client, handle, extent, true));
}

std::shared_ptr<Region> Region::Register(const std::shared_ptr<LibraryClient>& client,
                                         const Extent& extent) {
  verbena_region* handle = nullptr;
  Check(WithoutGil([&] {
    return verbena_region_register(client->handle, extent.data, extent.bytes, extent.kind,
                                   extent.device, &handle);
  }));
  return std::shared_ptr<Region>(new Region(client, handle, extent, false));
}

// ---- RegionCache --------------------------------------------------------------------------------

std::shared_ptr<Region> RegionCache::Allocate(size_t bytes) {
  auto region = Region::Allocate(client_, bytes);
  std::erase_if(allocated_, [](const auto& entry) { return entry.second.expired(); });
  allocated_[region->extent().data] = region;
  return region;
}

Placed RegionCache::Find(const Buffer& buffer) {
  // Whichever object shows the memory: an array of numpy.frombuffer(), a tensor made of it.
  auto after = allocated_.upper_bound(buffer.extent.data);
  if (after != allocated_.begin()) {
    auto region = std::prev(after)->second.lock();
    if (region != nullptr && region->extent().Contains(buffer.extent)) {
      return {region, static_cast<uint64_t>(buffer.extent.data - region->extent().data)};
    }
  }
  return FindRegistered(buffer);
}

Placed RegionCache::FindRegistered(const Buffer& buffer) {
  const Storage& storage = buffer.storage;
  const auto found = registered_.find(storage.identity);
  if (found != registered_.end()) {
    const Extent& known = found->second.region->extent();
    // Other extents: another storage at the same address, or one that was resized.
    if (known.data == storage.extent.data && known.bytes == storage.extent.bytes &&
        known.Contains(buffer.extent)) {
      return {found->second.region, static_cast<uint64_t>(buffer.extent.data - known.data)};
    }
    const Entry last = std::move(found->second);  // freed after it has left the map
    registered_.erase(found);
  }
  if (storage.watched == Storage::Watched::kNever) {
    return {Region::Register(client_, buffer.extent), 0};
  }
  unswept_bytes_ += storage.extent.bytes;
  if (++unswept_ > kMostUnswept || unswept_bytes_ > kMostUnsweptBytes) Sweep();
  auto region = Region::Register(client_, storage.extent);
  // Registering lets other threads run, of which one may have registered the same storage.
  registered_[storage.identity] = {Watch(storage), region};
  return {region, static_cast<uint64_t>(buffer.extent.data - storage.extent.data)};
}

py::object RegionCache::Watch(const Storage& storage) {
  if (storage.watched == Storage::Watched::kTorchStorage) {
    return py::module_::import("verbena._tensors").attr("StorageWatch")(storage.object);
  }
  const std::weak_ptr<RegionCache> cache = weak_from_this();
  const uintptr_t identity = storage.identity;
  const py::cpp_function ended([cache, identity](const py::handle& reference) {
    const auto self = cache.lock();
    if (self != nullptr) self->Forget(identity, reference);
  });
  return py::weakref(storage.object, ended);
}

void RegionCache::Sweep() {
  unswept_ = unswept_bytes_ = 0;
  // Asking a watch runs Python code, which lets other threads change the map.
  std::vector<std::pair<uintptr_t, py::object>> watches;
  for (const auto& [identity, entry] : registered_) {
    if (!PyWeakref_Check(entry.alive.ptr())) watches.emplace_back(identity, entry.alive);
  }
  for (const auto& [identity, watch] : watches) {
    if (watch.attr("ended")().cast<bool>()) Forget(identity, watch);
  }
}

void RegionCache::Forget(uintptr_t identity, const py::handle& alive) {
  const auto entry = registered_.find(identity);
  // Another storage may have the identity by now.
  if (entry == registered_.end() || !entry->second.alive.is(alive)) return;
  const Entry last = std::move(entry->second);  // freed after it has left the map
  registered_.erase(entry);
}

void RegionCache::Clear() {
  const auto registered = std::move(registered_);
  registered_.clear();
}

}  // namespace verbena::python
