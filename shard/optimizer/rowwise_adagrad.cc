// Row-wise Adagrad for embedding tables (Mudigere et al., ISCA 2022, FBGEMM's
// EXACT_ROWWISE_ADAGRAD): all of a row share the accumulated square, which is a mean over the row:
// h += |g|^2 / dim; w -= rate * g / (sqrt(h) + epsilon). One number of state instead of dim.
#include <cmath>

#include "shard/kernel/gradient.h"
#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

class RowwiseAdagrad final : public Optimizer {
 public:
  explicit RowwiseAdagrad(double epsilon) : epsilon_(static_cast<float>(epsilon)) {}
  size_t state_arrays() const override { return 1; }
  bool counts_applies() const override { return false; }
  bool row_wise() const override { return true; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  bool StaysAtZero() const override { return true; }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    SquaredNorm norm;
    norm.Add(isa, gradient, n);
    const float h = state[0][0] + static_cast<float>(norm.Total() / static_cast<double>(n));
    state[0][0] = h;
    AddScaledBlock(isa, in, -(s.rate / (std::sqrt(h) + epsilon_)), gradient, out, n);
  }

 private:
  float epsilon_;
};

}  // namespace

OptimizerDefinition RowwiseAdagradOptimizer();
OptimizerDefinition RowwiseAdagradOptimizer() {
  return {"rowwise_adagrad",
          Decay::kL2,
          {{"epsilon", 1e-8, 1e-30, 1, false, false}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<RowwiseAdagrad>(values[0]);
          }};
}

}  // namespace verbena::shard
