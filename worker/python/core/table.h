// Handles to tables.
//
// **Thread safety**: the caller holds the GIL; a table is immutable.
#ifndef VERBENA_WORKER_PYTHON_CORE_TABLE_H_
#define VERBENA_WORKER_PYTHON_CORE_TABLE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "worker/python/core/buffer.h"
#include "worker/python/core/status.h"

namespace verbena::python {

class Table {
 public:
  // Takes the handle over.
  explicit Table(verbena_table* handle);
  ~Table() { verbena_table_free(handle_); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const verbena_table* handle() const { return handle_; }
  // Texts and the shape live as long as the handle.
  const verbena_table_info& info() const { return info_; }
  bool embedding() const { return info_.dim > 0; }
  // Elements of the range from `first` on. ValueError: the table is an embedding table.
  uint64_t Count(uint64_t first, const py::object& count) const;
  py::tuple StateArrays() const;
  Element gradient_element() const { return ElementOf(info_.gradient_dtype); }
  Element element() const { return ElementOf(info_.dtype); }

 private:
  static Element ElementOf(int32_t dtype);

  verbena_table* const handle_;
  verbena_table_info info_ = {};
};

// A dict of the public attributes, for Client.tables().
py::dict DescribeTable(const verbena_table_info& info);

void DefineTable(py::module_& module);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_TABLE_H_
