// A byte-level neural language model: predicts each byte from the ones before it.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_TEXT_MODEL_H_
#define VERBENA_WORKER_MODELS_TEXT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/byte_set.h"
#include "worker/data/key_index.h"
#include "worker/models/model.h"
#include "worker/models/text_kernels.h"

namespace verbena::worker {

struct TextModelOptions {
  TextShape shape = {.context = 6, .embedding = 32, .hidden = 320};
  double dropout = 0.1;  // share of hidden units left out while training
  double l2 = 0;         // on W1, W2 and S, and on rows once for each use
  // Also add, for each n from 2 to this, the row of an embedding table that belongs to the last n
  // bytes to the softmax's input. 0: no table. At most 7.
  int ngrams = 0;
};

struct TextData {
  ByteSet train, test;  // `test` may be empty
};

class TextModel : public Model {
 public:
  TextModel(TextData data, const TextModelOptions& options,
            const TextKernels& kernels = BestTextKernels());

  const Layout& layout() const override { return layout_; }
  absl::Span<const EmbeddingTable> tables() const override { return tables_; }
  uint64_t examples() const override { return data_.train->size(); }
  bool has_test() const override { return data_.test->size() > 0; }
  InputOrder order() const override { return data_.train->order(); }
  absl::Status Prepare(Batch* batch) override { return Fetch(data_.train, batch); }
  void WillPrepare(absl::Span<const uint64_t> ids) override { data_.train->WillFetch(ids); }
  // An example's dropped units depend on its id and the call's position among the calls alone, so
  // a batch split among workers drops the same ones.
  void ResumeAt(uint64_t step) override { calls_ = step; }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;
  // Predictions are bits: the cost of each test byte.
  absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) override;

 protected:
  TextParameters ParametersAt(const float* arena) const;
  TextGradient GradientAt(float* arena) const;
  // The tensors that L2 is on.
  static absl::Span<const size_t> Penalised();
  // Bytes in front of a position that may matter.
  uint64_t Before() const;
  // The bytes at and before the positions batch->ids, and the n-grams' keys and places.
  absl::Status Fetch(const ByteSet& text, Batch* batch);
  // Fills row `row` of contexts_ and targets_ with an example of the batch.
  void Fill(const Batch& batch, size_t example, size_t row);
  void FillMask(size_t row, uint64_t id);
  void FillKeys(Batch* batch);
  // The rows' part of the softmax's input, for `rows` examples of the batch from `first` on.
  void FillAdded(const Batch& batch, size_t first, size_t rows, const float* table);
  void AddRowGradients(const Batch& batch, double scale, size_t first, size_t rows,
                       const float* table, float* gradients) const;

  TextData data_;
  TextModelOptions options_;
  const TextKernels& kernels_;
  Layout layout_;
  std::vector<EmbeddingTable> tables_;  // none or one
  KeyIndex index_;
  uint64_t calls_ = 0;
  std::vector<float> scratch_;
  float* mask_ = nullptr;
  TextWorkspace workspace_ = {};
  std::vector<uint8_t> contexts_, targets_;
  std::vector<float> losses_, added_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_TEXT_MODEL_H_
