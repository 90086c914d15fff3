#include "tests/rdma/fake_cuda/fake_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace verbena::rdma::cuda {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

thread_local std::vector<ContextObject*> fake_stack;
thread_local int fake_capture_mode = 0;

FakeGpus& FakeGpus::Get() {
  static auto* const gpus = new FakeGpus;
  return *gpus;
}

FakeGpus::FakeGpus() {
  Reset();
  for (int i = 0; i < kFakeDevices; ++i) {
    devices[static_cast<size_t>(i)].context.device = i;
    devices[static_cast<size_t>(i)].default_stream.device = i;
  }
}

void FakeGpus::Reset() {
  for (FakeDevice& device : devices) {
    device.memory = size_t{1} << 30;
    device.lost = kSuccess;
    device.attributes = {{kAttributeComputeCapabilityMajor, 9},
                         {kAttributeMultiprocessorCount, 4},
                         {kAttributeGpuDirectRdmaSupported, 1},
                         {kAttributeGpuDirectRdmaFlushOptions, kFlushOptionHost},
                         {kAttributeDmaBufSupported, 1}};
  }
  for (StreamObject* stream : streams) stream->held = false;
  failures.clear();
  kernels.clear();
  hold_to_host = hold_to_device = false;
  lag = 2;
  pin_limit = SIZE_MAX;
  counts = {};
  released.notify_all();
}

// ---- memory -------------------------------------------------------------------------------------

Address FakeGpus::Allocate(int device, size_t bytes, int segments, bool managed) {
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  const size_t whole = mapped * static_cast<size_t>(segments);
  FakeDevice& on = devices[static_cast<size_t>(device)];
  if (mapped < bytes || whole > on.memory - std::min(on.memory, on.used)) return 0;
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0) return 0;
  void* address = MAP_FAILED;
  void* shadow = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(whole)) == 0) {
    address = mmap(nullptr, whole, PROT_NONE, MAP_SHARED, fd, 0);
    shadow = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (address == MAP_FAILED || shadow == MAP_FAILED) std::abort();  // a test has too little memory
  on.used += whole;
  const auto base = reinterpret_cast<Address>(address);
  for (int i = 0; i < segments; ++i) {
    const size_t offset = mapped * static_cast<size_t>(i);
    allocations[base + offset] = {segments > 1 ? mapped : bytes,
                                  mapped,
                                  static_cast<std::byte*>(shadow) + offset,
                                  device,
                                  segments > 1,
                                  managed,
                                  false,
                                  false};
  }
  return base;
}

bool FakeGpus::Free(Address address) {
  const auto found = allocations.find(address);
  if (found == allocations.end()) return false;
  const Allocation& allocation = found->second;
  devices[static_cast<size_t>(allocation.device)].used -= allocation.mapped;
  munmap(allocation.shadow, allocation.mapped);
  munmap(reinterpret_cast<void*>(address), allocation.mapped);
  allocations.erase(found);
  return true;
}

std::map<Address, Allocation>::iterator FakeGpus::Find(Address address) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return allocations.end();
  --found;
  return address - found->first < found->second.bytes ? found : allocations.end();
}

bool FakeGpus::Visit(Address address, size_t bytes,
                     const std::function<void(std::byte*, size_t)>& visit) {
  size_t passed = 0;
  while (passed < bytes) {
    const auto found = Find(address + passed);
    if (found == allocations.end() || (passed > 0 && !found->second.segment)) return false;
    const Allocation& allocation = found->second;
    const size_t offset = address + passed - found->first;
    const size_t piece = std::min(allocation.bytes - offset, bytes - passed);
    visit(allocation.shadow + offset, piece);
    passed += piece;
  }
  return true;
}

bool FakeGpus::Pinned(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  auto found = registrations.upper_bound(begin);
  if (found == registrations.begin()) return false;
  --found;
  return begin - found->first < found->second && bytes <= found->second - (begin - found->first);
}

// ---- streams ------------------------------------------------------------------------------------

StreamObject* FakeGpus::FindStream(Stream stream, int device) {
  // cuda.h: CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2.
  if (reinterpret_cast<uintptr_t>(stream) <= 2) {
    return &devices[static_cast<size_t>(device)].default_stream;
  }
  return streams.count(stream) == 0 ? nullptr : stream;
}

void FakeGpus::Enqueue(StreamObject* stream, WorkKind kind, std::function<void()> run) {
  const uint64_t tick = devices[static_cast<size_t>(stream->device)].tick;
  stream->work.push_back({kind, tick + static_cast<uint64_t>(lag), std::move(run)});
}

void FakeGpus::Run(int device, bool all) {
  FakeDevice& on = devices[static_cast<size_t>(device)];
  const auto run = [&](StreamObject* stream) {
    while (!stream->work.empty() && !stream->held) {
      const Work& next = stream->work.front();
      if (!all && next.due > on.tick) break;
      if (hold_to_host && next.kind == WorkKind::kCopyToHost) break;
      if (hold_to_device && next.kind == WorkKind::kCopyToDevice) break;
      const std::function<void()> work = next.run;
      stream->work.pop_front();
      if (on.lost == kSuccess) work();
    }
  };
  run(&on.default_stream);
  for (StreamObject* stream : streams) {
    if (stream->device == device) run(stream);
  }
}

bool FakeGpus::Idle(int device, const StreamObject* only) const {
  if (only != nullptr) return only->work.empty();
  return std::all_of(streams.begin(), streams.end(), [device](const StreamObject* stream) {
    return stream->device != device || stream->work.empty();
  });
}

void FakeGpus::Drain(std::unique_lock<std::recursive_mutex>* lock, int device,
                     const StreamObject* only) {
  Run(device, true);
  while (!Idle(device, only)) {
    released.wait(*lock);
    Run(device, true);
  }
}

}  // namespace verbena::rdma::cuda
