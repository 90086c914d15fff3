#include "shard/table/initializer.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace verbena::shard {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): counter in, 64 random bits out.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t Bits(uint64_t seed, uint64_t index) {
  return Mix(Mix(seed + 0x9e3779b97f4a7c15u) + index * 0x9e3779b97f4a7c15u);
}

// Natural logarithm of a normal positive number: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and
// log(m) = 2 artanh((m - 1) / (m + 1)) by its series; the ratio is below 0.172, so the first
// omitted term is below 1e-17.
double Log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.41421356237309504880) {
    m /= 2;
    ++exponent;
  }
  const double r = (m - 1) / (m + 1);
  const double square = r * r;
  double series = 0;
  for (int k = 21; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return exponent * kLn2 + 2 * r * series;
}

double Polynomial(const double (&c)[8], double x) {
  double sum = c[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

}  // namespace

// Algorithm AS 241, PPND16 (Wichura, Applied Statistics 37, 1988): relative error about 1e-16.
double InverseNormal(double p) {
  static constexpr double kA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                   1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                   4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                   3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double kB[8] = {1.0,
                                   4.2313330701600911252e+1,
                                   6.8718700749205790830e+2,
                                   5.3941960214247511077e+3,
                                   2.1213794301586595867e+4,
                                   3.9307895800092710610e+4,
                                   2.8729085735721942674e+4,
                                   5.2264952788528545610e+3};
  static constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                   1.78482653991729133580e0,  2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial(kA, r) / Polynomial(kB, r);
  }
  const double r = std::sqrt(-Log(std::min(p, 1 - p)));
  const double tail = r <= 5 ? Polynomial(kC, r - 1.6) / Polynomial(kD, r - 1.6)
                             : Polynomial(kE, r - 5) / Polynomial(kF, r - 5);
  return q < 0 ? -tail : tail;
}

namespace {

void InitializeFrom(const v1::Initializer& initializer, uint64_t seed, uint64_t first, float* out,
                    size_t n) {
  const double a = initializer.a();
  const double b = initializer.b();
  switch (initializer.kind()) {
    case v1::Initializer::CONSTANT:
      std::fill_n(out, n, static_cast<float>(a));
      return;
    case v1::Initializer::UNIFORM: {
      // Rounding to float may reach b, which does not belong to the range.
      const float below = std::nextafter(static_cast<float>(b), static_cast<float>(a));
      for (size_t i = 0; i < n; ++i) {
        const double u = static_cast<double>(Bits(seed, first + i) >> 11) * 0x1p-53;
        const float value = static_cast<float>(a + (b - a) * u);
        out[i] = value < static_cast<float>(b) ? value : below;
      }
      return;
    }
    case v1::Initializer::NORMAL:
      for (size_t i = 0; i < n; ++i) {
        const double u = (static_cast<double>(Bits(seed, first + i) >> 12) + 0.5) * 0x1p-52;
        out[i] = static_cast<float>(a + b * InverseNormal(u));
      }
      return;
    default:
      std::fill_n(out, n, 0.0f);
  }
}

}  // namespace

bool IsZero(const v1::Initializer& initializer) {
  switch (initializer.kind()) {
    case v1::Initializer::CONSTANT:
      return initializer.a() == 0 && !std::signbit(initializer.a());
    case v1::Initializer::UNIFORM:
    case v1::Initializer::NORMAL:
      return false;
    default:
      return true;
  }
}

void Initialize(const v1::Initializer& initializer, uint64_t first, float* out, size_t n) {
  InitializeFrom(initializer, initializer.seed(), first, out, n);
}

void InitializeRow(const v1::Initializer& initializer, uint64_t key, float* out, size_t dim) {
  // Not Bits(seed, key), which is an element of a dense table with this seed.
  const uint64_t seed = Mix(Mix(initializer.seed() ^ 0xd1b54a32d192ed03u) + Mix(key));
  InitializeFrom(initializer, seed, 0, out, dim);
}

}  // namespace verbena::shard
