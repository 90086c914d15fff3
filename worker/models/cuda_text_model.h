// The text model with its arithmetic on GPUs: same data, same masks, same results except for
// rounding. Evaluated on the host.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_CUDA_TEXT_MODEL_H_
#define VERBENA_WORKER_MODELS_CUDA_TEXT_MODEL_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/device.h"
#include "worker/cuda/text_device.h"
#include "worker/models/text_model.h"

namespace verbena::worker {

class CudaTextModel final : public TextModel {
 public:
  // On the GPUs that CUDA counts so, one or more; each does its share of a batch. UNAVAILABLE: no
  // driver, no cuBLAS; INVALID_ARGUMENT: no such GPU; UNIMPLEMENTED: built without GPU kernels;
  // RESOURCE_EXHAUSTED: no memory there.
  static absl::StatusOr<std::unique_ptr<Model>> Open(TextData data, const TextModelOptions& options,
                                                     const std::vector<int>& ordinals);

  absl::Span<const std::shared_ptr<rdma::Device>> devices() const override { return devices_; }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;

 private:
  // Examples [first, first + rows) of a batch.
  struct Piece {
    size_t first;
    size_t rows;
  };

  CudaTextModel(TextData data, const TextModelOptions& options)
      : TextModel(std::move(data), options) {}

  // Zeros, and on the first GPU the penalty's gradient.
  absl::Status Begin(const Parameters& parameters, const Gradients& gradients);
  // The piece for GPU g in that round; without rows when it is done.
  Piece PieceOf(const Batch& batch, size_t g, size_t round) const;
  // Into the input of GPU g.
  void FillInput(size_t g, const Batch& batch, const Piece& piece, const float* table);
  // Adds the result of GPU g; returns the sum of the losses.
  double Take(size_t g, const Batch& batch, const Piece& piece, double scale,
              const Parameters& parameters, const Gradients& gradients);

  std::vector<std::shared_ptr<rdma::Device>> devices_;
  std::vector<std::unique_ptr<TextDevice>> texts_;  // of each
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_CUDA_TEXT_MODEL_H_
