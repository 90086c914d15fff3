// The text model's kernels for the imitated driver: the logic of worker/cuda/text_elements.h on the
// host.
#include "tests/gpu/fake_kernels.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tests/gpu/fake_memory.h"
#include "worker/cuda/kernel_types.h"
#include "worker/cuda/text_elements.h"

namespace verbena::worker {
namespace {

// One thread in place of a warp.
struct OneLane {
  static constexpr uint32_t first = 0;
  static constexpr uint32_t count = 1;
  static float Max(float value) { return value; }
  static float Sum(float value) { return value; }
};

// Calls run(thread, threads) as the threads of a launch would.
template <typename F>
void EachThread(unsigned blocks, unsigned threads, F run) {
  const uint64_t all = uint64_t{blocks} * threads;
  for (uint64_t t = 0; t < all; ++t) run(t, all);
}

void Scale(unsigned blocks, unsigned threads, void** p) {
  const auto n = Parameter<uint64_t>(p, 3);
  std::vector<float> in;
  if (!Read(Parameter<const void*>(p, 0), n, &in)) return;
  std::vector<float> out(n);
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    ScaleRun(in.data(), Parameter<float>(p, 1), out.data(), n, t, all);
  });
  Write(Parameter<void*>(p, 2), out);
}

void ColumnSums(unsigned blocks, unsigned threads, void** p) {
  const auto rows = Parameter<uint32_t>(p, 2);
  const auto columns = Parameter<uint32_t>(p, 3);
  std::vector<float> in, out;
  if (!Read(Parameter<const void*>(p, 0), uint64_t{rows} * columns, &in)) return;
  if (!Read(Parameter<const void*>(p, 1), columns, &out)) return;
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    ColumnSumsRun(in.data(), out.data(), rows, columns, t, all);
  });
  Write(Parameter<void*>(p, 1), out);
}

void Embed(unsigned blocks, unsigned threads, void** p) {
  const auto items = Parameter<uint32_t>(p, 3);
  const auto width = Parameter<uint32_t>(p, 4);
  std::vector<uint8_t> bytes;
  std::vector<float> embedding;
  if (!Read(Parameter<const void*>(p, 0), items, &bytes)) return;
  if (!Read(Parameter<const void*>(p, 1), uint64_t{kBytes} * width, &embedding)) return;
  std::vector<float> x(uint64_t{items} * width);
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    TextEmbedRun(bytes.data(), embedding.data(), x.data(), items, width, t, all);
  });
  Write(Parameter<void*>(p, 2), x);
}

void Hidden(unsigned blocks, unsigned threads, void** p) {
  const auto n = Parameter<uint64_t>(p, 3);
  const auto hidden = Parameter<uint32_t>(p, 4);
  const auto* const masks = Parameter<const void*>(p, 2);
  std::vector<float> h, c1, mask;
  if (!Read(Parameter<const void*>(p, 0), n, &h)) return;
  if (!Read(Parameter<const void*>(p, 1), hidden, &c1)) return;
  if (!Read(masks, masks == nullptr ? 0 : n, &mask)) return;
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    TextHiddenRun(h.data(), c1.data(), mask.empty() ? nullptr : mask.data(), n, hidden, t, all);
  });
  Write(Parameter<void*>(p, 0), h);
}

void Softmax(unsigned, unsigned, void** p) {
  auto a = Parameter<TextSoftmax>(p, 0);
  const TextSoftmax on = a;
  const uint64_t outputs = uint64_t{a.rows} * kBytes;
  std::vector<float> probabilities, c2, skip, add, losses(a.rows);
  std::vector<uint8_t> contexts, targets;
  if (!Read(a.p, outputs, &probabilities) || !Read(a.c2, kBytes, &c2) ||
      !Read(a.skip, uint64_t{kBytes} * kBytes, &skip) ||
      !Read(a.add, a.add == nullptr ? 0 : outputs, &add) ||
      !Read(a.contexts, uint64_t{a.rows} * a.context, &contexts) ||
      !Read(a.targets, a.rows, &targets)) {
    return;
  }
  a.p = probabilities.data();
  a.c2 = c2.data();
  a.skip = skip.data();
  a.add = add.empty() ? nullptr : add.data();
  a.contexts = contexts.data();
  a.targets = targets.data();
  a.losses = losses.data();
  for (uint32_t row = 0; row < a.rows; ++row) TextSoftmaxRow(a, row, OneLane());
  Write(on.p, probabilities);
  Write(on.losses, losses);
}

void OutputGradient(unsigned blocks, unsigned threads, void** p) {
  const auto rows = Parameter<uint32_t>(p, 3);
  std::vector<float> out;
  std::vector<uint8_t> targets;
  if (!Read(Parameter<const void*>(p, 0), uint64_t{rows} * kBytes, &out)) return;
  if (!Read(Parameter<const void*>(p, 1), rows, &targets)) return;
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    TextOutputGradientRun(out.data(), targets.data(), Parameter<float>(p, 2), rows, t, all);
  });
  Write(Parameter<void*>(p, 0), out);
}

void HiddenGradient(unsigned blocks, unsigned threads, void** p) {
  const auto n = Parameter<uint64_t>(p, 3);
  const auto* const masks = Parameter<const void*>(p, 2);
  std::vector<float> dh, h, mask;
  if (!Read(Parameter<const void*>(p, 0), n, &dh)) return;
  if (!Read(Parameter<const void*>(p, 1), n, &h)) return;
  if (!Read(masks, masks == nullptr ? 0 : n, &mask)) return;
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    TextHiddenGradientRun(dh.data(), h.data(), mask.empty() ? nullptr : mask.data(), n, t, all);
  });
  Write(Parameter<void*>(p, 0), dh);
}

void AddByByte(unsigned blocks, unsigned threads, void** p) {
  const auto stride = Parameter<uint32_t>(p, 2);
  const auto items = Parameter<uint32_t>(p, 4);
  const auto width = Parameter<uint32_t>(p, 5);
  std::vector<float> in, out;
  std::vector<uint8_t> bytes;
  if (items == 0) return;
  if (!Read(Parameter<const void*>(p, 0), uint64_t{items} * width, &in)) return;
  if (!Read(Parameter<const void*>(p, 1), uint64_t{items - 1} * stride + 1, &bytes)) return;
  if (!Read(Parameter<const void*>(p, 3), uint64_t{kBytes} * width, &out)) return;
  EachThread(blocks, threads, [&](uint64_t t, uint64_t all) {
    TextAddByByteRun(in.data(), bytes.data(), stride, out.data(), items, width, t, all);
  });
  Write(Parameter<void*>(p, 3), out);
}

template <size_t kCount>
void Define(const char* name, rdma::FakeCudaKernel kernel, const size_t (&sizes)[kCount]) {
  rdma::fake_cuda_define_kernel(name, kernel, sizes, kCount);
}

}  // namespace

void DefineFakeKernels() {
  Define(kScale, Scale, {8, 4, 8, 8});
  Define(kColumnSums, ColumnSums, {8, 8, 4, 4});
  Define(kTextEmbed, Embed, {8, 8, 8, 4, 4});
  Define(kTextHidden, Hidden, {8, 8, 8, 8, 4});
  Define(kTextSoftmax, Softmax, {sizeof(TextSoftmax)});
  Define(kTextOutputGradient, OutputGradient, {8, 8, 4, 4});
  Define(kTextHiddenGradient, HiddenGradient, {8, 8, 8, 8});
  Define(kTextAddByByte, AddByByte, {8, 8, 4, 8, 4, 4});
}

}  // namespace verbena::worker
