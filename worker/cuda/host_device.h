// VERBENA_HOST_DEVICE: marks functions that compile for the GPU and, without a CUDA compiler, as
// plain C++, so that tests run the kernels' logic on any machine.
//
// **Thread safety**: macros.
#ifndef VERBENA_WORKER_CUDA_HOST_DEVICE_H_
#define VERBENA_WORKER_CUDA_HOST_DEVICE_H_

// Stands before a function that kernels and the host call. VERBENA_UNROLL stands before a loop
// whose count the compiler knows: its arrays must become registers on a GPU.
#if defined(__CUDACC__)
#define VERBENA_HOST_DEVICE __host__ __device__ __forceinline__
#define VERBENA_UNROLL _Pragma("unroll")
#define VERBENA_NO_UNROLL _Pragma("unroll 1")
#else
#define VERBENA_HOST_DEVICE inline
#define VERBENA_UNROLL
#define VERBENA_NO_UNROLL
#endif

#endif  // VERBENA_WORKER_CUDA_HOST_DEVICE_H_
