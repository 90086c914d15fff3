#include "worker/python/core/status.h"

#include <cmath>

namespace verbena::python {
namespace {

py::handle error_classes[VERBENA_UNAUTHENTICATED + 1];  // by status

template <size_t N>
const char* WordAt(const char* const (&words)[N], int32_t index) {
  return index >= 0 && static_cast<size_t>(index) < N ? words[index] : "?";
}

}  // namespace

void LoadErrors() {
  const py::dict classes = py::module_::import("verbena._errors").attr("BY_NUMBER");
  for (const auto& [number, type] : classes) {
    // Never released: the classes live as long as the process.
    error_classes[number.cast<size_t>()] = py::reinterpret_borrow<py::object>(type).release();
  }
}

py::object ErrorOf(const Outcome& outcome) {
  const auto code = static_cast<size_t>(outcome.code);
  const py::handle type = code < std::size(error_classes) && error_classes[code]
                              ? error_classes[code]
                              : error_classes[VERBENA_UNKNOWN];
  const auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      outcome.text.data(), static_cast<Py_ssize_t>(outcome.text.size()), "replace"));
  return py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(type.ptr(), text.ptr(), nullptr));
}

void Check(const Outcome& outcome) {
  if (outcome.code == VERBENA_OK) return;
  const py::object error = ErrorOf(outcome);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

int64_t Milliseconds(const py::object& timeout) {
  if (timeout.is_none()) return VERBENA_TIMEOUT_DEFAULT;
  constexpr double kMost = 1e12;  // of seconds: beyond it there is no end
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::type_error("timeout: allowed: seconds as a number, or None");
  }
  if (!(seconds >= 0)) {
    throw py::value_error("timeout is " + std::to_string(seconds) +
                          "; allowed: seconds, 0 or more, or None");
  }
  return static_cast<int64_t>(std::ceil(std::fmin(seconds, kMost) * 1000));
}

const char* DTypeWord(int32_t dtype) {
  static constexpr const char* kWords[] = {"f32", "f32", "bf16", "f16"};
  return WordAt(kWords, dtype);
}

const char* ConsistencyWord(int32_t consistency) {
  static constexpr const char* kWords[] = {"sync", "sync", "async", "ssp"};
  return WordAt(kWords, consistency);
}

const char* ReductionWord(int32_t reduction) {
  static constexpr const char* kWords[] = {"mean", "sum", "mean"};
  return WordAt(kWords, reduction);
}

const char* NonFiniteWord(int32_t non_finite) {
  static constexpr const char* kWords[] = {"reject", "reject", "apply", "skip"};
  return WordAt(kWords, non_finite);
}

const char* CodecWord(int32_t codec) {
  static constexpr const char* kWords[] = {"none",     "none",     "bf16", "f16",  "int8",
                                           "fp8_e4m3", "fp8_e5m2", "sign", "top_k"};
  return WordAt(kWords, codec);
}

}  // namespace verbena::python
