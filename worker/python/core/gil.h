// The GIL around calls of the library, also at the end of the interpreter.
//
// A thread that takes the GIL when the interpreter has ended is ended by Python in the middle of
// its C++ frames, which aborts the process. So nothing releases it after EndOfInterpreter(), which
// waits for those that have.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_GIL_H_
#define VERBENA_WORKER_PYTHON_CORE_GIL_H_

#include <pybind11/pybind11.h>

namespace verbena::python {

namespace py = pybind11;

// Releases the GIL for a scope that touches no Python object.
class ReleasedGil {
 public:
  ReleasedGil();
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* const state_;  // null: the GIL is kept
};

// Waits for at most a second until no other thread has a ReleasedGil. Later scopes keep the GIL.
void EndOfInterpreter();
// In a forked child, which does not have those threads.
void ForgetReleased();

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_GIL_H_
