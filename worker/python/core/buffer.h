// Arguments that are memory: NumPy arrays, objects with the buffer protocol or `__dlpack__`, and
// PyTorch tensors.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_BUFFER_H_
#define VERBENA_WORKER_PYTHON_CORE_BUFFER_H_

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::python {

namespace py = pybind11;

// Types of elements. kBits16 is uint16, which stands for bf16 and f16 in NumPy.
enum class Element : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kBits16,
  kInt64,
  kUint64,
  kOther
};

// A range of memory.
struct Extent {
  std::byte* data = nullptr;
  size_t bytes = 0;
  int32_t kind = 0;    // a verbena_memory_kind
  int32_t device = 0;  // number of the GPU

  bool Contains(const Extent& part) const {
    return kind == part.kind && device == part.device && data <= part.data &&
           part.data + part.bytes <= data + bytes;
  }
};

// The memory of which an argument is a view.
struct Storage {
  enum class Watched : uint8_t {
    kWeakReference,  // `object` dies with the storage
    kTorchStorage,   // `object` is one of many Python objects for the storage
    kNever           // `object` cannot be watched
  };
  uintptr_t identity = 0;
  py::object object;
  Watched watched = Watched::kNever;
  Extent extent;
};

// A contiguous argument. `pin` keeps its memory valid and unmoved.
struct Buffer {
  Extent extent;
  Element element = Element::kOther;
  size_t count = 0;  // elements
  py::object pin;
  Storage storage;
  void* stream = nullptr;  // of a GPU: the work that comes before a transfer
};

// The requirements of an operation on an argument.
struct Wanted {
  const char* name;  // of the argument, for errors
  Element element;   // kFloat32, kFloat16 or kBFloat16
  size_t count;      // elements
  bool written;      // the operation writes it
};

// TypeError: not memory, or another type of elements. ValueError: not contiguous, another number
// of elements, read-only, another device, or freed. Each names the argument and allowed values.
Buffer Describe(const py::object& argument, const Wanted& wanted);

// Contiguous integers or f32, which the library copies. `pin` keeps them valid.
struct Numbers {
  const void* data = nullptr;
  size_t count = 0;
  py::object pin;
};
// Keys and offsets: uint64 or int64 arrays and tensors, or a sequence of integers.
Numbers DescribeIntegers(const py::object& argument, const char* name);
// Weights: float32 arrays and tensors, or a sequence of numbers.
Numbers DescribeFloats(const py::object& argument, const char* name);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_BUFFER_H_
