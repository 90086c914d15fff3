// A GPU as the data plane sees it: memory that the host cannot touch, and copies between it and
// page-locked host memory that go on while the host does something else.
//
// Copies are counted, each direction by itself, so that who started one needs no object for it: it
// is done once as many are. The device has a queue of its own for each direction; what a caller has
// enqueued elsewhere, such as the kernels that write a gradient, is waited for by a mark, on the
// host: a copy is started only when it can run, so none blocks those behind it, and nothing is ever
// enqueued in a caller's stream but the mark.
//
// **Thread safety**: thread-safe. Allocate(), Free(), Pin(), Unpin() and ExportDmaBuf() are for
// set-up and may wait; of the others only FlushPeerWrites() waits for the device.
//
// Invariants:
//  1. Copies of one direction are done in the order in which they were started.
//  2. A device that is lost (an error that no later call recovers from) stays lost: every call says
//     so, and none of its copies touches memory any more.
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

// How a transport comes to memory of a device.
enum class DeviceRoute : uint8_t {
  kStaging,     // it does not: by copies to and from pinned host memory
  kDmaBuf,      // itself (GPUDirect RDMA), through a dma-buf that the device's driver exports
  kPeerMemory,  // itself, through a kernel module (nvidia_peermem) that knows the device's
                // addresses
};
// "staging", "dma-buf", "peer memory".
std::string_view DeviceRouteName(DeviceRoute route);

struct DevicePath {
  DeviceRoute route = DeviceRoute::kStaging;
  std::string reason;  // why this one, and no better one

  bool direct() const { return route != DeviceRoute::kStaging; }
};

class Device {
 public:
  enum class Direction : uint8_t { kToHost, kToDevice };

  // The end of what had been enqueued in a stream when the mark was made. May outlive the device's
  // last user, not be used by two threads at once.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Whether all of it is done. UNAVAILABLE: the device is lost.
    virtual absl::StatusOr<bool> Passed() = 0;
  };

  virtual ~Device() = default;

  virtual int ordinal() const = 0;       // the driver's number
  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // ---- memory -----------------------------------------------------------------------------------
  // At least 256-byte aligned; not zeroed. RESOURCE_EXHAUSTED says how much the device has left.
  virtual absl::StatusOr<std::byte*> Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* data) = 0;
  // INVALID_ARGUMENT: [data, data + bytes) is not all memory of one allocation of this device; says
  // what it is instead.
  virtual absl::Status CheckMemory(const std::byte* data, size_t bytes) = 0;
  // Page-locks host memory of whole pages, which all devices may then copy from and to. Undone by
  // Unpin() before it is unmapped. RESOURCE_EXHAUSTED: the system refused; says what to do.
  virtual absl::Status Pin(std::byte* data, size_t bytes) = 0;
  virtual void Unpin(std::byte* data) = 0;

  // ---- access by other devices ------------------------------------------------------------------
  // What devices on the same bus may do with its memory, as its driver says.
  struct PeerAccess {
    bool dma_buf = false;      // ExportDmaBuf() works, for most memory
    bool peer_memory = false;  // a kernel module may hand its addresses to them
    std::string missing;       // why not both; empty: nothing is missing
    int numa_node = -1;        // that the device is near to; -1: unknown
  };
  virtual PeerAccess Access() const { return {false, false, "it offers no such access", -1}; }
  // Memory as a file that other devices' drivers attach to (dma-buf).
  struct DmaBuf {
    UniqueFd fd;
    const std::byte* base = nullptr;  // where in this device's addresses it begins; whole pages
    size_t bytes = 0;
  };
  // The allocations that [data, data + bytes) lies in, as one. UNIMPLEMENTED: not this memory, or
  // none; RESOURCE_EXHAUSTED: no more file descriptors.
  virtual absl::StatusOr<DmaBuf> ExportDmaBuf(const std::byte* /*data*/, size_t /*bytes*/) {
    return absl::UnimplementedError(name() + " exports no memory");
  }
  // What other devices have written to its memory is seen by what is started on it afterwards.
  // Waits for the device, a few microseconds at most, unless it sees them in order by itself.
  virtual absl::Status FlushPeerWrites() { return absl::OkStatus(); }

  // ---- copies -----------------------------------------------------------------------------------
  // `stream` as the driver's handle (CUstream, cudaStream_t); 0: the default stream.
  virtual absl::StatusOr<std::unique_ptr<Mark>> MarkStream(uintptr_t stream) = 0;
  // Starts a copy between memory of the device and pinned host memory; both stay as they are until
  // it is done. Returns its number: it is done once CopiesDone() of its direction has reached that.
  // INVALID_ARGUMENT: the driver says that one of the two is not there (any more).
  virtual absl::StatusOr<uint64_t> StartCopy(Direction direction, const std::byte* from,
                                             std::byte* to, size_t bytes) = 0;
  struct Copy {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  // Starts several of them together, which costs the device much less than one by one: at 256 KiB
  // each it is idle for a third of the time between copies that were started by themselves. They
  // are done together. Returns the number of the last; those before it have the numbers before.
  // An error: none has a number; those that the device has begun are done before any that is
  // started later, so that they may all be started anew, one by one, which tells whose memory it
  // is.
  virtual absl::StatusOr<uint64_t> StartCopies(Direction direction,
                                               absl::Span<const Copy> copies) = 0;
  // Of this direction, since the device was opened. UNAVAILABLE: the device is lost.
  virtual absl::StatusOr<uint64_t> CopiesDone(Direction direction) = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_DEVICE_H_
