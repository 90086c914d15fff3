#include "worker/python/core/tensor.h"

#include <cstdint>
#include <string>

#include "verbena/verbena.h"

namespace verbena::python {
namespace {

// Objects of the torch module that every tensor is compared with. They are never released: they
// live as long as the process.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyObject* types[4] = {};
  PyObject* storage = nullptr;  // name of the method that returns the untyped storage
  py::object stream_of;         // of verbena._tensors
  py::object note_write;        // of verbena._tensors
  py::object grad_enabled;
};

constexpr Element kTypes[] = {Element::kFloat32, Element::kBFloat16, Element::kFloat16,
                              Element::kInt64};
constexpr const char* kTypeNames[] = {"float32", "bfloat16", "float16", "int64"};

// Null: torch is not imported, or is being imported.
const Torch* FindTorch() {
  static Torch* found = nullptr;
  if (found != nullptr) return found;
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (module == nullptr) return nullptr;
  const py::handle torch = module;
  if (!py::hasattr(torch, "Tensor") || !py::hasattr(torch, "is_grad_enabled")) return nullptr;
  auto* made = new Torch;
  made->tensor = reinterpret_cast<PyTypeObject*>(py::object(torch.attr("Tensor")).release().ptr());
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    made->types[i] = py::object(torch.attr(kTypeNames[i])).release().ptr();
  }
  const py::module_ tensors = py::module_::import("verbena._tensors");
  const bool version_2 = py::hasattr(torch.attr("Tensor"), "untyped_storage");
  made->storage = PyUnicode_InternFromString(version_2 ? "untyped_storage" : "_storage");
  made->stream_of = tensors.attr("stream_of");
  made->note_write = tensors.attr("note_write");
  made->grad_enabled = torch.attr("is_grad_enabled");
  found = made;
  return found;
}

// Names of attributes as Python strings, which are made once.
py::object Get(const py::handle& object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

py::object Call(const py::handle& object, PyObject* name) {
  PyObject* const value = PyObject_CallMethodNoArgs(object.ptr(), name);
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

uintptr_t Address(const py::object& number) {
  const auto address = reinterpret_cast<uintptr_t>(PyLong_AsVoidPtr(number.ptr()));
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return address;
}

struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_cuda = PyUnicode_InternFromString("is_cuda");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* nbytes = PyUnicode_InternFromString("nbytes");
  PyObject* cdata = PyUnicode_InternFromString("_cdata");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* element_size = PyUnicode_InternFromString("element_size");
};

const Names& KnownNames() {
  static const Names* const names = new Names;
  return *names;
}

}  // namespace

bool IsTensor(const py::handle& argument) {
  const Torch* torch = FindTorch();
  return torch != nullptr && PyObject_TypeCheck(argument.ptr(), torch->tensor) != 0;
}

Argument ReadTensor(const py::object& tensor) {
  const Torch& torch = *FindTorch();
  const Names& names = KnownNames();
  Argument read;
  read.from = Argument::From::kTensor;
  const py::object type = Get(tensor, names.dtype);
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (type.ptr() == torch.types[i]) read.element = kTypes[i];
  }
  read.contiguous = Call(tensor, names.is_contiguous).ptr() == Py_True;
  if (Call(tensor, names.is_neg).ptr() == Py_True) {
    throw py::value_error(
        "the tensor is a view of the opposite numbers (is_neg()); allowed: resolve_neg() of it");
  }
  read.count = Address(Call(tensor, names.numel));
  read.requires_grad =
      Get(tensor, names.requires_grad).ptr() == Py_True && torch.grad_enabled().ptr() == Py_True;
  read.extent.data = reinterpret_cast<std::byte*>(Address(Call(tensor, names.data_ptr)));
  read.extent.bytes = read.count * Address(Call(tensor, names.element_size));
  if (Get(tensor, names.is_cpu).ptr() != Py_True) {
    if (Get(tensor, names.is_cuda).ptr() != Py_True) {
      throw py::value_error("the tensor is on device '" +
                            py::str(tensor.attr("device")).cast<std::string>() +
                            "'; allowed: cpu, cuda");
    }
    read.extent.kind = VERBENA_MEMORY_CUDA;
    read.extent.device = Call(tensor, names.get_device).cast<int32_t>();
    read.stream = reinterpret_cast<void*>(Address(torch.stream_of(read.extent.device)));
  }
  // A tensor may get another storage; the storage stays where it is as long as it lives.
  read.pin = Call(tensor, torch.storage);
  read.storage.object = read.pin;
  read.storage.identity = Address(Get(read.pin, names.cdata));
  read.storage.watched = Storage::Watched::kTorchStorage;
  read.storage.extent = read.extent;
  read.storage.extent.data = reinterpret_cast<std::byte*>(Address(Call(read.pin, names.data_ptr)));
  read.storage.extent.bytes = Address(Call(read.pin, names.nbytes));
  read.freed = read.count > 0 && !read.storage.extent.Contains(read.extent);
  return read;
}

void NoteWrite(const py::object& tensor) { FindTorch()->note_write(tensor); }

// ---- DLPack -------------------------------------------------------------------------------------

namespace {

// The structs of DLPack's C interface, version 0.
struct DlDevice {
  int32_t type, id;
};
constexpr int32_t kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3;
struct DlType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t dimensions;
  DlType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};

Element ElementOfDlpack(const DlType& type) {
  constexpr uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4;
  if (type.lanes != 1) return Element::kOther;
  if (type.code == kFloat && type.bits == 64) return Element::kFloat64;
  if (type.code == kFloat && type.bits == 32) return Element::kFloat32;
  if (type.code == kFloat && type.bits == 16) return Element::kFloat16;
  if (type.code == kBfloat && type.bits == 16) return Element::kBFloat16;
  if (type.code == kUint && type.bits == 16) return Element::kBits16;
  if (type.code == kUint && type.bits == 64) return Element::kUint64;
  return type.code == kInt && type.bits == 64 ? Element::kInt64 : Element::kOther;
}

bool Contiguous(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.dimensions; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace

Argument ReadDlpack(const py::object& object) {
  Argument read;
  read.from = Argument::From::kDlpack;
  // The capsule owns the tensor until it is renamed, and is freed with its last reference.
  read.pin = object.attr("__dlpack__")();
  const auto* tensor =
      static_cast<const DlTensor*>(PyCapsule_GetPointer(read.pin.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  read.element = ElementOfDlpack(tensor->type);
  read.count = 1;
  for (int32_t i = 0; i < tensor->dimensions; ++i) {
    read.count *= static_cast<size_t>(tensor->shape[i]);
  }
  read.contiguous = Contiguous(*tensor);
  read.extent.data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  read.extent.bytes = read.count * tensor->type.bits / 8;
  if (tensor->device.type == kDlCuda) {
    read.extent.kind = VERBENA_MEMORY_CUDA;
    read.extent.device = tensor->device.id;
  } else if (tensor->device.type != kDlCpu && tensor->device.type != kDlCudaHost) {
    throw py::value_error("the array is on a device of DLPack's type " +
                          std::to_string(tensor->device.type) + "; allowed: CPU, CUDA");
  }
  read.storage.object = object;
  read.storage.identity = reinterpret_cast<uintptr_t>(object.ptr());
  if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object.ptr())) != 0) {
    read.storage.watched = Storage::Watched::kWeakReference;
  }
  read.storage.extent = read.extent;
  return read;
}

}  // namespace verbena::python
