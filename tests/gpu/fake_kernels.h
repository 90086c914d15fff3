// The worker's GPU kernels, for the imitated driver (tests/rdma/fake_cuda): the logic of
// worker/cuda/text_elements.h on the host, over copies of the imitated device's memory.
//
// libfake_cuda_kernels.so is the imitated driver with these kernels in place from the start, for
// programs that know nothing of an imitation.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_TESTS_GPU_FAKE_KERNELS_H_
#define VERBENA_TESTS_GPU_FAKE_KERNELS_H_

namespace verbena::worker {

// To be called again after fake_cuda_reset(). A kernel that accesses memory that does not exist
// loses its device, as on a GPU (CUDA_ERROR_ILLEGAL_ADDRESS).
void DefineFakeKernels();

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_GPU_FAKE_KERNELS_H_
