// The text model with its arithmetic on a GPU: same data, same masks, same results but for
// rounding. Evaluated on the host.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_CUDA_TEXT_MODEL_H_
#define VERBENA_WORKER_CUDA_TEXT_MODEL_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/device.h"
#include "worker/cuda/text_device.h"
#include "worker/text_model.h"

namespace verbena::worker {

class CudaTextModel final : public TextModel {
 public:
  // On the GPU that CUDA counts as `ordinal`. UNAVAILABLE: no driver, no cuBLAS; INVALID_ARGUMENT:
  // no such GPU; UNIMPLEMENTED: built without GPU kernels; RESOURCE_EXHAUSTED: no memory there.
  static absl::StatusOr<std::unique_ptr<Model>> Open(TextData data, const TextModelOptions& options,
                                                     int ordinal);

  std::shared_ptr<rdma::Device> device() const override { return device_; }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;

 private:
  CudaTextModel(TextData data, const TextModelOptions& options,
                std::shared_ptr<rdma::Device> device, std::unique_ptr<TextDevice> text)
      : TextModel(std::move(data), options), device_(std::move(device)), text_(std::move(text)) {}

  absl::Status Begin(const float* parameters, float* gradient);
  // Examples [first, first + rows) of the batch, into the input of text_.
  void FillInput(const Batch& batch, size_t first, size_t rows, const float* table);

  const std::shared_ptr<rdma::Device> device_;
  const std::unique_ptr<TextDevice> text_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_TEXT_MODEL_H_
