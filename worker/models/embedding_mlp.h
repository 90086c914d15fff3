// Embedding bags and a small network: each field's rows, times their values, are summed; the sums
// and the examples' other numbers go through one hidden layer.
//
//     x = [sum of field 1's rows ... sum of field F's rows, inputs]
//     h = max(0, x W + c)
//     score = h . u + d
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_EMBEDDING_MLP_H_
#define VERBENA_WORKER_MODELS_EMBEDDING_MLP_H_

#include <optional>
#include <vector>

#include "worker/models/keyed_model.h"

namespace verbena::worker {

class EmbeddingMlp : public KeyedModel {
 public:
  EmbeddingMlp(ExampleSet train, std::optional<ExampleSet> test, uint32_t embedding,
               uint32_t hidden, double l2);

 private:
  void Forward(const Batch& batch, const Parameters& parameters,
               std::vector<double>* scores) override;
  void Backward(const Batch& batch, const Parameters& parameters, const std::vector<double>& errors,
                const Gradients& gradients) override;
  // Where the bag of feature k of an example begins in its x.
  size_t BagOf(size_t k_in_example) const { return fields() == 1 ? 0 : k_in_example * dim(); }

  size_t hidden_;
  size_t width_;                        // of x
  std::vector<float> x_, h_, dx_, dh_;  // a row an example
  std::vector<float> transposed_;       // W
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_EMBEDDING_MLP_H_
