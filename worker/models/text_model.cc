#include "worker/models/text_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "worker/train/random.h"

namespace verbena::worker {
namespace {

enum : size_t { kEmbedding, kW1, kC1, kW2, kSkip, kC2 };

}  // namespace

TextModel::TextModel(TextData data, const TextModelOptions& options, const TextKernels& kernels)
    : data_(std::move(data)), options_(options), kernels_(kernels) {
  const TextShape& shape = options_.shape;
  const auto input = static_cast<uint64_t>(shape.input());
  const auto hidden = static_cast<uint64_t>(shape.hidden);
  const auto width = static_cast<uint64_t>(shape.embedding);
  constexpr uint64_t classes = kTextClasses;
  // Glorot and Bengio (2010): activations and gradients keep their variance through the layers.
  const double w1 = std::sqrt(6.0 / static_cast<double>(input + hidden));
  const double w2 = std::sqrt(6.0 / static_cast<double>(hidden + classes));
  layout_ = Layout(
      {{"embedding", {classes, width}, Tensor::Initial::kNormal, 0.3, false, {"", "--embedding"}},
       {"hidden_weights",
        {input, hidden},
        Tensor::Initial::kUniform,
        w1,
        false,
        {"--context times --embedding", "--hidden"}},
       {"hidden_bias", {hidden}},
       {"output_weights", {hidden, classes}, Tensor::Initial::kUniform, w2},
       {"output_skip", {classes, classes}},
       {"output_bias", {classes}}});

  if (options_.ngrams > 1) tables_ = {{"ngrams", kTextClasses}};

  constexpr size_t kAlign = 64 / sizeof(float);
  const size_t input_floats = (kTextRows * input + kAlign - 1) / kAlign * kAlign;
  const size_t hidden_floats = (kTextRows * hidden + kAlign - 1) / kAlign * kAlign;
  const size_t output_floats = kTextRows * classes;
  scratch_.resize(2 * input_floats + 3 * hidden_floats + output_floats + kAlign);
  float* next = scratch_.data();
  while (reinterpret_cast<uintptr_t>(next) % 64 != 0) ++next;
  const auto take = [&next](size_t floats) { return std::exchange(next, next + floats); };
  workspace_.x = take(input_floats);
  workspace_.dx = take(input_floats);
  workspace_.h = take(hidden_floats);
  workspace_.dh = take(hidden_floats);
  mask_ = take(hidden_floats);
  workspace_.p = take(output_floats);
  contexts_.resize(kTextRows * static_cast<size_t>(shape.context));
  targets_.resize(kTextRows);
  losses_.resize(kTextRows);
  if (!tables_.empty()) {
    added_.resize(kTextRows * classes);
    workspace_.add = added_.data();
  }
}

TextParameters TextModel::ParametersAt(const float* arena) const {
  return {arena + layout_.offset(kEmbedding), arena + layout_.offset(kW1),
          arena + layout_.offset(kC1),        arena + layout_.offset(kW2),
          arena + layout_.offset(kSkip),      arena + layout_.offset(kC2)};
}

TextGradient TextModel::GradientAt(float* arena) const {
  return {arena + layout_.offset(kEmbedding), arena + layout_.offset(kW1),
          arena + layout_.offset(kC1),        arena + layout_.offset(kW2),
          arena + layout_.offset(kSkip),      arena + layout_.offset(kC2)};
}

absl::Span<const size_t> TextModel::Penalised() {
  static constexpr size_t kTensors[] = {kW1, kW2, kSkip};
  return kTensors;
}

uint64_t TextModel::Before() const {
  return static_cast<uint64_t>(std::max(options_.shape.context, options_.ngrams));
}

absl::Status TextModel::Fetch(const ByteSet& text, Batch* batch) {
  if (absl::Status s = text->Fetch(batch->ids, Before(), &batch->bytes); !s.ok()) return s;
  FillKeys(batch);
  return absl::OkStatus();
}

void TextModel::Fill(const Batch& batch, size_t example, size_t row) {
  const auto width = static_cast<size_t>(options_.shape.context);
  const uint8_t* target = batch.bytes.data() + example * (Before() + 1) + Before();
  std::copy_n(target - width, width, contexts_.data() + row * width);
  targets_[row] = *target;
}

void TextModel::FillMask(size_t row, uint64_t id) {
  const auto hidden = static_cast<size_t>(options_.shape.hidden);
  float* mask = mask_ + row * hidden;
  const auto keep = static_cast<float>(1 / (1 - options_.dropout));
  const auto threshold = static_cast<uint32_t>(options_.dropout * 0x1p16);
  Random random((calls_ << 32) ^ id);
  uint64_t bits = 0;
  for (size_t i = 0; i < hidden; ++i, bits >>= 16) {
    if (i % 4 == 0) bits = random.Next();
    mask[i] = (bits & 0xffff) < threshold ? 0.0f : keep;
  }
}

void TextModel::FillKeys(Batch* batch) {
  if (tables_.empty()) return;
  index_.Clear();
  batch->keys.resize(1);
  batch->keys[0].clear();
  batch->places.clear();
  for (size_t r = 0; r < batch->ids.size(); ++r) {
    const uint8_t* target = batch->bytes.data() + r * (Before() + 1) + Before();
    // Seven bytes and n fill the 64 bits that Mix() takes one to one. Bytes before the start are 0.
    uint64_t bytes = target[-1];
    for (uint64_t n = 2; n <= static_cast<uint64_t>(options_.ngrams); ++n) {
      const uint64_t byte = *(target - n);
      bytes |= byte << (8 * (n - 1));
      batch->places.push_back(index_.Place(Mix(n << 56 | bytes), batch->keys.data()));
    }
  }
}

void TextModel::FillAdded(const Batch& batch, size_t first, size_t rows, const float* table) {
  const auto places = static_cast<size_t>(options_.ngrams - 1);
  std::fill_n(added_.begin(), rows * kTextClasses, 0.0f);
  for (size_t i = 0; i < rows * places; ++i) {
    const float* from = table + size_t{batch.places[first * places + i]} * kTextClasses;
    float* to = added_.data() + i / places * kTextClasses;
    for (size_t c = 0; c < kTextClasses; ++c) to[c] += from[c];
  }
}

void TextModel::AddRowGradients(const Batch& batch, double scale, size_t first, size_t rows,
                                const float* table, float* gradients) const {
  const auto places = static_cast<size_t>(options_.ngrams - 1);
  const auto l2 = static_cast<float>(options_.l2 * scale);
  for (size_t i = 0; i < rows * places; ++i) {
    const float* from = workspace_.p + i / places * kTextClasses;
    const size_t at = size_t{batch.places[first * places + i]} * kTextClasses;
    for (size_t c = 0; c < kTextClasses; ++c) gradients[at + c] += from[c] + l2 * table[at + c];
  }
}

absl::StatusOr<double> TextModel::Gradient(const Batch& batch, double scale,
                                           const Parameters& given, const Gradients& gradients) {
  const std::vector<uint64_t>& ids = batch.ids;
  const float* parameters = given.dense;
  float* gradient = gradients.dense;
  const TextParameters view = ParametersAt(parameters);
  const TextGradient out = GradientAt(gradient);
  std::fill_n(gradient, layout_.floats(), 0.0f);
  if (!tables_.empty()) {
    std::fill_n(gradients.rows[0], batch.keys[0].size() * kTextClasses, 0.0f);
  }
  if (options_.l2 > 0) {
    const auto l2 = static_cast<float>(options_.l2 * batch.penalty);
    for (const size_t tensor : Penalised()) {
      const uint64_t first = layout_.offset(tensor);
      const uint64_t last = first + layout_[tensor].elements();
      for (uint64_t i = first; i < last; ++i) gradient[i] = l2 * parameters[i];
    }
  }
  ++calls_;
  workspace_.mask = options_.dropout > 0 ? mask_ : nullptr;
  double loss = 0;
  for (size_t done = 0; done < ids.size();) {
    const size_t rows = std::min<size_t>(kTextRows, ids.size() - done);
    for (size_t r = 0; r < rows; ++r) {
      Fill(batch, done + r, r);
      if (workspace_.mask != nullptr) FillMask(r, ids[done + r]);
    }
    if (!tables_.empty()) FillAdded(batch, done, rows, given.rows[0]);
    kernels_.forward(options_.shape, view, workspace_, contexts_.data(), targets_.data(),
                     static_cast<int>(rows), losses_.data());
    for (size_t r = 0; r < rows; ++r) loss += losses_[r];
    kernels_.backward(options_.shape, view, workspace_, contexts_.data(), targets_.data(),
                      static_cast<int>(rows), static_cast<float>(scale), out);
    if (!tables_.empty()) {
      AddRowGradients(batch, scale, done, rows, given.rows[0], gradients.rows[0]);
    }
    done += rows;
  }
  return loss;
}

absl::StatusOr<Quality> TextModel::Evaluate(const Evaluation& evaluation) {
  if (!has_test()) return absl::FailedPreconditionError("no test data was given or held out");
  const TextParameters view = ParametersAt(evaluation.parameters);
  workspace_.mask = nullptr;
  const uint64_t bytes = std::min<uint64_t>(data_.test->size(), evaluation.limit);
  Batch batch;
  double nats = 0;
  uint64_t not_finite = 0;
  for (uint64_t done = 0; done < bytes;) {
    const size_t rows = std::min<uint64_t>(kTextRows, bytes - done);
    batch.ids.resize(rows);
    std::iota(batch.ids.begin(), batch.ids.end(), done);
    if (absl::Status status = Fetch(data_.test, &batch); !status.ok()) return status;
    for (size_t r = 0; r < rows; ++r) Fill(batch, r, r);
    if (!tables_.empty()) {
      const absl::StatusOr<Rows> found = evaluation.rows(batch);
      if (!found.ok()) return found.status();
      FillAdded(batch, 0, rows, (*found)[0]);
    }
    kernels_.forward(options_.shape, view, workspace_, contexts_.data(), targets_.data(),
                     static_cast<int>(rows), losses_.data());
    for (size_t r = 0; r < rows; ++r) {
      nats += losses_[r];
      not_finite += std::isfinite(losses_[r]) ? 0 : 1;
      if (evaluation.predictions != nullptr) {
        std::fprintf(evaluation.predictions, "%.6g\n", losses_[r] / std::log(2.0));
      }
    }
    done += rows;
  }
  Quality quality;
  quality.examples = bytes;
  quality.not_finite = not_finite;
  if (not_finite == 0) quality.bits_per_byte = nats / std::log(2.0) / static_cast<double>(bytes);
  return quality;
}

}  // namespace verbena::worker
