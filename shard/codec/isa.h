// Elementwise kernels in several instruction sets, chosen at run time, equal bit for bit.
//
// A kernel is written once, as an always-inline body over plain arrays; VERBENA_KERNEL compiles the
// body for each instruction set. Bodies are elementwise (or reduce with an associative integer
// operation) and the build has no contraction, so the width of a vector cannot show in the result.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SHARD_CODEC_ISA_H_
#define VERBENA_SHARD_CODEC_ISA_H_

#include <cstddef>
#include <cstdint>

namespace verbena::shard {

enum class Isa : uint8_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };
inline constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

bool IsaSupported(Isa isa);
// The widest set that this machine supports; detected once.
Isa BestIsa();

}  // namespace verbena::shard

#define VERBENA_KERNEL_BODY [[gnu::always_inline]] inline void

// Defines Name[isa], an array of functions with `parameters`, from Name##Body.
#if defined(__x86_64__)
#define VERBENA_KERNEL(Name, parameters, arguments)                                         \
  void Name##Baseline parameters { Name##Body arguments; }                                  \
  __attribute__((target("avx2"))) void Name##Avx2 parameters { Name##Body arguments; }      \
  __attribute__((target("avx512f"))) void Name##Avx512 parameters { Name##Body arguments; } \
  constexpr decltype(&Name##Baseline) Name[] = {Name##Baseline, Name##Avx2, Name##Avx512}
#else
#define VERBENA_KERNEL(Name, parameters, arguments)        \
  void Name##Baseline parameters { Name##Body arguments; } \
  constexpr decltype(&Name##Baseline) Name[] = {Name##Baseline, Name##Baseline, Name##Baseline}
#endif

#endif  // VERBENA_SHARD_CODEC_ISA_H_
