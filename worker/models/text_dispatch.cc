#include "worker/models/text_kernels.h"

namespace verbena::worker {

extern const TextKernels kTextKernelsBaseline;
#if defined(VERBENA_X86_KERNELS)
extern const TextKernels kTextKernelsAvx2;
extern const TextKernels kTextKernelsAvx512;
#endif

const TextKernels& BaselineTextKernels() { return kTextKernelsBaseline; }

const TextKernels& BestTextKernels() {
#if defined(VERBENA_X86_KERNELS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("fma")) {
    return kTextKernelsAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kTextKernelsAvx2;
#endif
  return kTextKernelsBaseline;
}

}  // namespace verbena::worker
