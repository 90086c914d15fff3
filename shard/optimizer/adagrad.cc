// Adagrad (Duchi, Hazan and Singer 2011, figure 1, with the diagonal matrix):
// h += g^2; w -= rate * g / (sqrt(h) + epsilon).
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY AdagradKernelBody(const float* in, float* out, float* squares, const float* g,
                                      float rate, float epsilon, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float h = squares[i] + g[i] * g[i];
    squares[i] = h;
    out[i] = in[i] - rate * g[i] / (std::sqrt(h) + epsilon);
  }
}
VERBENA_KERNEL(AdagradKernel,
               (const float* in, float* out, float* squares, const float* g, float rate,
                float epsilon, size_t n),
               (in, out, squares, g, rate, epsilon, n));

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(double epsilon) : epsilon_(static_cast<float>(epsilon)) {}
  size_t state_arrays() const override { return 1; }
  bool counts_applies() const override { return false; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  bool StaysAtZero() const override { return true; }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    AdagradKernel[static_cast<size_t>(isa)](in, out, state[0], gradient, s.rate, epsilon_, n);
  }

 private:
  float epsilon_;
};

}  // namespace

OptimizerDefinition AdagradOptimizer();
OptimizerDefinition AdagradOptimizer() {
  return {"adagrad",
          Decay::kL2,
          {{"epsilon", 1e-10, 1e-30, 1, false, false}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Adagrad>(values[0]);
          }};
}

}  // namespace verbena::shard
