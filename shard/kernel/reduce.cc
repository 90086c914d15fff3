#include "shard/kernel/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "shard/codec/codec.h"
#include "shard/kernel/convert.h"

namespace verbena::shard {
namespace {

// ivdep: `out` may be an input, but only at the same index, which no vector width can reorder.
VERBENA_KERNEL_BODY Sum2Body(const float* a, const float* b, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
VERBENA_KERNEL_BODY Sum3Body(const float* a, const float* b, const float* c, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = (a[i] + b[i]) + c[i];
}
VERBENA_KERNEL_BODY Sum4Body(const float* a, const float* b, const float* c, const float* d,
                             float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = ((a[i] + b[i]) + c[i]) + d[i];
}
// The same for bf16: adds each to `out`. A bf16 is the upper half of the f32 with its value.
VERBENA_KERNEL_BODY AddBf16Body(const uint16_t* a, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] += std::bit_cast<float>(uint32_t{a[i]} << 16);
}
VERBENA_KERNEL_BODY Add2Bf16Body(const uint16_t* a, const uint16_t* b, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float sum = out[i] + std::bit_cast<float>(uint32_t{a[i]} << 16);
    out[i] = sum + std::bit_cast<float>(uint32_t{b[i]} << 16);
  }
}
VERBENA_KERNEL_BODY DivideBody(const float* in, float divisor, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = in[i] / divisor;
}
// An exponent of all ones (NaN, Inf) plus one carries into the sign bit; no other exponent does.
VERBENA_KERNEL_BODY NonFiniteBody(const float* values, size_t n, uint32_t* carries) {
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    found |= (std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) + 0x00800000u;
  }
  *carries = found;
}
// The exponent of a bf16 lies where the upper half of an f32's does.
VERBENA_KERNEL_BODY NonFiniteBf16Body(const uint16_t* values, size_t n, uint32_t* carries) {
  uint16_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    found = static_cast<uint16_t>(found | ((values[i] & 0x7f80u) + 0x0080u));
  }
  *carries = uint32_t{found} << 16;
}

VERBENA_KERNEL(Sum2, (const float* a, const float* b, float* out, size_t n), (a, b, out, n));
VERBENA_KERNEL(Sum3, (const float* a, const float* b, const float* c, float* out, size_t n),
               (a, b, c, out, n));
VERBENA_KERNEL(Sum4,
               (const float* a, const float* b, const float* c, const float* d, float* out,
                size_t n),
               (a, b, c, d, out, n));
VERBENA_KERNEL(AddBf16, (const uint16_t* a, float* out, size_t n), (a, out, n));
VERBENA_KERNEL(Add2Bf16, (const uint16_t* a, const uint16_t* b, float* out, size_t n),
               (a, b, out, n));
VERBENA_KERNEL(Divide, (const float* in, float divisor, float* out, size_t n),
               (in, divisor, out, n));
VERBENA_KERNEL(NonFinite, (const float* values, size_t n, uint32_t* carries), (values, n, carries));
VERBENA_KERNEL(NonFiniteBf16, (const uint16_t* values, size_t n, uint32_t* carries),
               (values, n, carries));

// The sum if all sources are f32.
void SumFloats(Isa isa, absl::Span<const Source> sources, size_t first, float* out, size_t n) {
  const auto v = static_cast<size_t>(isa);
  const auto at = [&](size_t s) { return sources[s].floats() + first; };

  size_t done = 0;
  switch (sources.size()) {
    case 1:
      if (out != at(0)) std::memcpy(out, at(0), n * sizeof(float));
      return;
    case 2:
      return Sum2[v](at(0), at(1), out, n);
    case 3:
      return Sum3[v](at(0), at(1), at(2), out, n);
    default:
      Sum4[v](at(0), at(1), at(2), at(3), out, n);
      done = 4;
  }
  // The block stays in the first-level cache, so further passes over `out` are cheap.
  while (done < sources.size()) {
    switch (sources.size() - done) {
      case 1:
        Sum2[v](out, at(done), out, n);
        done += 1;
        break;
      case 2:
        Sum3[v](out, at(done), at(done + 1), out, n);
        done += 2;
        break;
      default:
        Sum4[v](out, at(done), at(done + 1), at(done + 2), out, n);
        done += 3;
    }
  }
}

// At most as many decoded numbers are held with a block.
constexpr size_t kDecoded = 512;
static_assert(kDecoded % kCodecBlock == 0);

// out[i] += source[first + i], decoded.
void AddDecoded(Isa isa, const Source& source, size_t first, float* out, size_t n) {
  alignas(64) float decoded[kDecoded];
  for (size_t i = 0; i < n; i += kDecoded) {
    const size_t count = std::min(kDecoded, n - i);
    codec::Decode(isa, source.type, source.bytes(), first + i, decoded, count);
    Sum2[static_cast<size_t>(isa)](out + i, decoded, out + i, count);
  }
}

bool HasNonFiniteDecoded(Isa isa, const Source& values, size_t n) {
  alignas(64) float decoded[kDecoded];
  for (size_t i = 0; i < n; i += kDecoded) {
    uint32_t carries = 0;
    const size_t count = std::min(kDecoded, n - i);
    codec::Decode(isa, values.type, values.bytes(), i, decoded, count);
    NonFinite[static_cast<size_t>(isa)](decoded, count, &carries);
    if ((carries & 0x80000000u) != 0) return true;
  }
  return false;
}

// The block stays in the first-level cache, so a pass for each source or two is cheap.
void SumMixed(Isa isa, absl::Span<const Source> sources, size_t first, float* out, size_t n) {
  const auto v = static_cast<size_t>(isa);
  const auto halves = [&](size_t s) { return sources[s].half_data() + first; };
  if (sources[0].bf16()) {
    FloatsFromBf16(isa, halves(0), out, n);
  } else if (!sources[0].f32()) {
    codec::Decode(isa, sources[0].type, sources[0].bytes(), first, out, n);
  } else if (out != sources[0].floats() + first) {
    std::memcpy(out, sources[0].floats() + first, n * sizeof(float));
  }
  for (size_t done = 1; done < sources.size();) {
    if (sources[done].f32()) {
      Sum2[v](out, sources[done].floats() + first, out, n);
      done += 1;
    } else if (!sources[done].bf16()) {
      AddDecoded(isa, sources[done], first, out, n);
      done += 1;
    } else if (done + 1 < sources.size() && sources[done + 1].bf16()) {
      Add2Bf16[v](halves(done), halves(done + 1), out, n);
      done += 2;
    } else {
      AddBf16[v](halves(done), out, n);
      done += 1;
    }
  }
}

}  // namespace

absl::Span<const Source> Effective(absl::Span<const Source> sources) {
  for (size_t i = sources.size(); i > 0; --i) {
    if (sources[i - 1].assigns) return sources.subspan(i - 1, 1);
  }
  return sources;
}

void SumBlock(Isa isa, absl::Span<const Source> sources, size_t first, float* out, size_t n) {
  const bool mixed = std::any_of(sources.begin(), sources.end(), [](auto& s) { return !s.f32(); });
  return mixed ? SumMixed(isa, sources, first, out, n) : SumFloats(isa, sources, first, out, n);
}

void DivideBlock(Isa isa, const float* in, float divisor, float* out, size_t n) {
  Divide[static_cast<size_t>(isa)](in, divisor, out, n);
}

bool HasNonFinite(Isa isa, const Source& values, size_t n) {
  if (!values.f32() && !values.bf16()) return HasNonFiniteDecoded(isa, values, n);
  const auto v = static_cast<size_t>(isa);
  constexpr size_t kStep = 16384;  // often enough to stop early, seldom enough to be free
  for (size_t i = 0; i < n; i += kStep) {
    uint32_t carries = 0;
    const size_t count = std::min(kStep, n - i);
    if (values.bf16()) {
      NonFiniteBf16[v](values.half_data() + i, count, &carries);
    } else {
      NonFinite[v](values.floats() + i, count, &carries);
    }
    if ((carries & 0x80000000u) != 0) return true;
  }
  return false;
}

}  // namespace verbena::shard
