// Conversion between f32 and the 16-bit numbers of bf16 and f16 tables. verbena.h includes this
// file.
//
// From f32: to the nearest, ties to even; a NaN stays a NaN, and a number beyond the range becomes
// an infinity. To f32: exact. `in` and `out` must not overlap. No effect if one of them is NULL.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_HALF_NUMBERS_H_
#define VERBENA_HALF_NUMBERS_H_

#include <stddef.h>
#include <stdint.h>

#include "verbena/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets `count` numbers of `out` to the nearest bfloat16.
VERBENA_EXPORT void verbena_bf16_from_f32(const float* in, uint16_t* out, size_t count);
// Sets `count` numbers of `out` to the f32 values of `in`.
VERBENA_EXPORT void verbena_f32_from_bf16(const uint16_t* in, float* out, size_t count);
// Sets `count` numbers of `out` to the nearest binary16.
VERBENA_EXPORT void verbena_f16_from_f32(const float* in, uint16_t* out, size_t count);
// Sets `count` numbers of `out` to the f32 values of `in`.
VERBENA_EXPORT void verbena_f32_from_f16(const uint16_t* in, float* out, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_HALF_NUMBERS_H_
