// Heavy-ball momentum (Polyak 1964, in the form of Sutskever et al. 2013 without the dampening):
// v = momentum * v + g; w -= rate * v.
#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY MomentumKernelBody(const float* in, float* out, float* velocity, const float* g,
                                       float rate, float momentum, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float v = momentum * velocity[i] + g[i];
    velocity[i] = v;
    out[i] = in[i] - rate * v;
  }
}
VERBENA_KERNEL(MomentumKernel,
               (const float* in, float* out, float* velocity, const float* g, float rate,
                float momentum, size_t n),
               (in, out, velocity, g, rate, momentum, n));

class Momentum final : public Optimizer {
 public:
  explicit Momentum(double momentum) : momentum_(static_cast<float>(momentum)) {}
  size_t state_arrays() const override { return 1; }
  bool counts_applies() const override { return false; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    MomentumKernel[static_cast<size_t>(isa)](in, out, state[0], gradient, s.rate, momentum_, n);
  }

 private:
  float momentum_;
};

}  // namespace

OptimizerDefinition MomentumOptimizer();
OptimizerDefinition MomentumOptimizer() {
  return {"momentum",
          Decay::kL2AndDecoupled,
          {{"momentum", 0.9, 0, 1, false, true}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Momentum>(values[0]);
          }};
}

}  // namespace verbena::shard
