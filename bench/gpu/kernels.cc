#include "bench/gpu/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "worker/cuda/stream.h"

namespace verbena::bench {
namespace {

using worker::Conversion;
using Clock = std::chrono::steady_clock;

constexpr uintptr_t kDefaultStream = 0;
constexpr size_t kBlocks = 4;
constexpr size_t kFillBytes = 16 << 20;
// The tensors of a gather: as biases, norms and small matrices of a model, a hundred to a few
// thousand numbers each.
constexpr uint64_t kSmallTensors[] = {768, 3072, 128, 2304, 1024, 64};

// Only this benchmark copies within a device, so the library does not load the symbol.
using CopyFunction = int (*)(uint64_t to, uint64_t from, size_t bytes, void* stream);
absl::StatusOr<CopyFunction> FindCopy() {
  const char* const named = std::getenv("VERBENA_CUDA_DRIVER");
  void* const library = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, "cuMemcpyDtoDAsync_v2");
  if (symbol == nullptr) {
    return absl::UnavailableError("the CUDA driver has no cuMemcpyDtoDAsync_v2");
  }
  return reinterpret_cast<CopyFunction>(symbol);
}

// Numbers that look like gradients: memory of zeros may be faster.
absl::Status Fill(rdma::Device* device, const std::vector<std::shared_ptr<rdma::MemoryBlock>>& to,
                  const std::shared_ptr<rdma::MemoryBlock>& pinned) {
  auto* const numbers = reinterpret_cast<float*>(pinned->data());
  uint32_t state = 7;
  for (size_t i = 0; i < pinned->size() / sizeof(float); ++i) {
    state = state * 1664525 + 1013904223;
    numbers[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  for (const auto& block : to) {
    for (size_t at = 0; at < block->size(); at += pinned->size()) {
      const absl::Status status =
          worker::CopyNow(device, rdma::Device::Direction::kToDevice, numbers, block->data() + at,
                          std::min<size_t>(pinned->size(), block->size() - at));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelWorld>> KernelWorld::Make(std::shared_ptr<rdma::Device> device,
                                                               uint64_t elements) {
  auto kernels = worker::DeviceKernels::Load(device);
  if (!kernels.ok()) return kernels.status();
  std::unique_ptr<KernelWorld> world(new KernelWorld);
  world->device_ = device;
  world->elements_ = elements;
  world->kernels_ = *std::move(kernels);
  for (size_t i = 0; i < kBlocks; ++i) {
    auto block = rdma::MemoryBlock::AllocateOn(device, elements * sizeof(float));
    if (!block.ok()) return block.status();
    world->blocks_.push_back(*std::move(block));
  }
  const auto pinned = rdma::MemoryBlock::AllocatePinned(device, kFillBytes, "verbena-bench");
  if (!pinned.ok()) return pinned.status();
  if (absl::Status status = Fill(device.get(), world->blocks_, *pinned); !status.ok()) {
    return status;
  }
  std::vector<worker::Segment> tensors;
  const auto address = reinterpret_cast<uint64_t>(world->blocks_[0]->data());
  for (uint64_t at = 0, i = 0; at < elements; ++i) {
    const uint64_t n = std::min(kSmallTensors[i % std::size(kSmallTensors)], elements - at);
    tensors.push_back({address + at * sizeof(float), at, n});
    at += n;
  }
  auto table = world->kernels_->MakeTable(tensors, sizeof(float));
  if (!table.ok()) return table.status();
  world->table_ = *std::move(table);
  return world;
}

std::vector<std::string> KernelWorld::Names() {
  return {"f32 to bf16",    "bf16 to f32",           "f32 to f16", "f16 to f32", "gather of f32",
          "scatter of f32", "gather of f32 to bf16", "sum of 4"};
}

absl::StatusOr<KernelWorld::Work> KernelWorld::Find(const std::string& name) {
  std::byte* const a = blocks_[0]->data();
  std::byte* const b = blocks_[1]->data();
  const uint64_t n = elements_;
  const auto convert = [&](Conversion conversion) {
    return Work{n * 6, [this, conversion, a, b, n] {
                  return kernels_->Convert(conversion, a, b, n, kDefaultStream);
                }};
  };
  if (name == "f32 to bf16") return convert(Conversion::kFloatToBFloat16);
  if (name == "bf16 to f32") return convert(Conversion::kBFloat16ToFloat);
  if (name == "f32 to f16") return convert(Conversion::kFloatToFloat16);
  if (name == "f16 to f32") return convert(Conversion::kFloat16ToFloat);
  if (name == "gather of f32") {
    return Work{n * 8, [this, b] {
                  return kernels_->Gather(Conversion::kCopy32, table_, b, kDefaultStream);
                }};
  }
  if (name == "scatter of f32") {
    return Work{n * 8, [this, b] {
                  return kernels_->Scatter(Conversion::kCopy32, table_, b, kDefaultStream);
                }};
  }
  if (name == "gather of f32 to bf16") {
    return Work{n * 6, [this, b] {
                  return kernels_->Gather(Conversion::kFloatToBFloat16, table_, b, kDefaultStream);
                }};
  }
  if (name == "sum of 4") {
    return Work{n * 4 * (kBlocks + 1), [this, n] {
                  std::vector<const float*> inputs;
                  for (const auto& block : blocks_) {
                    inputs.push_back(reinterpret_cast<const float*>(block->data()));
                  }
                  return kernels_->Sum(inputs, const_cast<float*>(inputs[0]), n, kDefaultStream);
                }};
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no kernel ", name));
}

absl::Status KernelWorld::Wait() {
  const auto mark = device_->MarkStream(kDefaultStream);
  if (!mark.ok()) return mark.status();
  for (;;) {
    const auto passed = (*mark)->Passed();
    if (!passed.ok()) return passed.status();
    if (*passed) return absl::OkStatus();
  }
}

absl::StatusOr<double> KernelWorld::Time(const Work& work, int milliseconds) {
  constexpr int kAtOnce = 8;
  if (absl::Status status = work.launch(); !status.ok()) return status;
  if (absl::Status status = Wait(); !status.ok()) return status;
  uint64_t moved = 0;
  const Clock::time_point began = Clock::now();
  Clock::duration took{};
  do {
    for (int i = 0; i < kAtOnce; ++i) {
      if (absl::Status status = work.launch(); !status.ok()) return status;
    }
    if (absl::Status status = Wait(); !status.ok()) return status;
    moved += kAtOnce * work.bytes;
    took = Clock::now() - began;
  } while (took < std::chrono::milliseconds(milliseconds));
  return static_cast<double>(moved) / std::chrono::duration<double>(took).count();
}

absl::StatusOr<double> KernelWorld::Run(const std::string& name, int milliseconds) {
  const auto work = Find(name);
  if (!work.ok()) return work.status();
  return Time(*work, milliseconds);
}

absl::StatusOr<double> KernelWorld::Copy(int milliseconds) {
  const auto copy = FindCopy();
  if (!copy.ok()) return copy.status();
  rdma::cuda::CudaContext* const context = rdma::ContextOf(device_.get());
  const uint64_t bytes = elements_ * sizeof(float);
  const auto launch = [&]() -> absl::Status {
    const rdma::cuda::CudaContext::Scope scope(context);
    if (!scope.status().ok()) return scope.status();
    const int code = (*copy)(reinterpret_cast<uint64_t>(blocks_[1]->data()),
                             reinterpret_cast<uint64_t>(blocks_[0]->data()), bytes, nullptr);
    return code == 0 ? absl::OkStatus() : context->Fail(code, "cuMemcpyDtoDAsync");
  };
  return Time({2 * bytes, launch}, milliseconds);
}

}  // namespace verbena::bench
