// Control of the imitation of a CUDA driver (libfake_cuda.so) that tests load in place of NVIDIA's:
// two GPUs whose memory the host cannot touch (a page without any access), so that a hidden access
// ends the test.
//
// Work in a stream is done only at queries: at the second query of any event of that device after
// it was enqueued, so that nothing is ever done at once. Work that holds a stream back here holds
// all behind it.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CUDA_H_
#define VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace verbena::rdma {

// Objects that exist, and errors that a real driver would not report.
struct FakeCudaCounts {
  // To be given back.
  size_t allocations;
  size_t registrations;
  size_t streams;
  size_t events;
  size_t modules;
  size_t contexts;       // how often they are retained
  size_t current_depth;  // of this thread's stack of contexts
  bool mode_changed;     // this thread's mode about captures has changed
  // Done.
  size_t copies;
  size_t batches;  // of copies, started by one call
  size_t exports;  // of dma-bufs
  size_t flushes;  // of other devices' writes
  // Wrong.
  size_t unpinned_copies;  // of host memory that was not page-locked: they block
  size_t stale_copies;     // of host memory that was no longer page-locked when their turn came
  size_t stray_copies;     // in batches, of memory that no device has: a real driver crashes
  size_t broken_captures;  // calls that end the capture of a graph by another thread
};
FAKE_CUDA_EXPORT FakeCudaCounts fake_cuda_counts();
// Everything as at the start, except for objects that were not given back.
FAKE_CUDA_EXPORT void fake_cuda_reset();

// ---- time ---------------------------------------------------------------------------------------
// Copies to the host (or to a device) wait, and all behind them, until they are let go.
FAKE_CUDA_EXPORT void fake_cuda_hold_copies(bool to_host, bool hold);
FAKE_CUDA_EXPORT void fake_cuda_hold_stream(uintptr_t stream, bool hold);
// At which query after it was enqueued work is done; 2 at the start, 1: the first.
FAKE_CUDA_EXPORT void fake_cuda_set_lag(int queries);

// ---- failures -----------------------------------------------------------------------------------
// The next call of this symbol ("cuMemAlloc_v2") fails with `code`; several are queued.
FAKE_CUDA_EXPORT void fake_cuda_fail_next(const char* symbol, int code);
// All calls for the device fail with `code`, and nothing enqueued is done any more.
FAKE_CUDA_EXPORT void fake_cuda_lose(int device, int code);
FAKE_CUDA_EXPORT void fake_cuda_set_memory(int device, size_t bytes);  // 1 GiB at the start
FAKE_CUDA_EXPORT void fake_cuda_set_pin_limit(size_t bytes);           // of one range; none

// ---- access by other devices --------------------------------------------------------------------
// cuDeviceGetAttribute(); at the start dma-bufs and GPUDirect RDMA are supported, and writes of
// others must be flushed.
FAKE_CUDA_EXPORT void fake_cuda_set_attribute(int device, int attribute, int value);
// A NIC driver's view of an exported descriptor: the start and the number of bytes. False: it is no
// such descriptor.
FAKE_CUDA_EXPORT bool fake_cuda_dma_buf(int fd, uint64_t* base, uint64_t* bytes);
// The bytes of the range as the host can map them; null: it is not all one allocation.
FAKE_CUDA_EXPORT void* fake_cuda_bytes(const void* address, size_t bytes);

// ---- memory of a device, as a test may touch it -------------------------------------------------
// False: the range is not all allocated.
FAKE_CUDA_EXPORT bool fake_cuda_read(const void* address, void* to, size_t bytes);
FAKE_CUDA_EXPORT bool fake_cuda_write(void* address, const void* from, size_t bytes);
// As cuMemMap would: `count` ranges of `bytes` (whole pages) each in a row, freed one by one with
// cuMemFree.
FAKE_CUDA_EXPORT void* fake_cuda_map_segments(int device, size_t bytes, int count);
FAKE_CUDA_EXPORT void* fake_cuda_allocate_managed(int device, size_t bytes);
// As cudaMallocAsync would: `count` allocations of `bytes` (whole pages) each, one behind the
// other.
FAKE_CUDA_EXPORT void* fake_cuda_allocate_in_pool(int device, size_t bytes, int count);
// Whether the allocation around it has CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
FAKE_CUDA_EXPORT bool fake_cuda_synced(const void* address);

// ---- work of the caller's own CUDA code ---------------------------------------------------------
FAKE_CUDA_EXPORT uintptr_t fake_cuda_make_stream(int device);
FAKE_CUDA_EXPORT void fake_cuda_drop_stream(uintptr_t stream);
// As a kernel would: fills memory when its turn comes.
FAKE_CUDA_EXPORT void fake_cuda_enqueue_fill(uintptr_t stream, void* address, int value,
                                             size_t bytes);
// As a library's kernels would: runs `work` when its turn comes, and then, or when the device is
// lost, `release`. False, and released: there is no such stream.
FAKE_CUDA_EXPORT bool fake_cuda_enqueue(uintptr_t stream, void (*work)(void*), void* argument,
                                        void (*release)(void*));
// The stream is captured into a graph, by another thread.
FAKE_CUDA_EXPORT void fake_cuda_capture(uintptr_t stream, bool on);

// The work of a module's function of this name: called with copies of the launch's parameters,
// whose sizes are given, when its turn comes. It reaches device memory by fake_cuda_read() and
// _write().
using FakeCudaKernel = void (*)(unsigned blocks, unsigned threads, void** parameters);
FAKE_CUDA_EXPORT void fake_cuda_define_kernel(const char* name, FakeCudaKernel kernel,
                                              const size_t* sizes, size_t count);

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CUDA_H_
