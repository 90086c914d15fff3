// Errors of the C library as Python exceptions, and words for its enums.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_STATUS_H_
#define VERBENA_WORKER_PYTHON_CORE_STATUS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "verbena/verbena.h"
#include "worker/python/core/gil.h"

namespace verbena::python {

// Result of a call of the library. The text is read by the thread that made the call.
struct Outcome {
  verbena_status code = VERBENA_OK;
  std::string text;
};

// Runs `call` without the GIL. `call` returns a verbena_status and touches no Python object.
template <typename F>
Outcome WithoutGil(F call) {
  const ReleasedGil released;
  Outcome outcome;
  outcome.code = call();
  if (outcome.code != VERBENA_OK) outcome.text = verbena_last_error();
  return outcome;
}

// Finds the classes of the exceptions, in verbena._errors.
void LoadErrors();
// The instance of verbena.Error, or of its subclass for this status. Runs no Python code, so no
// other thread gets the GIL meanwhile (gil.h).
py::object ErrorOf(const Outcome& outcome);
// Raises it unless the outcome is OK.
void Check(const Outcome& outcome);

// Milliseconds of a timeout in seconds; None: the client's default (VERBENA_TIMEOUT_DEFAULT).
// ValueError: less than 0, or not a number.
int64_t Milliseconds(const py::object& timeout);

// "bf16" for VERBENA_DTYPE_BF16; likewise the others.
const char* DTypeWord(int32_t dtype);
const char* ConsistencyWord(int32_t consistency);
const char* ReductionWord(int32_t reduction);
const char* NonFiniteWord(int32_t non_finite);
const char* CodecWord(int32_t codec);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_STATUS_H_
