// One thread's part of a conversion, a gather, a scatter or a sum: the logic of the kernels, for
// the GPU and for tests on the host.
//
// **Thread safety**: pure functions of memory that the caller gives. Threads `0..threads-1` called
// with the same arguments write disjoint elements, so they run in any order or at once.
//
// Invariants:
//  1. All threads together write every element once, and access nothing else.
//  2. Memory is accessed in whole groups of up to 16 bytes where both sides are aligned for it, one
//     element at a time elsewhere: neighbouring threads access neighbouring groups.
//  3. A thread reads several groups before it writes the first, so that enough reads are in flight
//     to use the memory's bandwidth.
#ifndef VERBENA_WORKER_CUDA_ELEMENTS_H_
#define VERBENA_WORKER_CUDA_ELEMENTS_H_

#include <bit>
#include <cstdint>

#include "verbena/half.h"
#include "worker/cuda/host_device.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {

// The conversions are those of client/include/verbena/half.h, compiled for the GPU. The hardware's
// instructions would save a few integer operations, which memory latency hides, but give other bits
// for NaNs.
struct F32ToBF16 {
  using In = float;
  using Out = uint16_t;
  static VERBENA_HOST_DEVICE Out Convert(In value) { return BFloat16FromFloat(value); }
};
struct BF16ToF32 {
  using In = uint16_t;
  using Out = float;
  static VERBENA_HOST_DEVICE Out Convert(In bits) { return FloatFromBFloat16(bits); }
};
struct F32ToF16 {
  using In = float;
  using Out = uint16_t;
  static VERBENA_HOST_DEVICE Out Convert(In value) { return HalfFromFloat(value); }
};
struct F16ToF32 {
  using In = uint16_t;
  using Out = float;
  static VERBENA_HOST_DEVICE Out Convert(In bits) { return FloatFromHalf(bits); }
};
// Copies are of bits: no conversion may make a signalling NaN quiet.
struct Copy32 {
  using In = uint32_t;
  using Out = uint32_t;
  static VERBENA_HOST_DEVICE Out Convert(In bits) { return bits; }
};
struct Copy16 {
  using In = uint16_t;
  using Out = uint16_t;
  static VERBENA_HOST_DEVICE Out Convert(In bits) { return bits; }
};

// The elements that one instruction reads or writes: up to 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Group {
  T of[kCount];
};

// Groups that a thread has in flight at once.
template <int kCount>
inline constexpr int kGroupsAtOnce = kCount == 1 ? 8 : 4;

// One instruction of a GPU moves four elements at most: eight of 16 bits go as four words.
template <typename T, int kCount>
VERBENA_HOST_DEVICE Group<T, kCount> ReadGroup(const T* in, uint64_t group) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Group<T, kCount>) >= sizeof(uint32_t)) {
    using Words = Group<uint32_t, sizeof(Group<T, kCount>) / sizeof(uint32_t)>;
    return std::bit_cast<Group<T, kCount>>(reinterpret_cast<const Words*>(in)[group]);
  }
#endif
  return reinterpret_cast<const Group<T, kCount>*>(in)[group];
}

// The counterpart of ReadGroup().
template <typename T, int kCount>
VERBENA_HOST_DEVICE void WriteGroup(T* out, uint64_t group, const Group<T, kCount>& value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Group<T, kCount>) >= sizeof(uint32_t)) {
    using Words = Group<uint32_t, sizeof(Group<T, kCount>) / sizeof(uint32_t)>;
    reinterpret_cast<Words*>(out)[group] = std::bit_cast<Words>(value);
    return;
  }
#endif
  reinterpret_cast<Group<T, kCount>*>(out)[group] = value;
}

// How many elements lie before the first that begins a group of `kCount`.
template <int kCount, typename T>
VERBENA_HOST_DEVICE uint64_t ElementsToAlignment(const T* at) {
  return (0 - reinterpret_cast<uintptr_t>(at) / sizeof(T)) % kCount;
}

// The conversion of whole groups; both sides are aligned to their group.
template <typename Conversion, int kCount>
VERBENA_HOST_DEVICE void ConvertGroups(const typename Conversion::In* __restrict__ in,
                                       typename Conversion::Out* __restrict__ out, uint64_t groups,
                                       uint64_t thread, uint64_t threads) {
  constexpr int kAtOnce = kGroupsAtOnce<kCount>;
  VERBENA_NO_UNROLL
  for (uint64_t base = thread; base < groups; base += kAtOnce * threads) {
    Group<typename Conversion::In, kCount> read[kAtOnce] = {};
    VERBENA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t group = base + k * threads;
      if (group < groups) read[k] = ReadGroup<typename Conversion::In, kCount>(in, group);
    }
    VERBENA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t group = base + k * threads;
      Group<typename Conversion::Out, kCount> converted;
      VERBENA_UNROLL
      for (int i = 0; i < kCount; ++i) converted.of[i] = Conversion::Convert(read[k].of[i]);
      if (group < groups) WriteGroup(out, group, converted);
    }
  }
}

// out[i] = in[i] for i < n, converted.
//
// A group is 16 bytes of the wider side. 16 of the narrower would be two instructions on the wider,
// each touching every second 16 bytes: half of every sector of 32, twice.
template <typename Conversion>
VERBENA_HOST_DEVICE void ConvertRun(const typename Conversion::In* __restrict__ in,
                                    typename Conversion::Out* __restrict__ out, uint64_t n,
                                    uint64_t thread, uint64_t threads) {
  constexpr int kWider = sizeof(*in) > sizeof(*out) ? sizeof(*in) : sizeof(*out);
  constexpr int kCount = 16 / kWider;
  uint64_t head = ElementsToAlignment<kCount>(out);
  if (head != ElementsToAlignment<kCount>(in)) {
    ConvertGroups<Conversion, 1>(in, out, n, thread, threads);
    return;
  }
  if (head > n) head = n;
  const uint64_t groups = (n - head) / kCount;
  // Fewer than 2 * kCount elements are outside of the groups: the head, then the tail.
  VERBENA_NO_UNROLL
  for (uint64_t i = thread; i < n - groups * kCount; i += threads) {
    const uint64_t element = i < head ? i : i + groups * kCount;
    out[element] = Conversion::Convert(in[element]);
  }
  ConvertGroups<Conversion, kCount>(in + head, out + head, groups, thread, threads);
}

enum class Direction { kGather, kScatter };

// Every segment of every tile, kThreadsPerTile threads to a tile. `bucket` is written by a gather,
// read by a scatter.
template <typename Conversion, Direction kDirection, typename Bucket>
VERBENA_HOST_DEVICE void MoveTiles(const Segment* __restrict__ segments,
                                   const uint32_t* __restrict__ tiles, uint32_t tile_count,
                                   Bucket* __restrict__ bucket, uint64_t thread, uint64_t threads) {
  const uint32_t lane = static_cast<uint32_t>(thread % kThreadsPerTile);
  for (uint64_t tile = thread / kThreadsPerTile; tile < tile_count;
       tile += threads / kThreadsPerTile) {
    const uint32_t end = tiles[tile + 1];
    for (uint32_t s = tiles[tile]; s < end; ++s) {
      const Segment segment = segments[s];
      if constexpr (kDirection == Direction::kGather) {
        ConvertRun<Conversion>(reinterpret_cast<const typename Conversion::In*>(segment.address),
                               bucket + segment.first, segment.count, lane, kThreadsPerTile);
      } else {
        ConvertRun<Conversion>(bucket + segment.first,
                               reinterpret_cast<typename Conversion::Out*>(segment.address),
                               segment.count, lane, kThreadsPerTile);
      }
    }
  }
}

// The sum of whole groups, from element `first` on. `out` may be one of the inputs: a thread has
// read all inputs of the elements that it writes, and no other thread reads those.
template <int kCount>
VERBENA_HOST_DEVICE void SumGroups(const SumInputs& inputs, uint32_t count, float* out,
                                   uint64_t first, uint64_t groups, uint64_t thread,
                                   uint64_t threads) {
  constexpr int kAtOnce = kGroupsAtOnce<kCount>;
  VERBENA_NO_UNROLL
  for (uint64_t base = thread; base < groups; base += kAtOnce * threads) {
    Group<float, kCount> sum[kAtOnce] = {};
    VERBENA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t group = base + k * threads;
      if (group < groups) sum[k] = ReadGroup<float, kCount>(inputs.at[0] + first, group);
    }
    // Several inputs at once would want more registers than there are, and are not needed.
    VERBENA_NO_UNROLL
    for (uint32_t input = 1; input < count; ++input) {
      const float* in = inputs.at[input] + first;
      Group<float, kCount> read[kAtOnce] = {};
      VERBENA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const uint64_t group = base + k * threads;
        if (group < groups) read[k] = ReadGroup<float, kCount>(in, group);
      }
      VERBENA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        VERBENA_UNROLL
        for (int i = 0; i < kCount; ++i) sum[k].of[i] += read[k].of[i];
      }
    }
    VERBENA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t group = base + k * threads;
      if (group < groups) WriteGroup(out, group, sum[k]);
    }
  }
}

// out[i] = ((in0[i] + in1[i]) + in2[i]) + ... for i < n: in the order of the inputs, as a CPU adds
// bucket after bucket.
VERBENA_HOST_DEVICE void SumRun(const SumInputs& inputs, uint32_t count, float* out, uint64_t n,
                                uint64_t thread, uint64_t threads) {
  constexpr int kCount = 4;
  uint64_t head = ElementsToAlignment<kCount>(out);
  bool aligned = true;
  for (uint32_t input = 0; input < count; ++input) {
    aligned = aligned && ElementsToAlignment<kCount>(inputs.at[input]) == head;
  }
  if (!aligned) {
    SumGroups<1>(inputs, count, out, 0, n, thread, threads);
    return;
  }
  if (head > n) head = n;
  const uint64_t groups = (n - head) / kCount;
  // No unrolling, as in ConvertRun().
  VERBENA_NO_UNROLL
  for (uint64_t i = thread; i < n - groups * kCount; i += threads) {
    const uint64_t element = i < head ? i : i + groups * kCount;
    float sum = inputs.at[0][element];
    VERBENA_NO_UNROLL
    for (uint32_t input = 1; input < count; ++input) sum += inputs.at[input][element];
    out[element] = sum;
  }
  SumGroups<kCount>(inputs, count, out + head, head, groups, thread, threads);
}

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_ELEMENTS_H_
