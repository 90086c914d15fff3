// FTRL-proximal (McMahan et al. 2013, algorithm 1), alpha being the rate:
//
//     sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z += g - sigma * w;  n += g^2
//     w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / alpha + l2)
//
// w is a function of z and n alone: after the first apply, an initial value lives on in z only.
// Where w is assigned, z becomes the value that gives that w.
//
// Under a schedule alpha_t is the rate of the t-th apply, and
//
//     sigma_t = (beta + sqrt(n_t)) / alpha_t - (beta + sqrt(n_(t-1))) / alpha_(t-1)
//
// so that all sigmas add up to the divisor of z in w. The previous apply of a row had the rate of
// an earlier step of its partition, which is not stored. But w, z and l2 give the old sum, and with
// it
// z - sigma * w = (z clamped to [-l1, l1]) - ((beta + sqrt(n_t)) / alpha_t + l2) * w.
#include <algorithm>
#include <cmath>

#include "shard/optimizer/optimizer.h"

namespace verbena::shard {
namespace {

struct FtrlFactors {
  float alpha, beta, l1, l2;
};

VERBENA_KERNEL_BODY FtrlKernelBody(const float* in, float* out, float* linear, float* squares,
                                   const float* g, const FtrlFactors& f, size_t n) {
  const FtrlFactors k = f;  // a copy that no store in the loop can alias
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float sum = squares[i] + g[i] * g[i];
    const float root = std::sqrt(sum);
    const float sigma = (root - std::sqrt(squares[i])) / k.alpha;
    const float z = linear[i] + (g[i] - sigma * in[i]);
    squares[i] = sum;
    linear[i] = z;
    // l1 removes the part of z within [-l1, l1]; a NaN stays a NaN.
    const float below = z > k.l1 ? k.l1 : z;
    const float taken = below < -k.l1 ? -k.l1 : below;
    out[i] = -(z - taken) / ((k.beta + root) / k.alpha + k.l2);
  }
}
// Where the rate changes. The first apply has no rate before it: beta cancels out there.
VERBENA_KERNEL_BODY FtrlScheduledBody(const float* in, float* out, float* linear, float* squares,
                                      const float* g, const FtrlFactors& f, size_t n) {
  const FtrlFactors k = f;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float sum = squares[i] + g[i] * g[i];
    const float root = std::sqrt(sum);
    const float divisor = (k.beta + root) / k.alpha + k.l2;
    const bool first = squares[i] == 0 && linear[i] == 0;
    const float under = linear[i] > k.l1 ? k.l1 : linear[i];
    const float kept = under < -k.l1 ? -k.l1 : under;
    const float z = kept + (g[i] - (first ? root / k.alpha : divisor) * in[i]);
    squares[i] = sum;
    linear[i] = z;
    const float below = z > k.l1 ? k.l1 : z;
    const float taken = below < -k.l1 ? -k.l1 : below;
    out[i] = -(z - taken) / divisor;
  }
}
VERBENA_KERNEL(FtrlScheduled,
               (const float* in, float* out, float* linear, float* squares, const float* g,
                const FtrlFactors& f, size_t n),
               (in, out, linear, squares, g, f, n));
VERBENA_KERNEL_BODY FtrlAssignedBody(const float* w, float* linear, const float* squares,
                                     const FtrlFactors& f, size_t n) {
  const FtrlFactors k = f;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    const float divisor = (k.beta + std::sqrt(squares[i])) / k.alpha + k.l2;
    const float taken = w[i] > 0 ? -k.l1 : w[i] < 0 ? k.l1 : 0.0f;
    linear[i] = taken - divisor * w[i];
  }
}
VERBENA_KERNEL(FtrlAssigned,
               (const float* w, float* linear, const float* squares, const FtrlFactors& f,
                size_t n),
               (w, linear, squares, f, n));
VERBENA_KERNEL(FtrlKernel,
               (const float* in, float* out, float* linear, float* squares, const float* g,
                const FtrlFactors& f, size_t n),
               (in, out, linear, squares, g, f, n));

class Ftrl final : public Optimizer {
 public:
  Ftrl(double beta, double l1, double l2)
      : beta_(static_cast<float>(beta)), l1_(static_cast<float>(l1)), l2_(static_cast<float>(l2)) {}
  size_t state_arrays() const override { return 2; }
  bool counts_applies() const override { return false; }
  void Assigned(Isa isa, const ApplyScalars& s, const float* parameters, float* const* state,
                size_t n) const override {
    if (s.rate == 0) return;
    const FtrlFactors factors = {s.rate, beta_, l1_, l2_};
    FtrlAssigned[static_cast<size_t>(isa)](parameters, state[0], state[1], factors, n);
  }

 protected:
  ApplyScalars Scalars(double rate, uint64_t) const override {
    return {.rate = static_cast<float>(rate)};
  }
  void Update(Isa isa, const ApplyScalars& s, const float* in, float* out, float* const* state,
              const float* gradient, size_t n) const override {
    if (s.rate == 0) {  // nothing is learned, and nothing can be divided by it
      if (out != in) std::copy_n(in, n, out);
      return;
    }
    const FtrlFactors factors = {s.rate, beta_, l1_, l2_};
    const auto& kernel = s.rate_changes ? FtrlScheduled : FtrlKernel;
    kernel[static_cast<size_t>(isa)](in, out, state[0], state[1], gradient, factors, n);
  }

 private:
  float beta_, l1_, l2_;
};

}  // namespace

OptimizerDefinition FtrlOptimizer();
OptimizerDefinition FtrlOptimizer() {
  return {"ftrl",
          Decay::kNone,
          {{"beta", 1, 1e-30, 1e30, false, false},
           {"l1", 0, 0, 1e30, false, false},
           {"l2", 0, 0, 1e30, false, false}},
          [](absl::Span<const double> values) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Ftrl>(values[0], values[1], values[2]);
          }};
}

}  // namespace verbena::shard
