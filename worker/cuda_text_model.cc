#include "worker/cuda_text_model.h"

#include <algorithm>
#include <cstring>

#include "rdma/memory/cuda/cuda_device.h"

namespace verbena::worker {

absl::StatusOr<std::unique_ptr<Model>> CudaTextModel::Open(TextData data,
                                                           const TextModelOptions& options,
                                                           int ordinal) {
  auto device = rdma::OpenCudaDevice(ordinal);
  if (!device.ok()) return device.status();
  auto text = TextDevice::Open(*device, options.shape);
  if (!text.ok()) return text.status();
  return std::unique_ptr<Model>(
      new CudaTextModel(std::move(data), options, *std::move(device), *std::move(text)));
}

absl::Status CudaTextModel::Begin(const float* parameters, float* gradient) {
  absl::Status status = text_->Scale(parameters, 0, gradient, layout_.floats());
  if (options_.l2 == 0) return status;
  for (const size_t tensor : Penalised()) {
    if (!status.ok()) break;
    const uint64_t first = layout_.offset(tensor);
    status = text_->Scale(parameters + first, static_cast<float>(options_.l2), gradient + first,
                          layout_[tensor].elements());
  }
  return status;
}

void CudaTextModel::FillInput(const Batch& batch, size_t first, size_t rows, const float* table) {
  const auto context = static_cast<size_t>(options_.shape.context);
  const auto hidden = static_cast<size_t>(options_.shape.hidden);
  const TextDevice::Input& input = text_->input();
  // In pieces of what the host works on at once: its buffers have no more room.
  for (size_t done = 0; done < rows;) {
    const size_t piece = std::min<size_t>(kTextRows, rows - done);
    for (size_t r = 0; r < piece; ++r) {
      const uint32_t id = batch.ids[first + done + r];
      Fill(data_.train, r, id);
      if (options_.dropout > 0) FillMask(r, id);
    }
    std::memcpy(input.contexts + done * context, contexts_.data(), piece * context);
    std::memcpy(input.targets + done, targets_.data(), piece);
    if (options_.dropout > 0) {
      std::memcpy(input.mask + done * hidden, mask_, piece * hidden * sizeof(float));
    }
    if (table != nullptr) {
      FillAdded(batch, first + done, piece, table);
      std::memcpy(input.add + done * kTextClasses, added_.data(),
                  piece * kTextClasses * sizeof(float));
    }
    done += piece;
  }
}

absl::StatusOr<double> CudaTextModel::Gradient(const Batch& batch, double scale,
                                               const Parameters& given,
                                               const Gradients& gradients) {
  const float* table = tables_.empty() ? nullptr : given.rows[0];
  if (table != nullptr) {
    std::fill_n(gradients.rows[0], batch.keys[0].size() * kTextClasses, 0.0f);
  }
  if (absl::Status s = Begin(given.dense, gradients.dense); !s.ok()) return s;
  const TextParameters parameters = ParametersAt(given.dense);
  const TextGradient gradient = GradientAt(gradients.dense);
  ++calls_;
  double loss = 0;
  for (size_t done = 0; done < batch.ids.size();) {
    const size_t rows = std::min<size_t>(TextDevice::kRows, batch.ids.size() - done);
    FillInput(batch, done, rows, table);
    const absl::Status status =
        text_->Add(parameters, gradient, static_cast<uint32_t>(rows), static_cast<float>(scale),
                   options_.dropout > 0, table != nullptr);
    if (!status.ok()) return status;
    for (size_t r = 0; r < rows; ++r) loss += text_->losses()[r];
    for (size_t piece = 0; table != nullptr && piece < rows; piece += kTextRows) {
      const size_t n = std::min<size_t>(kTextRows, rows - piece);
      std::memcpy(workspace_.p, text_->output_gradient() + piece * kTextClasses,
                  n * kTextClasses * sizeof(float));
      AddRowGradients(batch, scale, done + piece, n, table, gradients.rows[0]);
    }
    done += rows;
  }
  if (batch.ids.empty()) {
    if (absl::Status s = text_->Wait(); !s.ok()) return s;
  }
  return loss;
}

}  // namespace verbena::worker
