#include "worker/python/core/buffer.h"

#include <algorithm>
#include <cstring>

#include "verbena/verbena.h"
#include "worker/python/core/tensor.h"

namespace verbena::python {
namespace {

std::string Text(const py::handle& object) { return py::str(object).cast<std::string>(); }
std::string TypeName(const py::handle& object) {
  return Text(py::type::handle_of(object).attr("__name__"));
}

const char* NameOf(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kFloat16:
      return "float16";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kBits16:
      return "uint16";
    case Element::kInt64:
      return "int64";
    case Element::kUint64:
      return "uint64";
    case Element::kOther:
      break;
  }
  return "another type";
}

// The element of a format of the struct module.
Element ElementOfFormat(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) return Element::kOther;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (std::strlen(format) != 1) return Element::kOther;
  switch (*format) {
    case 'f':
      return Element::kFloat32;
    case 'd':
      return Element::kFloat64;
    case 'e':
      return Element::kFloat16;
    case 'H':
      return Element::kBits16;
    case 'q':
    case 'l':
      return itemsize == 8 ? Element::kInt64 : Element::kOther;
    case 'Q':
    case 'L':
      return itemsize == 8 ? Element::kUint64 : Element::kOther;
    default:
      return Element::kOther;
  }
}

// The array that owns the memory of an array, or that has another object's memory.
py::object RootOf(py::object array) {
  // Never released: the type lives as long as the process.
  static PyTypeObject* const ndarray = reinterpret_cast<PyTypeObject*>(
      py::object(py::module_::import("numpy").attr("ndarray")).release().ptr());
  while (PyObject_TypeCheck(array.ptr(), ndarray)) {
    py::object base = array.attr("base");
    if (!PyObject_TypeCheck(base.ptr(), ndarray)) break;
    array = std::move(base);
  }
  return array;
}

bool HasWeakReferences(const py::handle& object) {
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object.ptr())) != 0;
}

Storage StorageOf(const py::object& argument, const Extent& extent) {
  Storage storage;
  storage.object = RootOf(argument);
  storage.identity = reinterpret_cast<uintptr_t>(storage.object.ptr());
  if (HasWeakReferences(storage.object)) storage.watched = Storage::Watched::kWeakReference;
  storage.extent = extent;
  if (storage.object.is(argument)) return storage;
  Py_buffer whole;
  if (PyObject_GetBuffer(storage.object.ptr(), &whole, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return storage;
  }
  const Extent found = {static_cast<std::byte*>(whole.buf), static_cast<size_t>(whole.len),
                        extent.kind, extent.device};
  if (PyBuffer_IsContiguous(&whole, 'A') != 0 && found.Contains(extent)) storage.extent = found;
  PyBuffer_Release(&whole);
  return storage;
}

Argument ReadBuffer(const py::object& argument) {
  Argument read;
  // A memoryview is a reference that also keeps the exporter from moving the memory.
  read.pin = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(argument.ptr()));
  if (!read.pin) throw py::error_already_set();
  const Py_buffer& view = *PyMemoryView_GET_BUFFER(read.pin.ptr());
  read.extent = {static_cast<std::byte*>(view.buf), static_cast<size_t>(view.len),
                 VERBENA_MEMORY_HOST, 0};
  read.element = ElementOfFormat(view.format, view.itemsize);
  read.count = view.itemsize == 0 ? 0 : static_cast<size_t>(view.len / view.itemsize);
  read.contiguous = PyBuffer_IsContiguous(&view, 'C') != 0;
  read.read_only = view.readonly != 0;
  return read;
}

// `name`: the argument's, for errors.
Argument Read(const py::object& argument, const char* name) {
  try {
    if (PyObject_CheckBuffer(argument.ptr()) != 0) {
      Argument read = ReadBuffer(argument);
      read.from = Argument::From::kBuffer;
      return read;
    }
    if (IsTensor(argument)) return ReadTensor(argument);
    if (py::hasattr(argument, "__dlpack__")) return ReadDlpack(argument);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    throw py::value_error(std::string(name) + ": " + Text(error.value()));
  } catch (const py::value_error& error) {
    throw py::value_error(std::string(name) + ": " + error.what());
  }
  throw py::type_error(std::string(name) + " is of type " + TypeName(argument) +
                       "; allowed: a NumPy array, an object with the buffer protocol or "
                       "__dlpack__, or a PyTorch tensor");
}

std::string TypeOf(const py::object& argument, const Argument& read) {
  if (read.element != Element::kOther) return NameOf(read.element);
  return py::hasattr(argument, "dtype") ? Text(argument.attr("dtype")) : NameOf(read.element);
}

std::string ShapeOf(const py::object& argument) {
  return py::hasattr(argument, "shape")
             ? " (shape " + Text(py::tuple(py::list(argument.attr("shape")))) + ")"
             : "";
}

// NumPy has no bf16: uint16 stands for the 16-bit types.
bool Accepts(Element wanted, Element given) {
  if (wanted == given) return true;
  return given == Element::kBits16 && wanted != Element::kFloat32;
}

void CheckArgument(const py::object& argument, const Argument& read, const Wanted& wanted) {
  const std::string name = wanted.name;
  if (!Accepts(wanted.element, read.element)) {
    const bool half = wanted.element != Element::kFloat32;
    throw py::type_error(name + " has elements of type " + TypeOf(argument, read) + "; allowed: " +
                         NameOf(wanted.element) + (half ? ", or uint16 with the same bits" : ""));
  }
  if (!read.contiguous) {
    throw py::value_error(name + ShapeOf(argument) +
                          " is not contiguous; allowed: C-contiguous memory, such as a copy by "
                          "numpy.ascontiguousarray() or Tensor.contiguous()");
  }
  if (read.count != wanted.count) {
    throw py::value_error(name + " has " + std::to_string(read.count) + " elements" +
                          ShapeOf(argument) + "; allowed: " + std::to_string(wanted.count));
  }
  if (wanted.written && read.read_only) {
    throw py::value_error(name + " is read-only; allowed: writable memory");
  }
  if (wanted.written && read.requires_grad) {
    throw py::value_error(name +
                          " requires grad and autograd is on; pass tensor.detach(), or call under "
                          "torch.no_grad()");
  }
  if (read.freed) {
    throw py::value_error(name + ShapeOf(argument) + " has no memory: its storage was freed");
  }
}

// `converter`: the function of verbena._sequences for sequences.
Numbers DescribeNumbers(py::object argument, const char* name, const char* converter,
                        bool (*accepts)(Element), const char* allowed) {
  const py::handle type = py::type::handle_of(argument);
  if (PyObject_CheckBuffer(argument.ptr()) == 0 && !IsTensor(argument) &&
      !py::hasattr(type, "__dlpack__")) {
    argument = py::module_::import("verbena._sequences").attr(converter)(argument, name);
  }
  Argument read = Read(argument, name);
  // An empty list has no type of its own.
  if (read.count > 0 && !accepts(read.element)) {
    throw py::type_error(std::string(name) + " has elements of type " + TypeOf(argument, read) +
                         "; allowed: " + allowed);
  }
  if (!read.contiguous) {
    throw py::value_error(std::string(name) + ShapeOf(argument) +
                          " is not contiguous; allowed: C-contiguous memory");
  }
  if (read.extent.kind == VERBENA_MEMORY_CUDA) {
    throw py::value_error(std::string(name) + " is in GPU memory; allowed: CPU memory, by .cpu()");
  }
  return {read.extent.data, read.count, std::move(read.pin)};
}

}  // namespace

Buffer Describe(const py::object& argument, const Wanted& wanted) {
  Argument read = Read(argument, wanted.name);
  CheckArgument(argument, read, wanted);
  if (wanted.written && read.from == Argument::From::kTensor && read.count > 0) {
    NoteWrite(argument);
  }
  if (read.from == Argument::From::kBuffer) read.storage = StorageOf(argument, read.extent);
  return {read.extent, read.element, read.count, read.pin, std::move(read.storage), read.stream};
}

Numbers DescribeIntegers(const py::object& argument, const char* name) {
  return DescribeNumbers(
      argument, name, "integers",
      [](Element e) { return e == Element::kUint64 || e == Element::kInt64; },
      "uint64 or int64 arrays and tensors, or a sequence of integers");
}

Numbers DescribeFloats(const py::object& argument, const char* name) {
  return DescribeNumbers(
      argument, name, "numbers", [](Element e) { return e == Element::kFloat32; },
      "float32 arrays and tensors, or a sequence of numbers");
}

}  // namespace verbena::python
