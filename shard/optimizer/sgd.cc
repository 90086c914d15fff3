// Stochastic gradient descent: w -= rate * g.
#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY SgdKernelBody(const float* in, float* out, const float* g, float rate,
                                  size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = in[i] - rate * g[i];
}
VERBENA_KERNEL(SgdKernel, (const float* in, float* out, const float* g, float rate, size_t n),
               (in, out, g, rate, n));

class Sgd final : public Optimizer {
 public:
  size_t state_arrays() const override { return 0; }
  bool counts_applies() const override { return false; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  bool StaysAtZero() const override { return true; }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const*,
              const float* gradient, size_t n) const override {
    SgdKernel[static_cast<size_t>(isa)](in, out, gradient, s.rate, n);
  }
};

}  // namespace

OptimizerDefinition SgdOptimizer();
OptimizerDefinition SgdOptimizer() {
  return {"sgd", Decay::kL2, {}, [](absl::Span<const double>) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sgd>();
          }};
}

}  // namespace verbena::shard
