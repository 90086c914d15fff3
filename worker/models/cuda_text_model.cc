#include "worker/models/cuda_text_model.h"

#include <algorithm>
#include <cstring>

#include "rdma/memory/cuda/cuda_device.h"

namespace verbena::worker {

absl::StatusOr<std::unique_ptr<Model>> CudaTextModel::Open(TextData data,
                                                           const TextModelOptions& options,
                                                           const std::vector<int>& ordinals) {
  std::unique_ptr<CudaTextModel> model(new CudaTextModel(std::move(data), options));
  for (const int ordinal : ordinals) {
    auto device = rdma::OpenCudaDevice(ordinal);
    if (!device.ok()) return device.status();
    auto text = TextDevice::Open(*device, options.shape);
    if (!text.ok()) return text.status();
    model->devices_.push_back(*std::move(device));
    model->texts_.push_back(*std::move(text));
  }
  return model;
}

absl::Status CudaTextModel::Begin(const Parameters& parameters, const Gradients& gradients) {
  absl::Status status;
  for (size_t g = 0; g < texts_.size(); ++g) {
    float* const gradient = gradients.on_devices[g];
    const float* const from = parameters.on_devices[g];
    status.Update(texts_[g]->Zero(gradient, layout_.floats()));
    if (options_.l2 == 0 || g > 0) continue;
    for (const size_t tensor : Penalised()) {
      const uint64_t first = layout_.offset(tensor);
      status.Update(texts_[g]->Scale(from + first, static_cast<float>(options_.l2),
                                     gradient + first, layout_[tensor].elements()));
    }
  }
  return status;
}

CudaTextModel::Piece CudaTextModel::PieceOf(const Batch& batch, size_t g, size_t round) const {
  const size_t begin = batch.ids.size() * g / texts_.size();
  const size_t end = batch.ids.size() * (g + 1) / texts_.size();
  const size_t first = std::min(begin + round * TextDevice::kRows, end);
  return {first, std::min<size_t>(TextDevice::kRows, end - first)};
}

void CudaTextModel::FillInput(size_t g, const Batch& batch, const Piece& piece,
                              const float* table) {
  const auto context = static_cast<size_t>(options_.shape.context);
  const auto hidden = static_cast<size_t>(options_.shape.hidden);
  const TextDevice::Input& input = texts_[g]->input();
  // In parts of kTextRows, for which the host's buffers have room.
  for (size_t done = 0; done < piece.rows;) {
    const size_t rows = std::min<size_t>(kTextRows, piece.rows - done);
    for (size_t r = 0; r < rows; ++r) {
      const size_t example = piece.first + done + r;
      Fill(batch, example, r);
      if (options_.dropout > 0) FillMask(r, batch.ids[example]);
    }
    std::memcpy(input.contexts + done * context, contexts_.data(), rows * context);
    std::memcpy(input.targets + done, targets_.data(), rows);
    if (options_.dropout > 0) {
      std::memcpy(input.mask + done * hidden, mask_, rows * hidden * sizeof(float));
    }
    if (table != nullptr) {
      FillAdded(batch, piece.first + done, rows, table);
      std::memcpy(input.add + done * kTextClasses, added_.data(),
                  rows * kTextClasses * sizeof(float));
    }
    done += rows;
  }
}

double CudaTextModel::Take(size_t g, const Batch& batch, const Piece& piece, double scale,
                           const Parameters& parameters, const Gradients& gradients) {
  double loss = 0;
  for (size_t r = 0; r < piece.rows; ++r) loss += texts_[g]->losses()[r];
  for (size_t done = 0; !tables_.empty() && done < piece.rows; done += kTextRows) {
    const size_t rows = std::min<size_t>(kTextRows, piece.rows - done);
    std::memcpy(workspace_.p, texts_[g]->output_gradient() + done * kTextClasses,
                rows * kTextClasses * sizeof(float));
    AddRowGradients(batch, scale, piece.first + done, rows, parameters.rows[0], gradients.rows[0]);
  }
  return loss;
}

absl::StatusOr<double> CudaTextModel::Gradient(const Batch& batch, double scale,
                                               const Parameters& parameters,
                                               const Gradients& gradients) {
  const float* table = tables_.empty() ? nullptr : parameters.rows[0];
  if (table != nullptr) {
    std::fill_n(gradients.rows[0], batch.keys[0].size() * kTextClasses, 0.0f);
  }
  if (absl::Status s = Begin(parameters, gradients); !s.ok()) return s;
  ++calls_;
  double loss = 0;
  // The last GPU has the most examples. At least one round, because the work that Begin() started
  // has to be completed.
  for (size_t round = 0; round == 0 || PieceOf(batch, texts_.size() - 1, round).rows > 0; ++round) {
    for (size_t g = 0; g < texts_.size(); ++g) {
      const Piece piece = PieceOf(batch, g, round);
      if (piece.rows == 0) continue;
      FillInput(g, batch, piece, table);
      const absl::Status status = texts_[g]->Start(
          {static_cast<uint32_t>(piece.rows), options_.dropout > 0, table != nullptr},
          ParametersAt(parameters.on_devices[g]), GradientAt(gradients.on_devices[g]),
          static_cast<float>(scale));
      if (!status.ok()) return status;
    }
    for (size_t g = 0; g < texts_.size(); ++g) {
      if (absl::Status s = texts_[g]->Finish(); !s.ok()) return s;
      loss += Take(g, batch, PieceOf(batch, g, round), scale, parameters, gradients);
    }
  }
  return loss;
}

}  // namespace verbena::worker
