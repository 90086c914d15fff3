// Nesterov's accelerated gradient (Nesterov 1983; Sutskever et al. 2013, equations 3 and 4), for
// weights kept where the gradient is taken, ahead by one momentum step (Bengio et al. 2013,
// section 3.5): v = momentum * v + g; w -= rate * (g + momentum * v).
#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY NesterovKernelBody(const float* in, float* out, float* velocity, const float* g,
                                       float rate, float momentum, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float v = momentum * velocity[i] + g[i];
    velocity[i] = v;
    out[i] = in[i] - rate * (g[i] + momentum * v);
  }
}
VERBENA_KERNEL(NesterovKernel,
               (const float* in, float* out, float* velocity, const float* g, float rate,
                float momentum, size_t n),
               (in, out, velocity, g, rate, momentum, n));

class Nesterov final : public Optimizer {
 public:
  explicit Nesterov(double momentum) : momentum_(static_cast<float>(momentum)) {}
  size_t state_arrays() const override { return 1; }
  bool counts_applies() const override { return false; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    NesterovKernel[static_cast<size_t>(isa)](in, out, state[0], gradient, s.rate, momentum_, n);
  }

 private:
  float momentum_;
};

}  // namespace

OptimizerDefinition NesterovOptimizer();
OptimizerDefinition NesterovOptimizer() {
  return {"nesterov",
          Decay::kL2AndDecoupled,
          {{"momentum", 0.9, 0, 1, false, true}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Nesterov>(values[0]);
          }};
}

}  // namespace verbena::shard
