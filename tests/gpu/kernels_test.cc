// The kernels on a GPU, or an imitated one: the bits of the CPU for all kinds of numbers, sizes and
// alignments; tables of small tensors; sums.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "verbena/half.h"
#include "worker/cuda/device_kernels.h"

namespace verbena::test {
namespace {

using worker::Conversion;
using worker::DeviceKernels;
using worker::Segment;
using Random = std::mt19937_64;

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<float> RandomFloats(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  return values;
}

// Every sign, exponent and upper mantissa, with lower bits around every tie of both formats.
std::vector<float> ManyFloats() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 1 << 14; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u,
                                 0x17fffu, 0x18000u, 0x18001u, 0x28000u, 0x3ffffu}) {
      values.push_back(std::bit_cast<float>(upper << 18 | lower));
    }
  }
  return values;
}

class World {
 public:
  World() : kernels(Value(DeviceKernels::Load(gpu.device()))) {}

  template <typename In, typename Out>
  std::vector<Out> Convert(Conversion conversion, const std::vector<In>& in, size_t in_offset = 0,
                           size_t out_offset = 0) {
    const auto from = gpu.Upload(in, in_offset);
    const auto to = gpu.Allocate((out_offset + in.size()) * sizeof(Out));
    std::byte* const out = to->data() + out_offset * sizeof(Out);
    Good(kernels->Convert(conversion, from->data() + in_offset * sizeof(In), out, in.size(), 0));
    gpu.Wait(0);
    return gpu.Download<Out>(out, in.size());
  }

  Gpu gpu;
  std::unique_ptr<DeviceKernels> kernels;
};

TEST_CASE("conversions have the bits of the CPU's, whatever the number") {
  World w;
  for (const std::vector<float>& values : {ManyFloats(), RandomFloats(1 << 20, 1)}) {
    std::vector<uint16_t> expected(values.size());
    BFloat16sFromFloats(values.data(), expected.data(), values.size());
    CHECK(SameBits(w.Convert<float, uint16_t>(Conversion::kFloatToBFloat16, values), expected));
    HalvesFromFloats(values.data(), expected.data(), values.size());
    CHECK(SameBits(w.Convert<float, uint16_t>(Conversion::kFloatToFloat16, values), expected));
  }
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> expected(all.size());
  FloatsFromBFloat16s(all.data(), expected.data(), all.size());
  CHECK(SameBits(w.Convert<uint16_t, float>(Conversion::kBFloat16ToFloat, all), expected));
  FloatsFromHalves(all.data(), expected.data(), all.size());
  CHECK(SameBits(w.Convert<uint16_t, float>(Conversion::kFloat16ToFloat, all), expected));
}

TEST_CASE("conversions have the bits of the CPU's, whatever size and alignment") {
  World w;
  for (const size_t n : {1, 3, 4, 7, 8, 9, 31, 255, 1024, 4099, 300'001}) {
    const std::vector<float> values = RandomFloats(n, n);
    std::vector<uint16_t> expected(n);
    BFloat16sFromFloats(values.data(), expected.data(), n);
    for (const size_t in_offset : {0, 1, 3}) {
      for (const size_t out_offset : {0, 1, 3, 4}) {
        INFO(n << " elements, " << in_offset << " and " << out_offset << " behind");
        CHECK(SameBits(
            w.Convert<float, uint16_t>(Conversion::kFloatToBFloat16, values, in_offset, out_offset),
            expected));
      }
    }
  }
}

// Tensors of all sizes, at places that are not aligned, in a bucket in another order.
struct Tensors {
  explicit Tensors(uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < 400; ++i) {
      const size_t n = i % 50 == 0 ? 20'000 + random() % 30'000 : random() % 300;
      first.push_back(total);
      count.push_back(n);
      total += n + random() % 3;
    }
    for (size_t i = count.size(); i-- > 0;) {
      place.insert(place.begin(), bucket);
      bucket += count[i];
    }
    values = RandomFloats(total, seed + 1);
  }
  std::vector<Segment> At(const std::byte* memory, size_t element_size) const {
    std::vector<Segment> segments;
    for (size_t i = 0; i < count.size(); ++i) {
      segments.push_back(
          {reinterpret_cast<uint64_t>(memory) + first[i] * element_size, place[i], count[i]});
    }
    return segments;
  }
  std::vector<float> Bucket() const {
    std::vector<float> out(bucket);
    for (size_t i = 0; i < count.size(); ++i) {
      std::memcpy(out.data() + place[i], values.data() + first[i], count[i] * sizeof(float));
    }
    return out;
  }

  std::vector<size_t> first, count, place;
  std::vector<float> values;  // with gaps that belong to no tensor
  size_t total = 0;
  size_t bucket = 0;
};

TEST_CASE("small tensors are gathered into a bucket and scattered back, and nothing beside them") {
  World w;
  const Tensors tensors(3);
  const auto memory = w.gpu.Upload(tensors.values);
  const auto table = Value(w.kernels->MakeTable(tensors.At(memory->data(), 4), 4));
  CHECK(table.elements() == tensors.bucket);
  const auto bucket = w.gpu.Allocate(tensors.bucket * sizeof(float));
  Good(w.kernels->Gather(Conversion::kCopy32, table, bucket->data(), 0));
  w.gpu.Wait(0);
  CHECK(SameBits(w.gpu.Download<float>(bucket->data(), tensors.bucket), tensors.Bucket()));

  const std::vector<float> zeros(tensors.total, 0.0f);
  w.gpu.Write(memory->data(), zeros.data(), memory->size());
  Good(w.kernels->Scatter(Conversion::kCopy32, table, bucket->data(), 0));
  w.gpu.Wait(0);
  std::vector<float> expected = zeros;
  for (size_t i = 0; i < tensors.count.size(); ++i) {
    std::memcpy(expected.data() + tensors.first[i], tensors.values.data() + tensors.first[i],
                tensors.count[i] * sizeof(float));
  }
  CHECK(SameBits(w.gpu.Download<float>(memory->data(), tensors.total), expected));
}

TEST_CASE("a gather makes bf16 of f32 on the way, and a scatter f32 of bf16") {
  World w;
  const Tensors tensors(5);
  const auto memory = w.gpu.Upload(tensors.values);
  const auto table = Value(w.kernels->MakeTable(tensors.At(memory->data(), 4), 4));
  const auto bucket = w.gpu.Allocate(tensors.bucket * sizeof(uint16_t));
  Good(w.kernels->Gather(Conversion::kFloatToBFloat16, table, bucket->data(), 0));
  w.gpu.Wait(0);
  const std::vector<float> plain = tensors.Bucket();
  std::vector<uint16_t> rounded(plain.size());
  BFloat16sFromFloats(plain.data(), rounded.data(), plain.size());
  CHECK(SameBits(w.gpu.Download<uint16_t>(bucket->data(), plain.size()), rounded));

  Good(w.kernels->Scatter(Conversion::kBFloat16ToFloat, table, bucket->data(), 0));
  w.gpu.Wait(0);
  const std::vector<float> after = w.gpu.Download<float>(memory->data(), tensors.total);
  bool same = true;
  for (size_t i = 0; i < tensors.count.size(); ++i) {
    for (size_t k = 0; k < tensors.count[i]; ++k) {
      const float expected = FloatFromBFloat16(rounded[tensors.place[i] + k]);
      same = same && std::memcmp(&after[tensors.first[i] + k], &expected, sizeof(float)) == 0;
    }
  }
  CHECK(same);
}

TEST_CASE("a sum has the bits of the CPU's, in the order of its inputs") {
  World w;
  for (const size_t inputs : {1, 2, 5, 16}) {
    for (const size_t n : {1, 5, 4096, 200'003}) {
      Random random(inputs * n);
      std::normal_distribution<float> normal;
      std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks;
      std::vector<const float*> at;
      std::vector<float> expected(n);
      for (size_t i = 0; i < inputs; ++i) {
        std::vector<float> values(n);
        for (float& value : values) value = normal(random);
        for (size_t k = 0; k < n; ++k) expected[k] = i == 0 ? values[k] : expected[k] + values[k];
        blocks.push_back(w.gpu.Upload(values, i % 3));
        at.push_back(reinterpret_cast<const float*>(blocks.back()->data()) + i % 3);
      }
      // Into one of its inputs.
      auto* const out = const_cast<float*>(at.back());
      Good(w.kernels->Sum(at, out, n, 0));
      w.gpu.Wait(0);
      INFO(inputs << " inputs of " << n);
      CHECK(SameBits(w.gpu.Download<float>(out, n), expected));
    }
  }
}

TEST_CASE("launches do not wait: a mark behind them passes when they are done, not before") {
  World w;
  const uintptr_t stream = w.gpu.MakeStream();
  constexpr size_t kElements = size_t{1} << 22;
  const auto ones = w.gpu.Upload(std::vector<float>(kElements, 1.0f));
  const auto sum = w.gpu.Upload(std::vector<float>(kElements, 0.0f));
  auto* const out = reinterpret_cast<float*>(sum->data());
  const float* const inputs[] = {out, reinterpret_cast<const float*>(ones->data())};
  constexpr int kLaunches = 24;
  for (int i = 0; i < kLaunches; ++i) Good(w.kernels->Sum(inputs, out, kElements, stream));
  w.gpu.Wait(stream);
  const auto values = w.gpu.Download<float>(out, kElements);
  CHECK(values == std::vector<float>(kElements, float(kLaunches)));
  w.gpu.DropStream(stream);
}

}  // namespace
}  // namespace verbena::test
