#include "tests/rdma/fake_gpu_direct.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <utility>

#include "tests/rdma/fake_cuda/fake_cuda.h"

namespace verbena::rdma {
namespace {

// The library's own.
template <typename Function>
Function* Real(const char* name) {
  static void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

ibv_mr* Refused(int error) {
  errno = error;
  return nullptr;
}

}  // namespace

FakeKernel& fake_kernel() {
  static FakeKernel kernel;
  return kernel;
}

}  // namespace verbena::rdma

using verbena::rdma::fake_kernel;
using verbena::rdma::FakeKernel;

extern "C" {

__attribute__((visibility("default"))) ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset,
                                                                 size_t length, uint64_t iova,
                                                                 int fd, int access) {
  FakeKernel& kernel = fake_kernel();
  if (kernel.dma_bufs == FakeKernel::DmaBufs::kReal) {
    return verbena::rdma::Real<decltype(ibv_reg_dmabuf_mr)>("ibv_reg_dmabuf_mr")(pd, offset, length,
                                                                                 iova, fd, access);
  }
  if (kernel.dma_bufs == FakeKernel::DmaBufs::kNotTaken) return verbena::rdma::Refused(EOPNOTSUPP);
  uint64_t base = 0;
  uint64_t bytes = 0;
  if (!verbena::rdma::fake_cuda_dma_buf(fd, &base, &bytes)) return verbena::rdma::Refused(EBADF);
  if (kernel.refuse != 0) return verbena::rdma::Refused(std::exchange(kernel.refuse, 0));
  // The checks of the kernel (uverbs_std_types_mr.c).
  constexpr int kAllowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                           IBV_ACCESS_RELAXED_ORDERING;
  if ((access & ~kAllowed) != 0 || offset % 4096 != iova % 4096 || offset > bytes ||
      length > bytes - offset) {
    return verbena::rdma::Refused(EINVAL);
  }
  void* const behind =
      verbena::rdma::fake_cuda_bytes(reinterpret_cast<const void*>(base + offset), length);
  if (behind == nullptr) return verbena::rdma::Refused(EFAULT);
  ++kernel.dma_buf_regions;
  return verbena::rdma::Real<decltype(ibv_reg_mr_iova2)>("ibv_reg_mr_iova2")(pd, behind, length,
                                                                             iova, access);
}

__attribute__((visibility("default"))) ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address,
                                                                size_t length, uint64_t iova,
                                                                unsigned int access) {
  FakeKernel& kernel = fake_kernel();
  auto* const real = verbena::rdma::Real<decltype(ibv_reg_mr_iova2)>("ibv_reg_mr_iova2");
  void* const behind = verbena::rdma::fake_cuda_bytes(address, length);
  if (behind == nullptr || !kernel.peer_memory) return real(pd, address, length, iova, access);
  if (kernel.refuse != 0) return verbena::rdma::Refused(std::exchange(kernel.refuse, 0));
  ++kernel.peer_regions;
  return real(pd, behind, length, iova, access);
}

}  // extern "C"
