#include "tests/gpu/fake_kernels.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tests/gpu/fake_memory.h"
#include "tests/rdma/fake_cuda/fake_cuda.h"
#include "worker/cuda/elements.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

// One conversion of n elements by `threads` threads.
template <typename C>
void Run(const void* from, void* to, uint64_t n, uint64_t threads) {
  std::vector<typename C::In> in;
  if (n == 0 || !Read(from, n, &in)) return;
  std::vector<typename C::Out> out(n);
  for (uint64_t t = 0; t < threads; ++t) ConvertRun<C>(in.data(), out.data(), n, t, threads);
  Write(to, out);
}

template <typename C>
void Convert(unsigned blocks, unsigned threads, void** parameters) {
  Run<C>(Parameter<const void*>(parameters, 0), Parameter<void*>(parameters, 1),
         Parameter<uint64_t>(parameters, 2), uint64_t{blocks} * threads);
}

template <typename C, Direction kDirection>
void Move(unsigned, unsigned, void** parameters) {
  const auto tile_count = Parameter<uint32_t>(parameters, 2);
  std::vector<uint32_t> tiles;
  std::vector<Segment> segments;
  if (!Read(Parameter<const void*>(parameters, 1), uint64_t{tile_count} + 1, &tiles)) return;
  if (!Read(Parameter<const void*>(parameters, 0), tiles.back(), &segments)) return;
  auto* const bucket = Parameter<std::byte*>(parameters, 3);
  for (uint32_t tile = 0; tile < tile_count; ++tile) {
    for (uint32_t s = tiles[tile]; s < tiles[tile + 1]; ++s) {
      const Segment& segment = segments[s];
      auto* const tensor = reinterpret_cast<std::byte*>(segment.address);
      if constexpr (kDirection == Direction::kGather) {
        Run<C>(tensor, bucket + segment.first * sizeof(typename C::Out), segment.count,
               kThreadsPerTile);
      } else {
        Run<C>(bucket + segment.first * sizeof(typename C::In), tensor, segment.count,
               kThreadsPerTile);
      }
    }
  }
}

void Sum(unsigned blocks, unsigned threads, void** parameters) {
  auto inputs = Parameter<SumInputs>(parameters, 0);
  const auto count = Parameter<uint32_t>(parameters, 1);
  const auto n = Parameter<uint64_t>(parameters, 3);
  std::vector<std::vector<float>> values(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!Read(inputs.at[i], n, &values[i])) return;
    inputs.at[i] = values[i].data();
  }
  std::vector<float> out(n);
  const uint64_t all = uint64_t{blocks} * threads;
  for (uint64_t t = 0; t < all; ++t) SumRun(inputs, count, out.data(), n, t, all);
  Write(Parameter<void*>(parameters, 2), out);
}

constexpr size_t kConvertSizes[] = {8, 8, 8};
constexpr size_t kMoveSizes[] = {8, 8, 4, 8};
constexpr size_t kSumSizes[] = {sizeof(SumInputs), 4, 8, 8};

template <typename C>
void DefineConversion(const char* name) {
  rdma::fake_cuda_define_kernel(name, Convert<C>, kConvertSizes, std::size(kConvertSizes));
}

template <typename C>
void DefineMoves(const char* gather, const char* scatter) {
  const size_t count = std::size(kMoveSizes);
  rdma::fake_cuda_define_kernel(gather, Move<C, Direction::kGather>, kMoveSizes, count);
  rdma::fake_cuda_define_kernel(scatter, Move<C, Direction::kScatter>, kMoveSizes, count);
}

}  // namespace

void DefineFakeKernels() {
  DefineConversion<F32ToBF16>(kF32ToBF16);
  DefineConversion<BF16ToF32>(kBF16ToF32);
  DefineConversion<F32ToF16>(kF32ToF16);
  DefineConversion<F16ToF32>(kF16ToF32);
  DefineMoves<Copy32>(kGather32, kScatter32);
  DefineMoves<Copy16>(kGather16, kScatter16);
  DefineMoves<F32ToBF16>(kGatherF32ToBF16, kScatterF32ToBF16);
  DefineMoves<BF16ToF32>(kGatherBF16ToF32, kScatterBF16ToF32);
  rdma::fake_cuda_define_kernel(kSum, Sum, kSumSizes, std::size(kSumSizes));
  DefineFakeTextKernels();
}

}  // namespace verbena::worker
