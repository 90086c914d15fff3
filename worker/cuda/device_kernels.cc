#include "worker/cuda/device_kernels.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/cuda/kernel_module.h"
#include "worker/cuda/launch_plan.h"
#include "worker/cuda/stream.h"

namespace verbena::worker {
namespace {

using rdma::Device;
using rdma::MemoryBlock;

// A conversion's kernels; null: there is none.
struct Kernels {
  uint32_t in_size;
  uint32_t out_size;
  const char* convert;
  const char* gather;
  const char* scatter;
};

constexpr Kernels KernelsOf(Conversion conversion) {
  switch (conversion) {
    case Conversion::kCopy32:
      return {4, 4, nullptr, kGather32, kScatter32};
    case Conversion::kCopy16:
      return {2, 2, nullptr, kGather16, kScatter16};
    case Conversion::kFloatToBFloat16:
      return {4, 2, kF32ToBF16, kGatherF32ToBF16, kScatterF32ToBF16};
    case Conversion::kBFloat16ToFloat:
      return {2, 4, kBF16ToF32, kGatherBF16ToF32, kScatterBF16ToF32};
    case Conversion::kFloatToFloat16:
      return {4, 2, kF32ToF16, nullptr, nullptr};
    case Conversion::kFloat16ToFloat:
      return {2, 4, kF16ToF32, nullptr, nullptr};
  }
  return {};
}

absl::Status CheckAligned(std::string_view what, uint64_t address, uint32_t size) {
  if (address % size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " at 0x", absl::Hex(address),
                                                 ", which is no multiple of its element's ", size,
                                                 " bytes"));
}

}  // namespace

// ---- loading ------------------------------------------------------------------------------------

DeviceKernels::DeviceKernels(std::unique_ptr<KernelModule> module) : module_(std::move(module)) {}
DeviceKernels::~DeviceKernels() = default;

absl::StatusOr<std::unique_ptr<DeviceKernels>> DeviceKernels::Load(std::shared_ptr<Device> device) {
  auto module = KernelModule::Load(std::move(device));
  if (!module.ok()) return module.status();
  return std::unique_ptr<DeviceKernels>(new DeviceKernels(*std::move(module)));
}

// ---- tables -------------------------------------------------------------------------------------

absl::StatusOr<DeviceKernels::Table> DeviceKernels::MakeTable(absl::Span<const Segment> tensors,
                                                              uint32_t element_size) const {
  auto plan = PlanMove(tensors, element_size, module_->multiprocessors());
  if (!plan.ok()) return plan.status();
  Table table;
  table.element_size_ = element_size;
  for (const Segment& tensor : tensors) table.elements_ += tensor.count;
  if (plan->blocks == 0) return table;
  table.tile_count_ = plan->tile_count();
  table.blocks_ = plan->blocks;
  table.tiles_ = plan->segments.size() * sizeof(Segment);
  const size_t bytes = table.tiles_ + plan->tiles.size() * sizeof(uint32_t);
  const std::shared_ptr<Device>& device = module_->device();
  auto host = MemoryBlock::AllocatePinned(device, bytes, "verbena-kernel-table");
  if (!host.ok()) return host.status();
  auto memory = MemoryBlock::AllocateOn(device, bytes);
  if (!memory.ok()) return memory.status();
  std::memcpy((*host)->data(), plan->segments.data(), table.tiles_);
  std::memcpy((*host)->data() + table.tiles_, plan->tiles.data(), bytes - table.tiles_);
  // Both blocks stay until it is done; when the device is lost, nothing touches them any more.
  if (absl::Status status = CopyNow(device.get(), Device::Direction::kToDevice, (*host)->data(),
                                    (*memory)->data(), bytes);
      !status.ok()) {
    return status;
  }
  table.memory_ = *std::move(memory);
  return table;
}

// ---- launches -----------------------------------------------------------------------------------

absl::Status DeviceKernels::Convert(Conversion conversion, const void* in, void* out, uint64_t n,
                                    uintptr_t stream) const {
  const Kernels kernels = KernelsOf(conversion);
  if (kernels.convert == nullptr) {
    return absl::UnimplementedError("there is no conversion of a type to itself");
  }
  auto from = reinterpret_cast<uint64_t>(in);
  auto to = reinterpret_cast<uint64_t>(out);
  if (absl::Status s = CheckAligned("the input", from, kernels.in_size); !s.ok()) return s;
  if (absl::Status s = CheckAligned("the output", to, kernels.out_size); !s.ok()) return s;
  const uint32_t blocks = BlocksFor(n, module_->multiprocessors());
  void* parameters[] = {&from, &to, &n};
  return module_->Launch(kernels.convert, blocks, stream, parameters);
}

absl::Status DeviceKernels::Sum(absl::Span<const float* const> inputs, float* out, uint64_t n,
                                uintptr_t stream) const {
  if (inputs.empty() || inputs.size() > kMostInputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum of ", inputs.size(), " inputs; 1 to ", kMostInputs, " are added"));
  }
  SumInputs at = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    at.at[i] = inputs[i];
    const auto address = reinterpret_cast<uint64_t>(inputs[i]);
    if (absl::Status s = CheckAligned("an input", address, sizeof(float)); !s.ok()) return s;
  }
  auto to = reinterpret_cast<uint64_t>(out);
  if (absl::Status s = CheckAligned("the output", to, sizeof(float)); !s.ok()) return s;
  const uint32_t blocks = BlocksFor(n, module_->multiprocessors());
  auto count = static_cast<uint32_t>(inputs.size());
  void* parameters[] = {&at, &count, &to, &n};
  return module_->Launch(kSum, blocks, stream, parameters);
}

absl::Status DeviceKernels::Move(const char* kernel, std::string_view what, uint32_t table_size,
                                 uint32_t bucket_size, const Table& table, uint64_t bucket,
                                 uintptr_t stream) const {
  if (kernel == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("f16 is not converted by a ", std::string(what), "; use Convert()"));
  }
  if (table.element_size_ != table_size) {
    return absl::InvalidArgumentError(absl::StrCat("the table's tensors have elements of ",
                                                   table.element_size_, " bytes, this ",
                                                   std::string(what), "'s of ", table_size));
  }
  if (absl::Status s = CheckAligned("the bucket", bucket, bucket_size); !s.ok()) return s;
  if (table.blocks_ == 0) return absl::OkStatus();
  auto segments = reinterpret_cast<uint64_t>(table.memory_->data());
  uint64_t tiles = segments + table.tiles_;
  uint32_t tile_count = table.tile_count_;
  void* parameters[] = {&segments, &tiles, &tile_count, &bucket};
  return module_->Launch(kernel, table.blocks_, stream, parameters);
}

absl::Status DeviceKernels::Gather(Conversion conversion, const Table& table, void* bucket,
                                   uintptr_t stream) const {
  const Kernels kernels = KernelsOf(conversion);
  return Move(kernels.gather, "gather", kernels.in_size, kernels.out_size, table,
              reinterpret_cast<uint64_t>(bucket), stream);
}

absl::Status DeviceKernels::Scatter(Conversion conversion, const Table& table, const void* bucket,
                                    uintptr_t stream) const {
  const Kernels kernels = KernelsOf(conversion);
  return Move(kernels.scatter, "scatter", kernels.out_size, kernels.in_size, table,
              reinterpret_cast<uint64_t>(bucket), stream);
}

}  // namespace verbena::worker
