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
  explicit Sgd(double rate) : rate_(static_cast<float>(rate)) {}
  size_t state_arrays() const override { return 0; }
  ApplyScalars Prepare(uint64_t) const override { return {rate_, {}}; }
  bool ignores_zero() const override { return true; }
  void Apply(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const*,
             const float* gradient, size_t n) const override {
    SgdKernel[static_cast<size_t>(isa)](in, out, gradient, s.rate, n);
  }

 private:
  float rate_;
};

}  // namespace

OptimizerDefinition SgdOptimizer();
OptimizerDefinition SgdOptimizer() {
  return {"sgd", {}, [](double rate, absl::Span<const double>) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sgd>(rate);
          }};
}

}  // namespace verbena::shard
