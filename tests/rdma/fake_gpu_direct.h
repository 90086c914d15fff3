// The kernel's side of GPUDirect RDMA, imitated under libibverbs: memory of the imitated GPUs
// (fake_cuda/) is registered with a device as the host memory behind it. Linked into a test, it
// takes the place of ibv_reg_dmabuf_mr() and ibv_reg_mr_iova2() there; all else is the real library
// and device.
//
// **Thread safety**: thread-safe, but for the setting.
#ifndef VERBENA_TESTS_RDMA_FAKE_GPU_DIRECT_H_
#define VERBENA_TESTS_RDMA_FAKE_GPU_DIRECT_H_

#include <cstdint>

namespace verbena::rdma {

struct FakeKernel {
  enum class DmaBufs : uint8_t { kReal, kTaken, kNotTaken };
  DmaBufs dma_bufs = DmaBufs::kTaken;  // kReal: as the device's own driver does
  bool peer_memory = false;            // the effect of a loaded nvidia_peermem
  int refuse = 0;                      // errno of the next registration of a GPU's memory; 0: none
  // Counters.
  int dma_buf_regions = 0;
  int peer_regions = 0;
};
FakeKernel& fake_kernel();

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FAKE_GPU_DIRECT_H_
