// Options of Client by keyword: the members of verbena_connect_options.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_CONNECT_H_
#define VERBENA_WORKER_PYTHON_CORE_CONNECT_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "worker/python/core/region.h"

namespace verbena::python {

// Raises the library's error; TypeError: an option is unknown or has another type.
std::shared_ptr<LibraryClient> Connect(const py::dict& options);
// Names of all options.
py::list ConnectOptions();

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_CONNECT_H_
