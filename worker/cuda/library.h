// Loads a library of the CUDA toolkit at run time, like the driver (rdma/memory/cuda).
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_WORKER_CUDA_LIBRARY_H_
#define VERBENA_WORKER_CUDA_LIBRARY_H_

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::worker {

// The first of these names that the loader finds, by itself or in /usr/local/cuda/lib64; if the
// environment variable is set, only the name in it. The library stays loaded until the process
// ends, because such libraries have threads and memory of their own. UNAVAILABLE: there is none;
// the text has `what` ("cuBLAS") and all tried names.
absl::StatusOr<void*> OpenCudaLibrary(const std::string& what, const char* variable,
                                      const std::vector<std::string>& names);

// Sets *function to the library's function of this name. If there is none, sets *missing to the
// name, unless it names one already.
template <typename Function>
void FindFunction(void* library, const char* name, Function** function, const char** missing) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr && *missing == nullptr) *missing = name;
}

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_LIBRARY_H_
