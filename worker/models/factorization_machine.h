// Factorization machine: a linear model and, between every two features of an example, the product
// of their values times the scalar product of their factors (Rendle, ICDM 2010).
//
//     score = b + sum_i w_i x_i + sum_{i<j} (v_i . v_j) x_i x_j
//
// A row is w_i and then v_i. With no factors it is logistic regression through an embedding table.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_FACTORIZATION_MACHINE_H_
#define VERBENA_WORKER_MODELS_FACTORIZATION_MACHINE_H_

#include <optional>
#include <vector>

#include "worker/models/keyed_model.h"

namespace verbena::worker {

class FactorizationMachine : public KeyedModel {
 public:
  FactorizationMachine(ExampleSet train, std::optional<ExampleSet> test, uint32_t factors,
                       double l2);

 private:
  void Forward(const Batch& batch, const Parameters& parameters,
               std::vector<double>* scores) override;
  void Backward(const Batch& batch, const Parameters& parameters, const std::vector<double>& errors,
                const Gradients& gradients) override;

  // Set by Forward(), for each example: sum_i v_i x_i.
  std::vector<float> sums_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_FACTORIZATION_MACHINE_H_
