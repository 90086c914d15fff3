// The logic of the GPU kernels, compiled for the host: every thread of a launch is called, one
// after the other.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "verbena/half.h"
#include "worker/cuda/elements.h"
#include "worker/cuda/kernel_types.h"
#include "worker/cuda/launch_plan.h"

namespace verbena::worker {
namespace {

using Random = std::mt19937_64;

// Elements that begin `offset` elements behind a multiple of 64 bytes and end where their memory
// ends, so that AddressSanitizer sees what is touched beside them.
template <typename T>
class Buffer {
 public:
  Buffer(size_t n, size_t offset) : n_(n), bytes_(64 + (offset + n) * sizeof(T)) {
    const size_t skip = (0 - reinterpret_cast<uintptr_t>(bytes_.data())) % 64;
    bytes_.resize(skip + (offset + n) * sizeof(T));
    data_ = reinterpret_cast<T*>(bytes_.data() + skip) + offset;
    std::memset(static_cast<void*>(data_), 0xa5, n * sizeof(T));
  }
  Buffer(Buffer&&) = default;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) { return data_[i]; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  size_t n_;
  std::vector<std::byte> bytes_;  // shrunk, so it stays where it is
  T* data_;
};

template <typename T>
bool SameBits(const T* a, const T* b, size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
}

// Calls f(thread) for all of `threads`, in an order of their own.
template <typename F>
void Launch(uint64_t threads, F f) {
  std::vector<uint64_t> order(threads);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), Random(threads));
  for (const uint64_t thread : order) f(thread);
}

template <typename T>
void FillAtRandom(Buffer<T>& buffer, Random& random) {
  for (size_t i = 0; i < buffer.size(); ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    if constexpr (std::is_same_v<T, float>) {
      buffer[i] = std::bit_cast<float>(bits);
    } else {
      buffer[i] = static_cast<T>(bits);
    }
  }
}

// What the CPU makes of n elements.
void Reference(F32ToBF16, const float* in, uint16_t* out, size_t n) {
  BFloat16sFromFloats(in, out, n);
}
void Reference(BF16ToF32, const uint16_t* in, float* out, size_t n) {
  FloatsFromBFloat16s(in, out, n);
}
void Reference(F32ToF16, const float* in, uint16_t* out, size_t n) { HalvesFromFloats(in, out, n); }
void Reference(F16ToF32, const uint16_t* in, float* out, size_t n) { FloatsFromHalves(in, out, n); }
void Reference(Copy32, const uint32_t* in, uint32_t* out, size_t n) { std::copy_n(in, n, out); }
void Reference(Copy16, const uint16_t* in, uint16_t* out, size_t n) { std::copy_n(in, n, out); }

// Every exponent and both signs, with mantissas around every bit, and so around every tie of both
// formats, and at random.
std::vector<float> ManyFloats() {
  std::vector<uint32_t> mantissas;
  for (int bit = 0; bit < 23; ++bit) {
    for (const uint32_t high : {0u, 0x2000u, 0x10000u, 0x400000u, 0x7fe000u, 0x7f0000u}) {
      for (const uint32_t near : {0u, 1u, 0x7fffffu}) {
        mantissas.push_back(((high | 1u << bit) + near) & 0x7fffff);
      }
    }
  }
  mantissas.push_back(0);
  Random random(1);
  for (int i = 0; i < 2000; ++i) mantissas.push_back(random() & 0x7fffff);
  std::vector<float> floats;
  for (uint32_t upper = 0; upper < 512; ++upper) {
    for (const uint32_t m : mantissas) floats.push_back(std::bit_cast<float>(upper << 23 | m));
  }
  return floats;
}

template <typename Conversion, typename In>
void CheckAll(const std::vector<In>& values) {
  const size_t n = values.size();
  for (const size_t offset : {0, 1}) {  // whole groups, and one by one
    Buffer<In> in(n, 0);
    std::copy(values.begin(), values.end(), in.data());
    Buffer<typename Conversion::Out> out(n, offset), expected(n, 0);
    Launch(64, [&](uint64_t t) { ConvertRun<Conversion>(in.data(), out.data(), n, t, 64); });
    Reference(Conversion(), in.data(), expected.data(), n);
    CHECK(SameBits(out.data(), expected.data(), n));
  }
}

TEST_CASE("every number of 16 bits becomes the f32 that the CPU makes of it") {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), 0);
  CheckAll<BF16ToF32>(all);
  CheckAll<F16ToF32>(all);
  CheckAll<Copy16>(all);
}

TEST_CASE("an f32 of every exponent becomes the 16 bits that the CPU makes of it") {
  const std::vector<float> floats = ManyFloats();
  CheckAll<F32ToBF16>(floats);
  CheckAll<F32ToF16>(floats);
}

template <typename Conversion>
void CheckRuns() {
  using In = typename Conversion::In;
  using Out = typename Conversion::Out;
  Random random(2);
  bool good = true;
  for (const size_t n : {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 127, 130, 1027}) {
    for (size_t in_offset = 0; in_offset < 9; ++in_offset) {
      for (size_t out_offset = 0; out_offset < 9; ++out_offset) {
        for (const uint64_t threads : {1, 3, 32, 100}) {
          Buffer<In> in(n, in_offset);
          FillAtRandom(in, random);
          Buffer<Out> out(n, out_offset), expected(n, 0);
          Launch(threads, [&](uint64_t thread) {
            ConvertRun<Conversion>(in.data(), out.data(), n, thread, threads);
          });
          Reference(Conversion(), in.data(), expected.data(), n);
          good = good && SameBits(out.data(), expected.data(), n);
        }
      }
    }
  }
  CHECK(good);
}

TEST_CASE("a run of any length and alignment is converted, whatever the number of threads") {
  CheckRuns<F32ToBF16>();
  CheckRuns<BF16ToF32>();
  CheckRuns<F32ToF16>();
  CheckRuns<F16ToF32>();
  CheckRuns<Copy32>();
  CheckRuns<Copy16>();
}

// How many threads write each element, told by what each of them changes.
template <typename Run>
std::vector<int> Writers(size_t n, size_t offset, uint64_t threads, Run run) {
  std::vector<int> writers(n);
  for (uint64_t thread = 0; thread < threads; ++thread) {
    Buffer<float> out(n, offset);
    const Buffer<float> before(n, offset);
    run(out.data(), thread);
    for (size_t i = 0; i < n; ++i) writers[i] += !SameBits(&out[i], before.data() + i, 1);
  }
  return writers;
}

TEST_CASE("every element is written by one thread") {
  const size_t n = GENERATE(1, 6, 64, 333, 2000);
  const size_t in_offset = GENERATE(0, 3);
  const size_t out_offset = GENERATE(0, 3, 5);
  const uint64_t threads = GENERATE(1, 5, 64);
  Buffer<uint16_t> halves(n, in_offset);
  Buffer<float> floats(n, in_offset);
  for (size_t i = 0; i < n; ++i) {
    halves[i] = 0x3f80;
    floats[i] = 1;
  }
  const std::vector<int> once(n, 1);
  CHECK(Writers(n, out_offset, threads, [&](float* out, uint64_t thread) {
          ConvertRun<BF16ToF32>(halves.data(), out, n, thread, threads);
        }) == once);
  const SumInputs inputs = {{floats.data(), floats.data()}};
  CHECK(Writers(n, out_offset, threads, [&](float* out, uint64_t thread) {
          SumRun(inputs, 2, out, n, thread, threads);
        }) == once);
}

TEST_CASE("a sum has the bits of adding bucket after bucket, in place too") {
  Random random(3);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  const uint32_t count = GENERATE(1, 2, 3, 4, 5, 8, 15, 16);
  bool good = true;
  bool order_matters = false;
  for (const size_t n : {0, 1, 3, 4, 5, 64, 67, 1000, 4099}) {
    for (int layout = 0; layout < 8; ++layout) {
      // All equally misaligned, all but the last one, at random.
      const size_t offset = layout % 4;
      std::vector<Buffer<float>> in;
      for (uint32_t k = 0; k < count; ++k) {
        in.emplace_back(n, layout < 4 || k + 1 < count ? offset : random() % 4);
        for (size_t i = 0; i < n; ++i) {
          in[k][i] = std::ldexp(mantissa(random), static_cast<int>(random() % 40) - 20);
        }
        if (n > 4) {
          in[k][2] = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7fffff));  // tiny
          in[k][3] = k == 0 ? INFINITY : 1.0f;
          in[k][4] = k % 2 ? 3e38f : -3e38f;
        }
      }
      std::vector<float> expected(in[0].data(), in[0].data() + n), backwards(n);
      for (uint32_t k = 1; k < count; ++k) {
        for (size_t i = 0; i < n; ++i) expected[i] += in[k][i];
      }
      for (uint32_t k = count; k-- > 0;) {
        for (size_t i = 0; i < n; ++i) backwards[i] += in[k][i];
      }
      order_matters = order_matters || !SameBits(expected.data(), backwards.data(), n);
      SumInputs inputs = {};
      for (uint32_t k = 0; k < count; ++k) inputs.at[k] = in[k].data();
      Buffer<float> out(n, offset);
      const auto sum = [&](float* into) {
        Launch(70, [&](uint64_t thread) { SumRun(inputs, count, into, n, thread, 70); });
        good = good && SameBits<float>(into, expected.data(), n);
      };
      sum(out.data());
      sum(in[random() % count].data());
    }
  }
  CHECK(good);
  CHECK((order_matters || count < 3));
}

TEST_CASE("a sum that is a NaN on the CPU is one") {
  Buffer<float> a(8, 0), b(8, 0), out(8, 0);
  for (size_t i = 0; i < 8; ++i) {
    a[i] = i % 2 ? INFINITY : NAN;
    b[i] = -INFINITY;
  }
  const SumInputs inputs = {{a.data(), b.data()}};
  Launch(32, [&](uint64_t thread) { SumRun(inputs, 2, out.data(), 8, thread, 32); });
  for (size_t i = 0; i < 8; ++i) CHECK(std::isnan(out[i]));
}

// Lists of tensors ----------------------------------------------------------------------------

struct Shapes {
  std::vector<uint64_t> counts;
  uint64_t multiprocessors;
};

std::vector<Shapes> ManyShapes() {
  std::vector<Shapes> many = {
      {{}, 1},
      {{0}, 4},
      {{0, 0, 1, 0}, 4},
      {{1}, 132},
      {{4096}, 1},
      {{4097, 63, 64, 65}, 1},
      {std::vector<uint64_t>(3000, 1), 2},
      {std::vector<uint64_t>(500, 7), 132},
      {{300001}, 1},
      {{300001}, 132},
      {{3, 200000, 0, 1, 1, 1, 129, 50000, 2}, 3},
  };
  Random random(4);
  for (int i = 0; i < 60; ++i) {
    Shapes shapes = {{}, 1 + random() % 20};
    const uint64_t tensors = random() % 80;
    for (uint64_t t = 0; t < tensors; ++t) {
      shapes.counts.push_back(random() % (uint64_t{1} << random() % 15));
    }
    many.push_back(shapes);
  }
  return many;
}

// Tensors in memory of their own, with any alignment, and their places in a bucket, with gaps.
template <typename T>
struct Tensors {
  explicit Tensors(const std::vector<uint64_t>& counts, bool aligned, Random& random) {
    for (const uint64_t n : counts) {
      memory.emplace_back(n, aligned ? 0 : random() % 9);
      FillAtRandom(memory.back(), random);
      list.push_back({memory.back().address(), bucket, n});
      bucket += n;
      bucket = aligned ? (bucket + 7) / 8 * 8 : bucket + random() % 3;
    }
  }
  std::vector<Buffer<T>> memory;
  std::vector<Segment> list;
  uint64_t bucket = 0;
};

template <typename Conversion, Direction kDirection>
void CheckMove() {
  using In = typename Conversion::In;
  using Out = typename Conversion::Out;
  constexpr bool kGather = kDirection == Direction::kGather;
  using OfTensors = std::conditional_t<kGather, In, Out>;
  using OfBucket = std::conditional_t<kGather, Out, In>;
  Random random(5);
  bool good = true;
  for (const Shapes& shapes : ManyShapes()) {
    for (const bool aligned : {true, false}) {
      Tensors<OfTensors> tensors(shapes.counts, aligned, random);
      Buffer<OfBucket> bucket(tensors.bucket, aligned ? 0 : random() % 9);
      if (!kGather) FillAtRandom(bucket, random);
      const auto plan =
          PlanMove(tensors.list, sizeof(OfTensors), static_cast<uint32_t>(shapes.multiprocessors));
      REQUIRE(plan.ok());

      // Gaps stay what they were, so they are part of what is expected.
      Buffer<OfBucket> bucket_expected(tensors.bucket, 0);
      std::vector<std::vector<OfTensors>> tensors_expected;
      for (size_t t = 0; t < tensors.list.size(); ++t) {
        const Segment& tensor = tensors.list[t];
        if constexpr (kGather) {
          Reference(Conversion(), tensors.memory[t].data(), bucket_expected.data() + tensor.first,
                    tensor.count);
        } else {
          tensors_expected.emplace_back(tensor.count);
          Reference(Conversion(), bucket.data() + tensor.first, tensors_expected.back().data(),
                    tensor.count);
        }
      }

      const uint64_t threads = uint64_t{plan->blocks} * kThreadsPerBlock;
      Launch(threads, [&](uint64_t thread) {
        MoveTiles<Conversion, kDirection>(plan->segments.data(), plan->tiles.data(),
                                          plan->tile_count(), bucket.data(), thread, threads);
      });
      if constexpr (kGather) {
        good = good && SameBits(bucket.data(), bucket_expected.data(), tensors.bucket);
      } else {
        for (size_t t = 0; t < tensors.list.size(); ++t) {
          good = good && SameBits(tensors.memory[t].data(), tensors_expected[t].data(),
                                  tensors.list[t].count);
        }
      }
    }
  }
  CHECK(good);
}

TEST_CASE("a gather moves every tensor into its place in the bucket, and nothing else") {
  CheckMove<Copy32, Direction::kGather>();
  CheckMove<Copy16, Direction::kGather>();
  CheckMove<F32ToBF16, Direction::kGather>();
  CheckMove<BF16ToF32, Direction::kGather>();
}

TEST_CASE("a scatter moves every tensor out of its place in the bucket") {
  CheckMove<Copy32, Direction::kScatter>();
  CheckMove<Copy16, Direction::kScatter>();
  CheckMove<F32ToBF16, Direction::kScatter>();
  CheckMove<BF16ToF32, Direction::kScatter>();
}

TEST_CASE("a plan covers every element once, in tiles of equal work") {
  std::vector<Shapes> many = ManyShapes();
  // Larger ones, as nothing is moved here.
  many.push_back({{100'000'000, 5, 5'000'000}, 132});
  many.push_back({{20'000'000}, 132});
  many.push_back({std::vector<uint64_t>(100'000, 300), 108});
  for (const Shapes& shapes : many) {
    for (const uint32_t size : {2, 4}) {
      std::vector<Segment> tensors;
      uint64_t address = 0x7f0000000000;
      uint64_t first = 3;
      for (const uint64_t n : shapes.counts) {
        tensors.push_back({address, first, n});
        address += n * size + 512;
        first += n;
      }
      const auto plan = PlanMove(tensors, size, static_cast<uint32_t>(shapes.multiprocessors));
      REQUIRE(plan.ok());

      // Put together again, the segments are the tensors, in their order.
      size_t s = 0;
      bool good = true;
      for (const Segment& tensor : tensors) {
        for (uint64_t done = 0; done < tensor.count; ++s) {
          REQUIRE(s < plan->segments.size());
          const Segment& piece = plan->segments[s];
          good = good && piece.count > 0 && piece.first == tensor.first + done &&
                 piece.address == tensor.address + done * size && done % kCut == 0;
          done += piece.count;
          good = good && done <= tensor.count;
        }
      }
      CHECK(good);
      CHECK(s == plan->segments.size());

      CHECK(plan->tiles.front() == 0);
      CHECK(plan->tiles.back() == plan->segments.size());
      CHECK(plan->tile_cost >= kSmallestTile);
      CHECK(plan->tile_cost <= kLargestTile);
      const uint32_t tiles = plan->tile_count();
      for (uint32_t t = 0; t < tiles; ++t) {
        uint64_t cost = 0;
        for (s = plan->tiles[t]; s < plan->tiles[t + 1]; ++s) {
          cost += plan->segments[s].count + kSegmentCost;
        }
        good = good && plan->tiles[t] < plan->tiles[t + 1] && cost <= plan->tile_cost &&
               (t + 1 == tiles || cost > plan->tile_cost - kSegmentCost - kCut);
      }
      CHECK(good);

      const uint64_t resident = shapes.multiprocessors * kBlocksPerMultiprocessor;
      const uint64_t per_block = kThreadsPerBlock / kThreadsPerTile;
      CHECK(plan->blocks == std::min<uint64_t>(resident, (tiles + per_block - 1) / per_block));
      CHECK((plan->blocks == 0) == plan->segments.empty());
      // Where there is enough for all, few of the teams have nothing to do in the last round.
      const uint64_t teams = resident * per_block;
      const uint64_t rounds = (tiles + teams - 1) / teams;
      if (rounds > 1) CHECK(tiles >= rounds * teams * 9 / 10);
    }
  }
}

TEST_CASE("a plan of what cannot be moved is refused") {
  const auto refused = [](std::vector<Segment> tensors, uint32_t size) {
    return absl::IsInvalidArgument(PlanMove(tensors, size, 1).status());
  };
  CHECK(refused({{0x1000, 0, 1}}, 3));
  CHECK(refused({{0x1002, 0, 1}}, 4));
  CHECK(refused({{0x1001, 0, 1}}, 2));
  CHECK(refused({{0x1000, 0, kMostElements + 1}}, 4));
  CHECK(refused({{0x1000, 0, UINT64_MAX}, {0x1000, 0, 2}}, 4));
  CHECK(refused({{0x1000, UINT64_MAX, 1}}, 4));
  CHECK(refused(std::vector<Segment>(3, {0x1000, 0, kMostElements / 2}), 4));
  CHECK_FALSE(refused({{0x1002, 0, 1}}, 2));
}

TEST_CASE("blocks of a conversion: enough for the elements, at most what a device holds") {
  CHECK(BlocksFor(0, 132) == 0);
  CHECK(BlocksFor(1, 132) == 1);
  CHECK(BlocksFor(1024, 132) == 1);
  CHECK(BlocksFor(1025, 132) == 2);
  CHECK(BlocksFor(uint64_t{1} << 40, 132) == 132 * kBlocksPerMultiprocessor);
  CHECK(BlocksFor(UINT64_MAX, 0) == kBlocksPerMultiprocessor);
}

}  // namespace
}  // namespace verbena::worker
