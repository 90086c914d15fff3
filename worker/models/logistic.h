// The logistic function and its loss, without overflow.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_MODELS_LOGISTIC_H_
#define VERBENA_WORKER_MODELS_LOGISTIC_H_

#include <algorithm>
#include <cmath>

namespace verbena::worker {

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// log(1 + exp(x)); the loss of label y (0 or 1) at log-odds x is Softplus(x) - y x.
inline double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_LOGISTIC_H_
