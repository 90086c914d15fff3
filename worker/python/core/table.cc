#include "worker/python/core/table.h"

#include <string>

namespace verbena::python {
namespace {

py::tuple ShapeTuple(const verbena_table_info& info) {
  py::tuple shape(info.dimensions);
  for (size_t i = 0; i < info.dimensions; ++i) shape[i] = py::int_(info.shape[i]);
  return shape;
}

// The library's texts are UTF-8; an unknown byte must not make a table unusable.
py::str Utf8(const char* text) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      text, static_cast<Py_ssize_t>(std::char_traits<char>::length(text)), "replace"));
}

}  // namespace

Table::Table(verbena_table* handle) : handle_(handle) {
  info_.struct_size = sizeof(info_);
  verbena_table_get_info(handle_, &info_);
}

Element Table::ElementOf(int32_t dtype) {
  if (dtype == VERBENA_DTYPE_BF16) return Element::kBFloat16;
  return dtype == VERBENA_DTYPE_F16 ? Element::kFloat16 : Element::kFloat32;
}

uint64_t Table::Count(uint64_t first, const py::object& count) const {
  if (embedding()) {
    throw py::value_error(std::string("table '") + info_.name +
                          "' is an embedding table; allowed: a table with a shape");
  }
  if (!count.is_none()) {
    try {
      return count.cast<uint64_t>();
    } catch (const py::cast_error&) {
      throw py::type_error("count is " + py::repr(count).cast<std::string>() +
                           "; allowed: elements, 0 or more, or None: to the end");
    }
  }
  if (first >= info_.elements) {
    throw py::value_error("first is " + std::to_string(first) + "; allowed: less than " +
                          std::to_string(info_.elements) + ", the elements of the table");
  }
  return info_.elements - first;
}

py::tuple Table::StateArrays() const {
  py::list names;
  for (size_t i = 0; const char* name = verbena_table_state_array(handle_, i); ++i) {
    names.append(Utf8(name));
  }
  return py::tuple(names);
}

py::dict DescribeTable(const verbena_table_info& info) {
  py::dict all;
  all["name"] = Utf8(info.name);
  all["job"] = Utf8(info.job);
  all["description"] = Utf8(info.description);
  all["shape"] = ShapeTuple(info);
  all["dim"] = info.dim;
  all["dtype"] = DTypeWord(info.dtype);
  all["gradient_dtype"] = DTypeWord(info.gradient_dtype);
  all["consistency"] = ConsistencyWord(info.consistency);
  all["staleness"] = info.staleness;
  all["reduction"] = ReductionWord(info.reduction);
  all["non_finite"] = NonFiniteWord(info.non_finite);
  all["optimizer"] = Utf8(info.optimizer);
  all["rate"] = info.rate;
  all["push_codec"] = CodecWord(info.push_codec);
  all["pull_codec"] = CodecWord(info.pull_codec);
  all["elements"] = info.elements;
  all["bytes"] = info.bytes;
  all["gradient_bytes"] = info.gradient_bytes;
  all["chunk_elements"] = info.chunk_elements;
  all["id"] = info.id;
  return all;
}

void DefineTable(py::module_& module) {
  py::class_<Table, std::shared_ptr<Table>>(module, "Table", R"(
A table of the cluster. Client.table() and Client.open_table() return it.

Dropping the object does not drop the table: see Client.drop_table().)")
      .def_property_readonly(
          "name", [](const Table& t) { return Utf8(t.info().name); }, "As created.")
      .def_property_readonly(
          "shape", [](const Table& t) { return ShapeTuple(t.info()); },
          "Dimensions; () for an embedding table.")
      .def_property_readonly(
          "dim", [](const Table& t) { return t.info().dim; },
          "Numbers in a row of an embedding table; 0 for a dense one.")
      .def_property_readonly("embedding", &Table::embedding, "Whether it is an embedding table.")
      .def_property_readonly(
          "elements", [](const Table& t) { return t.info().elements; },
          "The product of the shape; 0 for an embedding table.")
      .def_property_readonly(
          "dtype", [](const Table& t) { return DTypeWord(t.info().dtype); },
          "Type of pulled parameters: 'f32', 'bf16', 'f16'.")
      .def_property_readonly(
          "gradient_dtype", [](const Table& t) { return DTypeWord(t.info().gradient_dtype); },
          "Type of pushed gradients: 'f32', 'bf16'.")
      .def_property_readonly(
          "consistency", [](const Table& t) { return ConsistencyWord(t.info().consistency); },
          "'sync', 'async' or 'ssp'.")
      .def_property_readonly(
          "optimizer", [](const Table& t) { return Utf8(t.info().optimizer); },
          "Name of the optimizer, as created.")
      .def_property_readonly(
          "rate", [](const Table& t) { return t.info().rate; }, "Learning rate, as created.")
      .def_property_readonly(
          "chunk_elements", [](const Table& t) { return t.info().chunk_elements; },
          "Elements of a chunk: ranges start at a multiple of it.")
      .def_property_readonly("state_arrays", &Table::StateArrays,
                             R"(
Names of the arrays of the optimizer's state, for Client.pull_state() and assign_state().

Those of checkpoints, such as ("exp_avg", "exp_avg_sq"); the last one of a 16-bit table is "master",
its float32 parameters. () for an embedding table.)")
      .def_property_readonly(
          "id", [](const Table& t) { return t.info().id; },
          "Unique in the cluster and never reused.")
      .def_property_readonly(
          "info", [](const Table& t) { return DescribeTable(t.info()); },
          "All attributes as a dict, as in Client.tables().")
      .def("__repr__",
           [](const Table& t) {
             const py::str kind = t.embedding() ? py::str("dim={}").format(t.info().dim)
                                                : py::str("shape={}").format(ShapeTuple(t.info()));
             return py::str("<verbena.Table {!r} {} {}>")
                 .format(Utf8(t.info().name), kind, ConsistencyWord(t.info().consistency));
           })
      .def("__reduce__", [](const Table& t) -> py::object {
        throw py::type_error("verbena.Table '" + std::string(t.info().name) +
                             "' cannot be pickled or copied: it is of this process's client; pass "
                             "its name, and call Client.open_table() there");
      });
}

}  // namespace verbena::python
