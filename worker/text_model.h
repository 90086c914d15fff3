// A byte-level neural language model: predicts each byte from the ones before it.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_TEXT_MODEL_H_
#define VERBENA_WORKER_TEXT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/key_index.h"
#include "worker/model.h"
#include "worker/text_kernels.h"

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
  std::string train, test;
};

// The files of `data` one after the other; `test` likewise, or, when there are none, the last
// `holdout` share of the bytes of `data`. INVALID_ARGUMENT for an empty file or part.
absl::StatusOr<TextData> ReadText(const std::vector<std::string>& data,
                                  const std::vector<std::string>& test, double holdout);

class TextModel : public Model {
 public:
  TextModel(TextData data, const TextModelOptions& options,
            const TextKernels& kernels = BestTextKernels());

  const Layout& layout() const override { return layout_; }
  absl::Span<const EmbeddingTable> tables() const override { return tables_; }
  uint64_t examples() const override { return data_.train.size(); }
  bool has_test() const override { return !data_.test.empty(); }
  void Prepare(Batch* batch) override { FillKeys(data_.train, batch); }
  // An example's dropped units depend on its id and the call's position among the calls alone, so
  // a batch split among workers drops the same ones.
  void ResumeAt(uint64_t step) override { calls_ = step; }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;
  // Predictions are bits: what each test byte costs.
  absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) override;

 protected:
  TextParameters ParametersAt(const float* arena) const;
  TextGradient GradientAt(float* arena) const;
  // The tensors that L2 is on.
  static absl::Span<const size_t> Penalised();
  // Fills contexts_ and targets_ with rows of `text`; bytes before its start are zero.
  void Fill(const std::string& text, size_t row, uint64_t position);
  void FillMask(size_t row, uint32_t id);
  // Keys and places of the n-grams before the positions batch->ids.
  void FillKeys(const std::string& text, Batch* batch);
  // What the rows add to the softmax's input, for `rows` examples of the batch from `first` on.
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

#endif  // VERBENA_WORKER_TEXT_MODEL_H_
