#include "shard/codec/isa.h"

namespace verbena::shard {

bool IsaSupported(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      // Every processor with AVX2 has both; a virtual machine may hide one.
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
    case Isa::kAvx512:
      // Every processor with AVX-512 has these, but the Xeon Phis.
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  }
  return false;
#else
  return isa == Isa::kBaseline;
#endif
}

Isa BestIsa() {
  static const Isa best = IsaSupported(Isa::kAvx512) ? Isa::kAvx512
                          : IsaSupported(Isa::kAvx2) ? Isa::kAvx2
                                                     : Isa::kBaseline;
  return best;
}

}  // namespace verbena::shard
