// The calls of fake_cuda.h.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "tests/rdma/fake_cuda/fake_gpu.h"

namespace verbena::rdma {

using cuda::Address;
using cuda::FakeGpus;
using cuda::StreamObject;
using cuda::WorkKind;
using Lock = std::unique_lock<std::recursive_mutex>;

FakeCudaCounts fake_cuda_counts() {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  FakeCudaCounts counts = gpus.counts;
  counts.allocations = gpus.allocations.size();
  counts.registrations = gpus.registrations.size();
  counts.streams = gpus.streams.size();
  counts.events = gpus.events.size();
  counts.modules = gpus.modules.size();
  counts.contexts = gpus.retained;
  counts.mode_changed = cuda::fake_capture_mode != 0;
  counts.current_depth = cuda::fake_stack.size();
  return counts;
}

void fake_cuda_reset() {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.Reset();
}

void fake_cuda_hold_copies(bool to_host, bool hold) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  (to_host ? gpus.hold_to_host : gpus.hold_to_device) = hold;
  gpus.released.notify_all();
}

void fake_cuda_hold_stream(uintptr_t stream, bool hold) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const object = gpus.FindStream(reinterpret_cast<StreamObject*>(stream), 0);
  if (object != nullptr) object->held = hold;
  gpus.released.notify_all();
}

void fake_cuda_set_lag(int queries) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.lag = queries;
}

void fake_cuda_fail_next(const char* symbol, int code) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.failures[symbol].push_back(code);
}

void fake_cuda_lose(int device, int code) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.devices.at(static_cast<size_t>(device)).lost = code;
  for (StreamObject* stream : gpus.streams) {
    if (stream->device == device) stream->work.clear();
  }
  gpus.devices.at(static_cast<size_t>(device)).default_stream.work.clear();
  gpus.released.notify_all();
}

void fake_cuda_set_memory(int device, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.devices.at(static_cast<size_t>(device)).memory = bytes;
}

void fake_cuda_set_pin_limit(size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.pin_limit = bytes;
}

bool fake_cuda_read(const void* address, void* to, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* out = static_cast<std::byte*>(to);
  return gpus.Visit(reinterpret_cast<Address>(address), bytes, [&](std::byte* piece, size_t size) {
    std::memcpy(out, piece, size);
    out += size;
  });
}

bool fake_cuda_write(void* address, const void* from, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  const auto* in = static_cast<const std::byte*>(from);
  return gpus.Visit(reinterpret_cast<Address>(address), bytes, [&](std::byte* piece, size_t size) {
    std::memcpy(piece, in, size);
    in += size;
  });
}

void* fake_cuda_map_segments(int device, size_t bytes, int count) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  return reinterpret_cast<void*>(gpus.Allocate(device, bytes, count, false));
}

void* fake_cuda_allocate_in_pool(int device, size_t bytes, int count) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  const Address base = gpus.Allocate(device, bytes, count, false);
  for (auto it = gpus.allocations.find(base); count-- > 0; ++it) {
    it->second.segment = false;
    it->second.pooled = true;
  }
  return reinterpret_cast<void*>(base);
}

bool fake_cuda_synced(const void* address) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  const auto found = gpus.Find(reinterpret_cast<Address>(address));
  return found != gpus.allocations.end() && found->second.synced;
}

void* fake_cuda_allocate_managed(int device, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  return reinterpret_cast<void*>(gpus.Allocate(device, bytes, 1, true));
}

uintptr_t fake_cuda_make_stream(int device) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const stream = new StreamObject{device};
  gpus.streams.insert(stream);
  return reinterpret_cast<uintptr_t>(stream);
}

void fake_cuda_drop_stream(uintptr_t stream) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const object = reinterpret_cast<StreamObject*>(stream);
  if (gpus.streams.erase(object) > 0) delete object;
}

void fake_cuda_enqueue_fill(uintptr_t stream, void* address, int value, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const object = gpus.FindStream(reinterpret_cast<StreamObject*>(stream), 0);
  gpus.Enqueue(object, WorkKind::kOther, [&gpus, address, value, bytes] {
    (void)gpus.Visit(reinterpret_cast<Address>(address), bytes,
                     [value](std::byte* piece, size_t size) { std::memset(piece, value, size); });
  });
}

bool fake_cuda_enqueue(uintptr_t stream, void (*work)(void*), void* argument,
                       void (*release)(void*)) {
  const std::shared_ptr<void> held(argument, release);
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const object = gpus.FindStream(reinterpret_cast<StreamObject*>(stream), 0);
  if (object == nullptr) return false;
  gpus.Enqueue(object, WorkKind::kOther, [work, held] { work(held.get()); });
  return true;
}

void fake_cuda_capture(uintptr_t stream, bool on) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  auto* const object = gpus.FindStream(reinterpret_cast<StreamObject*>(stream), 0);
  if (object == nullptr || object->capturing == on) return;
  object->capturing = on;
  gpus.captures += on ? 1 : -1;
}

void fake_cuda_define_kernel(const char* name, FakeCudaKernel kernel, const size_t* sizes,
                             size_t count) {
  FakeGpus& gpus = FakeGpus::Get();
  const Lock lock(gpus.mutex);
  gpus.kernels[name] = {kernel, std::vector<size_t>(sizes, sizes + count)};
}

}  // namespace verbena::rdma
