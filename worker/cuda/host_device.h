// VERBENA_HOST_DEVICE: marks functions that compile for the GPU and, without a CUDA compiler, as
// plain C++, so that tests run the kernels' logic on any machine.
//
// **Thread safety**: macros.
#ifndef VERBENA_WORKER_CUDA_HOST_DEVICE_H_
#define VERBENA_WORKER_CUDA_HOST_DEVICE_H_

// Stands before a function that kernels and the host call.
#if defined(__CUDACC__)
#define VERBENA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define VERBENA_HOST_DEVICE inline
#endif

#endif  // VERBENA_WORKER_CUDA_HOST_DEVICE_H_
