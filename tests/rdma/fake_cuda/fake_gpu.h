// The state of the imitated driver: devices, their memory, and the work enqueued in their streams.
//
// **Thread safety**: everything under FakeGpus::mutex.
#ifndef VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_GPU_H_
#define VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_GPU_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/rdma/fake_cuda/fake_cuda.h"

namespace verbena::rdma::cuda {

inline constexpr int kFakeDevices = 2;

enum class WorkKind : uint8_t { kCopyToHost, kCopyToDevice, kOther };

struct Work {
  WorkKind kind;
  uint64_t due;  // the tick at which it is done
  std::function<void()> run;
};

// The driver's types, which its users only have pointers to.
struct ContextObject {
  int device;
};
struct StreamObject {
  int device;
  bool held = false;
  bool capturing = false;
  std::deque<Work> work = {};
};
struct EventState {
  bool pending = false;
  uint64_t recorded = 0;  // counts the records
  bool captured = false;
};
struct EventObject {
  int device;
  std::shared_ptr<EventState> state;
};
struct FunctionObject {
  FakeCudaKernel kernel;
  std::vector<size_t> sizes;
};
struct ModuleObject {
  int device;
};

// A range of addresses without access, and the bytes behind it.
struct Allocation {
  size_t bytes;
  size_t mapped;
  std::byte* shadow;
  int device;
  bool segment;  // of cuMemMap, not of cuMemAlloc
  bool managed;
  bool pooled = false;  // of cudaMallocAsync
  bool synced = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

struct FakeDevice {
  ContextObject context;
  StreamObject default_stream;
  size_t memory = size_t{1} << 30;
  size_t used = 0;
  uint64_t tick = 0;  // queries so far
  std::map<int, int> attributes;
  Result lost = kSuccess;
};

struct FakeGpus {
  static FakeGpus& Get();  // never destroyed

  FakeGpus();
  void Reset();

  // Null: there is none. `device` -1: of any.
  Address Allocate(int device, size_t bytes, int segments, bool managed);
  bool Free(Address address);
  // The one around `address`; null: none.
  std::map<Address, Allocation>::iterator Find(Address address);
  // Calls `visit(shadow, bytes)` for each piece of the range; false: it is not all allocated. One
  // of cuMemAlloc ends where it ends.
  bool Visit(Address address, size_t bytes, const std::function<void(std::byte*, size_t)>& visit);
  // Whether it is all in one page-locked range.
  bool Pinned(const void* data, size_t bytes) const;

  StreamObject* FindStream(Stream stream, int device);  // null: no live stream
  void Enqueue(StreamObject* stream, WorkKind kind, std::function<void()> run);
  // Does the work that is due; `all`: also the work that is not.
  void Run(int device, bool all);
  // Waits, with the lock given up, until the stream (null: all of the device) is empty.
  void Drain(std::unique_lock<std::recursive_mutex>* lock, int device, const StreamObject* only);
  bool Idle(int device, const StreamObject* only) const;

  std::recursive_mutex mutex;  // kernels call fake_cuda_read()
  std::condition_variable_any released;
  std::array<FakeDevice, kFakeDevices> devices;
  std::map<Address, Allocation> allocations;
  std::map<uintptr_t, size_t> registrations;
  std::set<StreamObject*> streams;
  std::set<EventObject*> events;
  std::set<ModuleObject*> modules;
  std::map<std::string, FunctionObject> kernels;
  std::map<std::string, std::deque<Result>> failures;
  bool hold_to_host = false;
  bool hold_to_device = false;
  int lag = 2;
  int captures = 0;
  size_t pin_limit = SIZE_MAX;
  size_t retained = 0;
  FakeCudaCounts counts = {};  // the parts "done" and "wrong"
};

// State of this thread.
extern thread_local std::vector<ContextObject*> fake_stack;
extern thread_local int fake_capture_mode;

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_GPU_H_
