// LAMB (You et al. 2020, algorithm 2), with phi the identity and a table for the paper's layer:
// Adam's bias-corrected averages make the update u = m / (sqrt(v) + epsilon) + weight_decay * w,
// and w -= rate * (|w| / |u|) * u. The ratio of the norms is 1 where one of them is zero.
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

struct LambFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_c1;  // 1 / (1 - beta1^t)
  float inverse_c2;  // 1 / sqrt(1 - beta2^t)
  float epsilon, decay;
  float step;  // rate * trust ratio
};

VERBENA_KERNEL_BODY LambKernelBody(const float* in, float* out, float* first, float* second,
                                   const float* g, const LambFactors& f, size_t n) {
  const LambFactors k = f;  // a copy that no store in the loop can alias
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float m = k.beta1 * first[i] + k.one_minus_beta1 * g[i];
    const float v = k.beta2 * second[i] + k.one_minus_beta2 * (g[i] * g[i]);
    first[i] = m;
    second[i] = v;
    const float u = k.inverse_c1 * m / (std::sqrt(v) * k.inverse_c2 + k.epsilon) + k.decay * in[i];
    out[i] = in[i] - k.step * u;
  }
}
// The same, to where nothing of it is kept.
VERBENA_KERNEL_BODY LambDirectionBody(const float* in, float* out, const float* first,
                                      const float* second, const float* g, const LambFactors& f,
                                      size_t n) {
  const LambFactors k = f;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float m = k.beta1 * first[i] + k.one_minus_beta1 * g[i];
    const float v = k.beta2 * second[i] + k.one_minus_beta2 * (g[i] * g[i]);
    out[i] = k.inverse_c1 * m / (std::sqrt(v) * k.inverse_c2 + k.epsilon) + k.decay * in[i];
  }
}
VERBENA_KERNEL(LambKernel,
               (const float* in, float* out, float* first, float* second, const float* g,
                const LambFactors& f, size_t n),
               (in, out, first, second, g, f, n));
VERBENA_KERNEL(LambDirection,
               (const float* in, float* out, const float* first, const float* second,
                const float* g, const LambFactors& f, size_t n),
               (in, out, first, second, g, f, n));

class Lamb final : public Optimizer {
 public:
  Lamb(double beta1, double beta2, double epsilon, double decay)
      : beta1_(static_cast<float>(beta1)),
        beta2_(static_cast<float>(beta2)),
        epsilon_(static_cast<float>(epsilon)),
        decay_(static_cast<float>(decay)) {}
  size_t state_arrays() const override { return 2; }
  bool has_trust_ratio() const override { return true; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t t) const override {
    const auto exponent = static_cast<double>(t);
    const double c1 = 1 - std::pow(double{beta1_}, exponent);
    const double c2 = 1 - std::pow(double{beta2_}, exponent);
    return {.rate = static_cast<float>(rate),
            .value = {static_cast<float>(1 / c1), static_cast<float>(1 / std::sqrt(c2))}};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    LambKernel[static_cast<size_t>(isa)](in, out, state[0], state[1], gradient, Factors(s), n);
  }
  void Direction(Isa isa, const ApplyScalars& s, const float* in, const float* const* state,
                 const float* gradient, float* out, size_t n) const override {
    LambDirection[static_cast<size_t>(isa)](in, out, state[0], state[1], gradient, Factors(s), n);
  }

 private:
  LambFactors Factors(const ApplyScalars& s) const {
    return {beta1_,     1 - beta1_, beta2_, 1 - beta2_,      s.value[0],
            s.value[1], epsilon_,   decay_, s.rate * s.trust};
  }

  float beta1_, beta2_, epsilon_, decay_;  // as f32: see adam.cc
};

}  // namespace

OptimizerDefinition LambOptimizer();
OptimizerDefinition LambOptimizer() {
  return {"lamb",
          Decay::kNone,
          {{"beta1", 0.9, 0, 1, false, true},
           {"beta2", 0.999, 0, 1, false, true},
           {"epsilon", 1e-6, 1e-30, 1, false, false},
           {"weight_decay", 0.01, 0, 1000, false, false}},
          [](absl::Span<const double> v) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Lamb>(v[0], v[1], v[2], v[3]);
          }};
}

}  // namespace verbena::shard
