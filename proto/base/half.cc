#include "verbena/half.h"

namespace verbena {

void FloatsFromBFloat16s(const uint16_t* __restrict in, float* __restrict out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromBFloat16(in[i]);
}

void BFloat16sFromFloats(const float* __restrict in, uint16_t* __restrict out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = BFloat16FromFloat(in[i]);
}

void FloatsFromHalves(const uint16_t* __restrict in, float* __restrict out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromHalf(in[i]);
}

void HalvesFromFloats(const float* __restrict in, uint16_t* __restrict out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = HalfFromFloat(in[i]);
}

}  // namespace verbena
