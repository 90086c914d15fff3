// GPU interface of the data plane: memory that the CPU cannot access, and asynchronous copies
// between it and page-locked host memory.
//
// Copies are counted per direction, so the starter of a copy needs no object for it: a copy is done
// when the count reaches its number. The device has one queue per direction. Work that a caller
// enqueued elsewhere, such as the kernels that write a gradient, is awaited with a mark, on the
// host. A copy is started only when it can run, so no copy blocks later ones. Only marks are
// enqueued in a caller's stream.
//
// **Thread safety**: thread-safe. Allocate(), Free(), Pin(), Unpin() and ExportDmaBuf() are for
// set-up and may block; of the others only FlushPeerWrites() waits for the device.
//
// Invariants:
//  1. Copies of one direction complete in the order in which they were started.
//  2. A lost device (an error that no later call recovers from) stays lost: every call returns the
//     error, and none of its copies touches memory any more.
#ifndef VERBENA_RDMA_MEMORY_DEVICE_H_
#define VERBENA_RDMA_MEMORY_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/base/unique_fd.h"

namespace verbena::rdma {

// How a transport accesses a device's memory.
enum class DeviceRoute : uint8_t {
  kStaging,     // no direct access: copies to and from pinned host memory
  kDmaBuf,      // direct (GPUDirect RDMA), through a dma-buf exported by the GPU's driver
  kPeerMemory,  // direct, through a kernel module (nvidia_peermem) that knows the GPU's addresses
};
// "staging", "dma-buf", "peer memory".
std::string_view DeviceRouteName(DeviceRoute route);

struct DevicePath {
  DeviceRoute route = DeviceRoute::kStaging;
  std::string reason;  // why this route was selected and no better one

  bool direct() const { return route != DeviceRoute::kStaging; }
};

class Device {
 public:
  enum class Direction : uint8_t { kToHost, kToDevice };

  // The end of the work enqueued in a stream when the mark was made. It may outlive the device's
  // last user. Not for concurrent use.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Whether all of that work is done. UNAVAILABLE: the device is lost.
    virtual absl::StatusOr<bool> Passed() = 0;
  };

  virtual ~Device() = default;

  virtual int ordinal() const = 0;       // the driver's number
  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // ---- memory -----------------------------------------------------------------------------------
  // At least 256-byte aligned; not zeroed. RESOURCE_EXHAUSTED: the message has the free memory.
  virtual absl::StatusOr<std::byte*> Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* data) = 0;
  // INVALID_ARGUMENT: [data, data + bytes) is not entirely memory of one allocation of this device.
  // The message describes the memory.
  virtual absl::Status CheckMemory(const std::byte* data, size_t bytes) = 0;
  // Page-locks whole pages of host memory, so that all devices can copy from and to it. Call
  // Unpin() before unmapping it. RESOURCE_EXHAUSTED: the system refused; the message has the fix.
  virtual absl::Status Pin(std::byte* data, size_t bytes) = 0;
  virtual void Unpin(std::byte* data) = 0;

  // ---- access by other devices ------------------------------------------------------------------
  // Access of other devices on the bus to this device's memory, as reported by its driver.
  struct PeerAccess {
    bool dma_buf = false;      // ExportDmaBuf() works for most memory
    bool peer_memory = false;  // a kernel module can give its addresses to other devices
    std::string missing;       // reason for missing access; empty: all access is available
    int numa_node = -1;        // nearest NUMA node; -1: unknown
  };
  virtual PeerAccess Access() const { return {false, false, "it offers no such access", -1}; }
  // Memory as a file to which other devices' drivers attach (dma-buf).
  struct DmaBuf {
    UniqueFd fd;
    const std::byte* base = nullptr;  // its first address on this device; whole pages
    size_t bytes = 0;
  };
  // Exports the allocations that contain [data, data + bytes) as one file. UNIMPLEMENTED: not for
  // this memory, or not at all; RESOURCE_EXHAUSTED: no more file descriptors.
  virtual absl::StatusOr<DmaBuf> ExportDmaBuf(const std::byte* /*data*/, size_t /*bytes*/) {
    return absl::UnimplementedError(name() + " exports no memory");
  }
  // Makes other devices' earlier writes to its memory visible to work started afterwards. Waits for
  // the device, at most a few microseconds, unless the device orders them itself.
  virtual absl::Status FlushPeerWrites() { return absl::OkStatus(); }

  // ---- copies -----------------------------------------------------------------------------------
  // `stream` is the driver's handle (CUstream, cudaStream_t); 0: the default stream.
  virtual absl::StatusOr<std::unique_ptr<Mark>> MarkStream(uintptr_t stream) = 0;
  // Starts a copy between memory of the device and pinned host memory. Both must stay unchanged
  // until it is done. Returns its number: it is done when CopiesDone() of its direction reaches the
  // number. INVALID_ARGUMENT: according to the driver one of the two is not valid memory (any
  // more).
  virtual absl::StatusOr<uint64_t> StartCopy(Direction direction, const std::byte* from,
                                             std::byte* to, size_t bytes) = 0;
  struct Copy {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  // Starts several copies together, which is much cheaper: at 256 KiB each, the device is idle a
  // third of the time between copies that are started individually. They complete together. Returns
  // the number of the last; the others have the preceding numbers. On an error none has a number.
  // Copies that the device has begun complete before any that is started later. So the caller may
  // start all of them again one by one, which finds the invalid memory.
  virtual absl::StatusOr<uint64_t> StartCopies(Direction direction,
                                               absl::Span<const Copy> copies) = 0;
  // Number of completed copies of this direction since the device was opened. UNAVAILABLE: the
  // device is lost.
  virtual absl::StatusOr<uint64_t> CopiesDone(Direction direction) = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_DEVICE_H_
