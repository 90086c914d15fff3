// Waits that signals interrupt.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_WAITS_H_
#define VERBENA_WORKER_PYTHON_CORE_WAITS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>

#include "worker/python/core/status.h"

namespace verbena::python {

// The longest time in milliseconds for which a wait does not look for signals.
constexpr int64_t kSliceMs = 20;

// Runs a call of the library that may take long, such as connecting. On the main thread Ctrl-C ends
// the wait: the call then continues on a thread of its own, and its results are freed. `call`
// therefore owns its arguments and results, and touches no Python object.
Outcome Interruptible(std::function<verbena_status()> call);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_WAITS_H_
