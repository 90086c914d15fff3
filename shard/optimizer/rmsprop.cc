// RMSProp (Tieleman and Hinton 2012, lecture 6.5 of Neural Networks for Machine Learning), with an
// epsilon that keeps the first steps finite: v = decay * v + (1 - decay) * g^2;
// w -= rate * g / (sqrt(v) + epsilon).
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

struct RmspropFactors {
  float rate, decay, one_minus_decay, epsilon;
};

VERBENA_KERNEL_BODY RmspropKernelBody(const float* in, float* out, float* squares, const float* g,
                                      const RmspropFactors& f, size_t n) {
  const RmspropFactors k = f;  // a copy that no store in the loop can alias
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float v = k.decay * squares[i] + k.one_minus_decay * (g[i] * g[i]);
    squares[i] = v;
    out[i] = in[i] - k.rate * g[i] / (std::sqrt(v) + k.epsilon);
  }
}
VERBENA_KERNEL(RmspropKernel,
               (const float* in, float* out, float* squares, const float* g,
                const RmspropFactors& f, size_t n),
               (in, out, squares, g, f, n));

class Rmsprop final : public Optimizer {
 public:
  Rmsprop(double decay, double epsilon)
      : decay_(static_cast<float>(decay)), epsilon_(static_cast<float>(epsilon)) {}
  size_t state_arrays() const override { return 1; }
  bool counts_applies() const override { return false; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    const RmspropFactors factors = {s.rate, decay_, 1 - decay_, epsilon_};
    RmspropKernel[static_cast<size_t>(isa)](in, out, state[0], gradient, factors, n);
  }

 private:
  float decay_, epsilon_;
};

}  // namespace

OptimizerDefinition RmspropOptimizer();
OptimizerDefinition RmspropOptimizer() {
  return {"rmsprop",
          Decay::kL2,
          {{"decay", 0.9, 0, 1, false, true}, {"epsilon", 1e-8, 1e-30, 1, false, false}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Rmsprop>(values[0], values[1]);
          }};
}

}  // namespace verbena::shard
