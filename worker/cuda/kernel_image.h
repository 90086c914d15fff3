// The compiled kernels of a worker, as cuModuleLoadData() takes them: a fat binary with code for
// several architectures, of which the driver picks one.
//
// **Thread safety**: a constant.
#ifndef VERBENA_WORKER_CUDA_KERNEL_IMAGE_H_
#define VERBENA_WORKER_CUDA_KERNEL_IMAGE_H_

#include <cstddef>

#include "absl/types/span.h"

namespace verbena::worker {

// Holds the kernels of kernel_types.h. Empty when this program was built without a CUDA compiler
// (cmake/VerbenaCuda.cmake).
absl::Span<const std::byte> KernelImage();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_KERNEL_IMAGE_H_
