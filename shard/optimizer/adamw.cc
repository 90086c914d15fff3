// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2). As most
// implementations have it, the decay is multiplied by the rate: weight_decay is the paper's lambda
// divided by its alpha.
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

struct AdamWFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step;        // rate / (1 - beta1^t)
  float inverse_c2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float decay;  // rate * weight_decay; 1 minus it would round most of it away
};

VERBENA_KERNEL_BODY AdamWKernelBody(const float* in, float* out, float* first, float* second,
                                    const float* g, const AdamWFactors& f, size_t n) {
  const AdamWFactors k = f;  // a copy that no store in the loop can alias
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float m = k.beta1 * first[i] + k.one_minus_beta1 * g[i];
    const float v = k.beta2 * second[i] + k.one_minus_beta2 * (g[i] * g[i]);
    first[i] = m;
    second[i] = v;
    const float change = k.step * m / (std::sqrt(v) * k.inverse_c2 + k.epsilon);
    out[i] = in[i] - (change + k.decay * in[i]);
  }
}
VERBENA_KERNEL(AdamWKernel,
               (const float* in, float* out, float* first, float* second, const float* g,
                const AdamWFactors& f, size_t n),
               (in, out, first, second, g, f, n));

class AdamW final : public Optimizer {
 public:
  AdamW(double beta1, double beta2, double epsilon, double weight_decay)
      : beta1_(static_cast<float>(beta1)),
        beta2_(static_cast<float>(beta2)),
        epsilon_(static_cast<float>(epsilon)),
        weight_decay_(weight_decay) {}
  size_t state_arrays() const override { return 2; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t t) const override {
    const auto exponent = static_cast<double>(t);
    const double c1 = 1 - std::pow(double{beta1_}, exponent);
    const double c2 = 1 - std::pow(double{beta2_}, exponent);
    return {
        .rate = static_cast<float>(rate / c1),
        .value = {static_cast<float>(1 / std::sqrt(c2)), static_cast<float>(rate * weight_decay_)}};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    const AdamWFactors factors = {beta1_, 1 - beta1_, beta2_,   1 - beta2_,
                                  s.rate, s.value[0], epsilon_, s.value[1]};
    AdamWKernel[static_cast<size_t>(isa)](in, out, state[0], state[1], gradient, factors, n);
  }

 private:
  // As f32, so that beta and 1 - beta add up to one: rounded apart, they would scale the averages,
  // by 1e-5 for the default beta2.
  float beta1_, beta2_, epsilon_;
  double weight_decay_;
};

}  // namespace

OptimizerDefinition AdamWOptimizer();
OptimizerDefinition AdamWOptimizer() {
  return {"adamw",
          Decay::kNone,
          {{"beta1", 0.9, 0, 1, false, true},
           {"beta2", 0.999, 0, 1, false, true},
           {"epsilon", 1e-8, 1e-30, 1, false, false},
           {"weight_decay", 0.01, 0, 1000, false, false}},
          [](absl::Span<const double> v) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdamW>(v[0], v[1], v[2], v[3]);
          }};
}

}  // namespace verbena::shard
