// Tools of imitated kernels: their parameters, and copies of the imitated devices' memory. An
// access to memory that does not exist loses the devices, as on a GPU (CUDA_ERROR_ILLEGAL_ADDRESS).
//
// **Thread safety**: functions without state.
#ifndef VERBENA_TESTS_GPU_FAKE_MEMORY_H_
#define VERBENA_TESTS_GPU_FAKE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/rdma/fake_cuda/fake_cuda.h"

namespace verbena::worker {

template <typename T>
T Parameter(void** parameters, size_t i) {
  return *static_cast<T*>(parameters[i]);
}

inline void LoseAll() {
  constexpr int kIllegalAddress = 700;
  rdma::fake_cuda_lose(0, kIllegalAddress);
  rdma::fake_cuda_lose(1, kIllegalAddress);
}

template <typename T>
bool Read(const void* address, uint64_t n, std::vector<T>* values) {
  values->resize(n);
  if (n == 0 || rdma::fake_cuda_read(address, values->data(), n * sizeof(T))) return true;
  LoseAll();
  return false;
}

template <typename T>
void Write(void* address, const std::vector<T>& values) {
  if (values.empty()) return;
  if (!rdma::fake_cuda_write(address, values.data(), values.size() * sizeof(T))) LoseAll();
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_GPU_FAKE_MEMORY_H_
