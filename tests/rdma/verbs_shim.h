// Limits and delays of other providers, laid over the device that there is: linked into a test
// program, it stands before libibverbs and before the device's work requests (ibv_context_ops), and
// passes on calls that it does not refuse.
//
// **Thread safety**: set while no endpoint is in use; on_registration is called from any thread.
#ifndef VERBENA_TESTS_RDMA_VERBS_SHIM_H_
#define VERBENA_TESTS_RDMA_VERBS_SHIM_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace verbena::rdma {

struct VerbsShim {
  uint64_t max_bind_bytes = 0;  // binds of more are refused with EOPNOTSUPP, as mlx5 does; 0: any
  // The errno of ibv_create_qp(); 0: it is passed on.
  std::function<int(const ibv_qp_init_attr& asked)> create_qp;
  // Before a registration is passed on.
  std::function<void(const void* address, size_t bytes)> on_registration;

  // ---- observations; of one thread at a time ----
  std::vector<uint64_t> bind_bytes;
  std::vector<unsigned> bind_access;
  std::vector<ibv_qp*> queue_pairs;  // made so far, also those that are gone

  std::vector<unsigned> registrations() {
    const std::lock_guard<std::mutex> lock(mutex);
    return registered;
  }
  std::mutex mutex;
  std::vector<unsigned> registered;  // access flags; under `mutex`
};

VerbsShim& verbs_shim();

// As it is without any limit, and without observations, at either end of a test.
struct ShimReset {
  ShimReset() { Reset(); }
  ~ShimReset() { Reset(); }
  static void Reset();
};

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_VERBS_SHIM_H_
