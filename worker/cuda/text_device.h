// The text model's arithmetic (worker/models/text_kernels.h) on a GPU: copies a batch of examples
// there, returns its losses, and adds its gradient to the one on the GPU.
//
// **Thread safety**: one thread at a time.
//
// Invariants:
//  1. Everything runs in one stream, in the order of the calls.
//  2. A batch is finished before the next is started.
#ifndef VERBENA_WORKER_CUDA_TEXT_DEVICE_H_
#define VERBENA_WORKER_CUDA_TEXT_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "worker/cuda/cublas.h"
#include "worker/cuda/kernel_module.h"
#include "worker/cuda/stream.h"
#include "worker/models/text_kernels.h"

namespace verbena::worker {

class TextDevice {
 public:
  // Examples that are worked on at once: enough for matrix products to fill a GPU.
  static constexpr uint32_t kRows = 1024;

  // Errors of KernelModule::Load() and Cublas::Open(); RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::unique_ptr<TextDevice>> Open(std::shared_ptr<rdma::Device> device,
                                                          const TextShape& shape);
  TextDevice(const TextDevice&) = delete;
  TextDevice& operator=(const TextDevice&) = delete;

  // Host memory for the next batch, kRows examples each; the caller fills it.
  struct Input {
    uint8_t* contexts;  // [rows, context]
    uint8_t* targets;   // [rows]
    float* mask;        // [rows, hidden]
    float* add;         // [rows, 256]
  };
  const Input& input() const { return input_; }
  // Results of the last batch, in host memory.
  const float* losses() const { return losses_; }           // [rows], in nats
  const float* output_gradient() const { return output_; }  // [rows, 256], by the softmax's input

  // `floats` zeros, in memory of the GPU.
  absl::Status Zero(float* out, uint64_t floats);
  // out = factor * in, `floats` of them, in memory of the GPU.
  absl::Status Scale(const float* in, float factor, float* out, uint64_t floats);
  struct Batch {
    uint32_t rows;
    bool masked;  // whether the input's mask counts
    bool added;   // whether the input's `add` counts
  };
  // Starts the batch in input(): adds scale times the gradient of its losses to *gradient;
  // parameters and gradient are in memory of the GPU. The work is enqueued when this returns, and
  // the input may be filled again.
  absl::Status Start(const Batch& batch, const TextParameters& parameters,
                     const TextGradient& gradient, float scale);
  // Waits until all enqueued work is done; then the results of the last batch are there.
  absl::Status Finish();

 private:
  TextDevice(const TextShape& shape, std::unique_ptr<KernelModule> module)
      : shape_(shape), module_(std::move(module)) {}
  absl::Status Prepare();
  absl::Status Upload();
  absl::Status Forward(const TextParameters& parameters);
  absl::Status Backward(const TextParameters& parameters, const TextGradient& gradient,
                        float scale);
  absl::Status Copy(rdma::Device::Direction direction, const void* from, void* to, size_t bytes) {
    return CopyNow(module_->device().get(), direction, from, to, bytes);
  }
  // Launches one thread per element, at most as many as run at once.
  template <typename... Parameters>
  absl::Status Launch(const char* kernel, uint64_t elements, Parameters... parameters);

  // Sizes of the started batch.
  struct Sizes {
    uint32_t rows, context, width, hidden, input;
    uint64_t units;  // of the hidden layer, of all rows
  };
  Sizes sizes() const;
  const float* mask() const { return batch_.masked ? on_.mask : nullptr; }

  // Addresses on the GPU.
  struct Workspace {
    uint8_t* contexts;
    uint8_t* targets;
    float *mask, *add;
    float *x, *dx, *h, *dh, *p, *losses;
  };

  const TextShape shape_;
  const std::unique_ptr<KernelModule> module_;
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<Cublas> blas_;
  std::shared_ptr<rdma::MemoryBlock> pinned_, memory_;
  Input input_ = {};
  float* losses_ = nullptr;
  float* output_ = nullptr;
  Workspace on_ = {};
  Batch batch_ = {};  // the last; no rows: its results are there
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_TEXT_DEVICE_H_
