// A block is divided into 64 parts, and the 20th largest of the parts' maxima is a bound. At least
// 20 numbers are not below it; for numbers in random order, hardly more. These few are ranked by
// counting the greater ones. Every loop over the block has a fixed length, no branch and no order,
// so it is vectorised.
#include "shard/codec/top_k.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "proto/wire/record.h"

#define VERBENA_TOP_K_BODY [[gnu::always_inline]] inline

namespace verbena::codec {
namespace {

constexpr size_t kBlock = kTopKBlock;
constexpr size_t kKept = kTopKKept;
constexpr size_t kBytes = CodecBlockBytes(ElementType::kTopK);
constexpr size_t kColumns = 64;
constexpr size_t kRows = kBlock / kColumns;
// At most as many are ranked; where the bound leaves more it is raised.
constexpr size_t kMostRanked = 64;
constexpr uint16_t kNoPlace = 0xffff;
static_assert(kRows == 32 && kBlock % kCodecBlock == 0 && kKept <= kColumns);

// Ordered as magnitudes are; a NaN's is more than any number's.
VERBENA_TOP_K_BODY int32_t Magnitude(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

VERBENA_TOP_K_BODY bool Finite(float x) { return Magnitude(x) < 0x7f800000; }

// sum = in + residual. The residual becomes the sum, as if nothing travelled.
VERBENA_TOP_K_BODY void AddResidual(const float* in, float* residual, float* sum) {
#pragma GCC ivdep
  for (size_t i = 0; i < kBlock; ++i) {
    const float x = in[i] + residual[i];
    sum[i] = x;
    residual[i] = Finite(x) ? x : residual[i];
  }
}

// The maximum of each of kColumns parts of the block. A part has four adjacent numbers of every
// 256. So values that repeat every 64, such as the columns of a matrix, are spread over several
// parts.
VERBENA_TOP_K_BODY void GreatestOfParts(const float* x, int32_t* most) {
  constexpr size_t kWide = 4 * kColumns;
  int32_t wide[kWide] = {};
  for (size_t r = 0; r < kBlock; r += kWide) {
    for (size_t c = 0; c < kWide; ++c) {
      const int32_t m = Magnitude(x[r + c]);
      wide[c] = wide[c] > m ? wide[c] : m;
    }
  }
  for (size_t c = 0; c < kColumns; ++c) {
    const int32_t a = wide[4 * c], b = wide[4 * c + 1], d = wide[4 * c + 2], e = wide[4 * c + 3];
    const int32_t ab = a > b ? a : b, de = d > e ? d : e;
    most[c] = ab > de ? ab : de;
  }
}

// The kKept-th greatest of `most`.
VERBENA_TOP_K_BODY int32_t BoundOf(const int32_t* most) {
  int32_t greater[kColumns] = {};
  for (size_t i = 0; i < kColumns; ++i) {
    const int32_t m = most[i];
    for (size_t k = 0; k < kColumns; ++k) greater[k] += m > most[k] ? 1 : 0;
  }
  int32_t bound = std::numeric_limits<int32_t>::max();
  for (size_t k = 0; k < kColumns; ++k) {
    const bool among = greater[k] < static_cast<int32_t>(kKept);
    bound = among && most[k] < bound ? most[k] : bound;
  }
  return bound;
}

// Returns a bound that at least kKept numbers reach, and at most kMostRanked, unless it is the
// kKept-th greatest magnitude itself. At least kKept numbers reach `low`, but perhaps too many;
// `high` is the greatest.
VERBENA_TOP_K_BODY int32_t Raised(const float* x, int32_t low, int32_t high) {
  // Where `low` is right, as that of a block that is mostly zeros, one look is enough.
  for (int32_t step = 1; low < high; step = (high - low) / 2 + 1) {
    const int32_t next = low + step;
    int32_t count = 0;
    for (size_t i = 0; i < kBlock; ++i) count += Magnitude(x[i]) >= next ? 1 : 0;
    if (count < static_cast<int32_t>(kKept)) {
      high = next - 1;
    } else {
      low = next;
      if (count <= static_cast<int32_t>(kMostRanked)) break;
    }
  }
  return low;
}

struct Ranked {
  size_t count = 0;
  int32_t magnitude[kMostRanked];
  int32_t place[kMostRanked];
};

// Collects the numbers greater than `bound`. False: there are more than can be ranked.
VERBENA_TOP_K_BODY bool Collect(const float* x, int32_t bound, Ranked* found) {
  uint32_t rows[kColumns] = {};
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kColumns; ++c) {
      rows[c] |= static_cast<uint32_t>(Magnitude(x[r * kColumns + c]) > bound) << r;
    }
  }
  uint64_t columns = 0;
  for (size_t c = 0; c < kColumns; ++c) columns |= static_cast<uint64_t>(rows[c] != 0) << c;
  found->count = 0;
  for (; columns != 0; columns &= columns - 1) {
    const auto c = static_cast<size_t>(std::countr_zero(columns));
    for (uint32_t left = rows[c]; left != 0; left &= left - 1) {
      if (found->count == kMostRanked) return false;
      const size_t place = static_cast<size_t>(std::countr_zero(left)) * kColumns + c;
      found->magnitude[found->count] = Magnitude(x[place]);
      found->place[found->count++] = static_cast<int32_t>(place);
    }
  }
  return true;
}

// The first of those whose magnitude is `bound`, until there are kKept.
VERBENA_TOP_K_BODY void CollectEqual(const float* x, int32_t bound, Ranked* found) {
  for (size_t i = 0; i < kBlock && found->count < kKept; ++i) {
    if (Magnitude(x[i]) != bound) continue;
    found->magnitude[found->count] = bound;
    found->place[found->count++] = static_cast<int32_t>(i);
  }
}

// The places of the kKept first by magnitude, then place; they ascend.
VERBENA_TOP_K_BODY void Rank(const Ranked& found, uint16_t* places) {
  int32_t before[kMostRanked] = {};
  for (size_t i = 0; i < found.count; ++i) {
    const int32_t m = found.magnitude[i], p = found.place[i];
    for (size_t k = 0; k < kMostRanked; ++k) {
      const int32_t greater = m > found.magnitude[k] ? 1 : 0;
      const int32_t equal = m == found.magnitude[k] ? 1 : 0;
      before[k] += greater | (equal & (p < found.place[k] ? 1 : 0));
    }
  }
  constexpr size_t kRoom = 32;
  static_assert(kKept < kRoom);
  int32_t kept[kRoom] = {}, position[kRoom] = {};
  for (size_t i = 0; i < found.count; ++i) {
    kept[std::min(before[i], static_cast<int32_t>(kKept))] = found.place[i];
  }
  for (size_t i = 0; i < kKept; ++i) {
    const int32_t p = kept[i];
    for (size_t k = 0; k < kRoom; ++k) position[k] += p < kept[k] ? 1 : 0;
  }
  for (size_t i = 0; i < kKept; ++i) places[position[i]] = static_cast<uint16_t>(kept[i]);
}

VERBENA_TOP_K_BODY void Select(const float* x, uint16_t* places) {
  alignas(64) int32_t most[kColumns];
  Ranked found;
  std::memset(found.magnitude, 0, sizeof(found.magnitude));
  std::memset(found.place, 0, sizeof(found.place));
  GreatestOfParts(x, most);
  int32_t bound = BoundOf(most);
  if (!Collect(x, bound - 1, &found)) {
    int32_t greatest = 0;
    for (size_t c = 0; c < kColumns; ++c) greatest = greatest > most[c] ? greatest : most[c];
    bound = Raised(x, bound, greatest);
    if (!Collect(x, bound - 1, &found)) {
      Collect(x, bound, &found);  // less than kKept
      CollectEqual(x, bound, &found);
    }
  }
  Rank(found, places);
}

// Encodes one block, padded with zeros after its n numbers.
VERBENA_TOP_K_BODY void EncodeBlock(const float* in, float* residual, std::byte* out, size_t n) {
  alignas(64) float sum[kBlock];
  const float* x = in;
  if (residual != nullptr) {
    AddResidual(in, residual, sum);
    x = sum;
  }
  uint16_t places[kKept];
  Select(x, places);
  float values[kKept];
  for (size_t i = 0; i < kKept; ++i) {
    const size_t place = places[i];
    values[i] = x[place];
    if (residual != nullptr && Finite(values[i])) residual[place] = 0;
    // Places beyond n are selected last.
    if (place >= n) places[i] = kNoPlace;
  }
  std::memcpy(out, values, sizeof(values));
  std::memcpy(out + sizeof(values), places, sizeof(places));
}

VERBENA_TOP_K_BODY void EncodeAll(const float* in, float* residual, std::byte* out, size_t n) {
  size_t i = 0;
  for (; i + kBlock <= n; i += kBlock, out += kBytes) {
    EncodeBlock(in + i, residual == nullptr ? nullptr : residual + i, out, kBlock);
  }
  if (i == n) return;
  const size_t left = n - i;
  float last[kBlock] = {}, last_residual[kBlock] = {};
  std::memcpy(last, in + i, left * sizeof(float));
  if (residual != nullptr) std::memcpy(last_residual, residual + i, left * sizeof(float));
  EncodeBlock(last, residual == nullptr ? nullptr : last_residual, out, left);
  if (residual != nullptr) std::memcpy(residual + i, last_residual, left * sizeof(float));
}

using Encoder = void (*)(const float*, float*, std::byte*, size_t);

#define VERBENA_TOP_K(Name, attribute)                                              \
  attribute void Name(const float* in, float* residual, std::byte* out, size_t n) { \
    EncodeAll(in, residual, out, n);                                                \
  }
VERBENA_TOP_K(EncodeBaseline, )
#if defined(__x86_64__)
VERBENA_TOP_K(EncodeAvx2, __attribute__((target("avx2"))))
VERBENA_TOP_K(EncodeAvx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
constexpr Encoder kEncoders[] = {EncodeBaseline, EncodeAvx2, EncodeAvx512};
#else
constexpr Encoder kEncoders[] = {EncodeBaseline, EncodeBaseline, EncodeBaseline};
#endif

}  // namespace

void EncodeTopK(Isa isa, const float* in, float* residual, std::byte* out, size_t n) {
  kEncoders[static_cast<size_t>(isa)](in, residual, out, n);
}

void DecodeTopK(const std::byte* payload, size_t first, float* out, size_t n) {
  const size_t end = first + n;
  for (size_t begin = first / kBlock * kBlock; begin < end; begin += kBlock) {
    const std::byte* in = payload + begin / kBlock * kBytes;
    const size_t from = std::max(begin, first), to = std::min(begin + kBlock, end);
    float* const numbers = out + (from - first);
    std::memset(numbers, 0, (to - from) * sizeof(float));
    float values[kKept];
    uint16_t places[kKept];
    std::memcpy(values, in, sizeof(values));
    std::memcpy(places, in + sizeof(values), sizeof(places));
    for (size_t i = 0; i < kKept; ++i) {
      // A place before `from` wraps around. The peer may have changed the bytes since TopKAscends()
      // read them.
      const size_t at = begin + places[i] - from;
      if (at < to - from) numbers[at] = values[i];
    }
  }
}

bool TopKAscends(const std::byte* payload, size_t n) {
  for (size_t i = 0; i < n; i += kBlock, payload += kBytes) {
    uint16_t places[kKept];
    std::memcpy(places, payload + kKept * sizeof(float), sizeof(places));
    const size_t left = std::min(kBlock, n - i);
    const size_t used = std::min(kKept, left);
    bool good = places[used - 1] < left;
    for (size_t k = 1; k < used; ++k) good &= places[k - 1] < places[k];
    for (size_t k = used; k < kKept; ++k) good &= places[k] == kNoPlace;
    if (!good) return false;
  }
  return true;
}

}  // namespace verbena::codec
