#include "shard/kernel/convert.h"

#include "proto/half.h"

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY FromBf16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromBFloat16(in[i]);
}
VERBENA_KERNEL_BODY ToBf16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = BFloat16FromFloat(in[i]);
}
VERBENA_KERNEL_BODY FromF16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromHalf(in[i]);
}
VERBENA_KERNEL_BODY ToF16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = HalfFromFloat(in[i]);
}

VERBENA_KERNEL(FromBf16, (const uint16_t* in, float* out, size_t n), (in, out, n));
VERBENA_KERNEL(ToBf16, (const float* in, uint16_t* out, size_t n), (in, out, n));
VERBENA_KERNEL(FromF16, (const uint16_t* in, float* out, size_t n), (in, out, n));
VERBENA_KERNEL(ToF16, (const float* in, uint16_t* out, size_t n), (in, out, n));

}  // namespace

void FloatsFromBf16(Isa isa, const uint16_t* in, float* out, size_t n) {
  FromBf16[static_cast<size_t>(isa)](in, out, n);
}
void FloatsFromF16(Isa isa, const uint16_t* in, float* out, size_t n) {
  FromF16[static_cast<size_t>(isa)](in, out, n);
}
void Bf16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n) {
  ToBf16[static_cast<size_t>(isa)](in, out, n);
}
void F16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n) {
  ToF16[static_cast<size_t>(isa)](in, out, n);
}

void Round(Isa isa, ElementType type, const float* in, uint16_t* out, size_t n) {
  return type == ElementType::kBf16 ? Bf16FromFloats(isa, in, out, n)
                                    : F16FromFloats(isa, in, out, n);
}

}  // namespace verbena::shard
