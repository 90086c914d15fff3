// Adam (Kingma and Ba 2015, algorithm 1), with bias correction by the number of applies; and AdamW,
// the same with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2). As in most
// implementations, that decay is multiplied by the rate: weight_decay is the paper's lambda divided
// by its alpha. With bias_correction 0 the caller corrects by the rate of each step.
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

struct AdamFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step;        // rate / (1 - beta1^t)
  float inverse_c2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

VERBENA_KERNEL_BODY AdamKernelBody(const float* in, float* out, float* first, float* second,
                                   const float* g, const AdamFactors& f, size_t n) {
  const AdamFactors k = f;  // a copy that no store in the loop can alias
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float m = k.beta1 * first[i] + k.one_minus_beta1 * g[i];
    const float v = k.beta2 * second[i] + k.one_minus_beta2 * (g[i] * g[i]);
    first[i] = m;
    second[i] = v;
    out[i] = in[i] - k.step * m / (std::sqrt(v) * k.inverse_c2 + k.epsilon);
  }
}
VERBENA_KERNEL(AdamKernel,
               (const float* in, float* out, float* first, float* second, const float* g,
                const AdamFactors& f, size_t n),
               (in, out, first, second, g, f, n));

class Adam final : public Optimizer {
 public:
  Adam(double beta1, double beta2, double epsilon, double bias_correction)
      : beta1_(static_cast<float>(beta1)),
        beta2_(static_cast<float>(beta2)),
        epsilon_(static_cast<float>(epsilon)),
        bias_correction_(bias_correction) {}
  size_t state_arrays() const override { return 2; }

 protected:
  ApplyScalars Scalars(double rate, uint64_t t) const override {
    const auto exponent = static_cast<double>(t);
    const double c1 = 1 - bias_correction_ * std::pow(double{beta1_}, exponent);
    const double c2 = 1 - bias_correction_ * std::pow(double{beta2_}, exponent);
    return {.rate = static_cast<float>(rate / c1),
            .value = {static_cast<float>(1 / std::sqrt(c2))}};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    const AdamFactors factors = {beta1_, 1 - beta1_, beta2_,  1 - beta2_,
                                 s.rate, s.value[0], epsilon_};
    AdamKernel[static_cast<size_t>(isa)](in, out, state[0], state[1], gradient, factors, n);
  }

 private:
  // Computed as f32, so that beta and 1 - beta add up to one: if rounded separately, they would
  // scale the averages, by 1e-5 for the default beta2.
  float beta1_, beta2_, epsilon_;
  double bias_correction_;
};

OptimizerDefinition Definition(const char* name, Decay decay) {
  return {name,
          decay,
          {{"beta1", 0.9, 0, 1, false, true},
           {"beta2", 0.999, 0, 1, false, true},
           {"epsilon", 1e-8, 1e-30, 1, false, false},
           {"bias_correction", 1, 0, 1, false, false}},
          [](absl::Span<const double> v) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Adam>(v[0], v[1], v[2], v[3]);
          }};
}

}  // namespace

OptimizerDefinition AdamOptimizer();
OptimizerDefinition AdamOptimizer() { return Definition("adam", Decay::kL2); }

OptimizerDefinition AdamWOptimizer();
OptimizerDefinition AdamWOptimizer() { return Definition("adamw", Decay::kDecoupled); }

}  // namespace verbena::shard
