// The extension module verbena._core, over the C interface of libverbena alone.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "worker/python/core/client.h"
#include "worker/python/core/connect.h"
#include "worker/python/core/operation.h"
#include "worker/python/core/table.h"

namespace verbena::python {
namespace {

// Descriptors of all table options, as dicts.
py::list TableOptions() {
  py::list options;
  Check({verbena_table_list_options(
             [](const verbena_table_option* from, void* user) {
               py::dict option;
               option["name"] = from->name;
               option["keyword"] = from->member;
               option["type"] = from->type;
               option["unit"] = from->unit;
               option["allowed"] = from->allowed;
               option["default"] = from->default_value;
               option["applies_to"] = from->applies_to;
               option["meaning"] = from->meaning;
               static_cast<py::list*>(user)->append(option);
             },
             &options),
         ""});
  return options;
}

// The file of libverbena: programs are installed near it.
std::string LibraryPath() {
  Dl_info found = {};
  dladdr(reinterpret_cast<const void*>(&verbena_version), &found);
  return found.dli_fname == nullptr ? "" : found.dli_fname;
}

}  // namespace
}  // namespace verbena::python

PYBIND11_MODULE(_core, module) {
  using namespace verbena::python;  // NOLINT: the module's body is theirs
  module.doc() = "The C interface of libverbena.";
  module.def("version", &verbena_version, "Version of the loaded library.");
  module.def("library_path", &LibraryPath, "The file of the loaded library.");
  module.def("status_name", &verbena_status_name, "'NOT_FOUND' for 5.");
  module.def("connect_options", &ConnectOptions, "Names of the options of Client.");
  module.def("table_options", &TableOptions, "Descriptors of all table options.");
  module.def("end_of_interpreter", &EndOfInterpreter,
             "Waits for at most a second until no thread is in a call of the library.");
  LoadErrors();
  DefineOperation(module);
  DefineTable(module);
  DefineClient(module);
}
