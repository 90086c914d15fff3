// Byte models that only count: the baseline for a trained text model.
//
// Interpolated Witten-Bell (Witten and Bell, 1991): with n bytes counted after a context h, u of
// them distinct and c of them the byte b,
//
//     p(b | h) = (c + u * p(b | shorter h)) / (n + u)
//
// down to the uniform distribution over 256 bytes below order 0. A context never seen gives the
// shorter one's probability.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_MODELS_COUNT_MODELS_H_
#define VERBENA_WORKER_MODELS_COUNT_MODELS_H_

#include <array>
#include <string_view>

namespace verbena::worker {

// Bits per byte of `test` under the models of order 0, 1 and 2 that counted `train`. The first
// bytes of `test` have only the preceding bytes of `test` as context. Zeros for an empty `test`.
std::array<double, 3> CountModelBitsPerByte(std::string_view train, std::string_view test);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_COUNT_MODELS_H_
