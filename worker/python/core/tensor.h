// Reads PyTorch tensors and objects with `__dlpack__`, without PyTorch's headers.
//
// **Thread safety**: the caller holds the GIL.
#ifndef VERBENA_WORKER_PYTHON_CORE_TENSOR_H_
#define VERBENA_WORKER_PYTHON_CORE_TENSOR_H_

#include "worker/python/core/buffer.h"

namespace verbena::python {

// An argument as it is, before it is checked.
struct Argument {
  enum class From : uint8_t { kBuffer, kTensor, kDlpack } from = From::kBuffer;
  Extent extent;
  Element element = Element::kOther;
  size_t count = 0;
  bool contiguous = true;
  bool read_only = false;
  bool requires_grad = false;  // and autograd is on
  bool freed = false;
  py::object pin;
  Storage storage;
  void* stream = nullptr;
};

// Whether it is a torch.Tensor; false while torch is not imported.
bool IsTensor(const py::handle& argument);
// Raises errors of PyTorch: a sparse tensor, one without memory.
Argument ReadTensor(const py::object& tensor);
Argument ReadDlpack(const py::object& object);
// Makes autograd see a change in place, before an operation writes the tensor.
void NoteWrite(const py::object& tensor);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_TENSOR_H_
