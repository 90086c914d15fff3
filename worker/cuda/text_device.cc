#include "worker/cuda/text_device.h"

#include <algorithm>
#include <utility>

#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

using rdma::Device;
using rdma::MemoryBlock;
using Matrix = Cublas::Matrix;

constexpr uint32_t kClasses = kTextClasses;

// Cuts aligned arrays off a piece of memory; without one, counts the bytes needed.
class Cutter {
 public:
  explicit Cutter(std::byte* data) : begin_(reinterpret_cast<uintptr_t>(data)) {}
  template <typename T>
  T* Take(size_t count) {
    T* at = reinterpret_cast<T*>(begin_ + used_);
    used_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlign = 256;
  uintptr_t begin_;
  size_t used_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextDevice>> TextDevice::Open(std::shared_ptr<Device> device,
                                                             const TextShape& shape) {
  auto module = KernelModule::Load(std::move(device));
  if (!module.ok()) return module.status();
  std::unique_ptr<TextDevice> text(new TextDevice(shape, *std::move(module)));
  if (absl::Status status = text->Prepare(); !status.ok()) return status;
  return text;
}

absl::Status TextDevice::Prepare() {
  auto stream = GpuStream::Open(module_->device());
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  auto blas = Cublas::Open(module_->context(), stream_->handle());
  if (!blas.ok()) return blas.status();
  blas_ = *std::move(blas);

  const auto context_bytes = size_t{kRows} * static_cast<size_t>(shape_.context);
  const auto input = size_t{kRows} * static_cast<size_t>(shape_.input());
  const auto hidden = size_t{kRows} * static_cast<size_t>(shape_.hidden);
  const auto output = size_t{kRows} * kClasses;
  const auto cut_host = [&](Cutter cut) {
    input_ = {cut.Take<uint8_t>(context_bytes), cut.Take<uint8_t>(kRows), cut.Take<float>(hidden),
              cut.Take<float>(output)};
    losses_ = cut.Take<float>(kRows);
    output_ = cut.Take<float>(output);
    return cut.used();
  };
  const auto cut_device = [&](Cutter cut) {
    on_ = {cut.Take<uint8_t>(context_bytes), cut.Take<uint8_t>(kRows),
           cut.Take<float>(hidden),          cut.Take<float>(output),
           cut.Take<float>(input),           cut.Take<float>(input),
           cut.Take<float>(hidden),          cut.Take<float>(hidden),
           cut.Take<float>(output),          cut.Take<float>(kRows)};
    return cut.used();
  };
  auto pinned = MemoryBlock::AllocatePinned(module_->device(), cut_host(Cutter(nullptr)),
                                            "verbena-text-batch");
  if (!pinned.ok()) return pinned.status();
  pinned_ = *std::move(pinned);
  cut_host(Cutter(pinned_->data()));
  auto memory = MemoryBlock::AllocateOn(module_->device(), cut_device(Cutter(nullptr)));
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  cut_device(Cutter(memory_->data()));
  return absl::OkStatus();
}

// ---- a batch ------------------------------------------------------------------------------------

absl::Status TextDevice::Start(const Batch& batch, const TextParameters& parameters,
                               const TextGradient& gradient, float scale) {
  batch_ = batch;
  absl::Status status = Upload();
  if (status.ok()) status = Forward(parameters);
  if (status.ok()) status = Backward(parameters, gradient, scale);
  return status;
}

absl::Status TextDevice::Finish() {
  absl::Status status = stream_->Wait();
  const Batch batch = std::exchange(batch_, {});
  if (batch.rows == 0) return status;
  constexpr auto kToHost = Device::Direction::kToHost;
  if (status.ok()) status = Copy(kToHost, on_.losses, losses_, batch.rows * sizeof(float));
  if (status.ok() && batch.added) {
    status = Copy(kToHost, on_.p, output_, size_t{batch.rows} * kClasses * sizeof(float));
  }
  return status;
}

absl::Status TextDevice::Upload() {
  constexpr auto kToDevice = Device::Direction::kToDevice;
  const size_t rows = batch_.rows;
  absl::Status status =
      Copy(kToDevice, input_.contexts, on_.contexts, rows * static_cast<size_t>(shape_.context));
  if (status.ok()) status = Copy(kToDevice, input_.targets, on_.targets, rows);
  if (status.ok() && batch_.masked) {
    status = Copy(kToDevice, input_.mask, on_.mask,
                  rows * static_cast<size_t>(shape_.hidden) * sizeof(float));
  }
  if (status.ok() && batch_.added) {
    status = Copy(kToDevice, input_.add, on_.add, rows * kClasses * sizeof(float));
  }
  return status;
}

// ---- arithmetic ---------------------------------------------------------------------------------

template <typename... Parameters>
absl::Status TextDevice::Launch(const char* kernel, uint64_t elements, Parameters... parameters) {
  const uint64_t blocks =
      std::min<uint64_t>((elements + kThreadsPerBlock - 1) / kThreadsPerBlock,
                         uint64_t{module_->multiprocessors()} * kBlocksPerMultiprocessor);
  void* addresses[] = {&parameters...};
  return module_->Launch(kernel, static_cast<uint32_t>(blocks), stream_->number(), addresses);
}

absl::Status TextDevice::Zero(float* out, uint64_t floats) {
  rdma::cuda::CudaContext* const context = stream_->context();
  const rdma::cuda::CudaContext::Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const rdma::cuda::Result code = context->api().cuMemsetD8Async(
      reinterpret_cast<rdma::cuda::Address>(out), 0, floats * sizeof(float), stream_->handle());
  return code == rdma::cuda::kSuccess ? absl::OkStatus() : context->Fail(code, "cuMemsetD8Async");
}

absl::Status TextDevice::Scale(const float* in, float factor, float* out, uint64_t floats) {
  return Launch(kScale, floats, in, factor, out, floats);
}

TextDevice::Sizes TextDevice::sizes() const {
  const auto context = static_cast<uint32_t>(shape_.context);
  const auto width = static_cast<uint32_t>(shape_.embedding);
  const auto hidden = static_cast<uint32_t>(shape_.hidden);
  return {batch_.rows, context, width, hidden, context * width, uint64_t{batch_.rows} * hidden};
}

absl::Status TextDevice::Forward(const TextParameters& parameters) {
  const auto [rows, context, width, hidden, input, units] = sizes();
  absl::Status status =
      Launch(kTextEmbed, uint64_t{rows} * input, static_cast<const uint8_t*>(on_.contexts),
             parameters.embedding, on_.x, rows * context, width);
  if (status.ok()) {
    status = blas_->Multiply({on_.x, rows, input}, {parameters.w1, input, hidden}, false, on_.h);
  }
  if (status.ok()) status = Launch(kTextHidden, units, on_.h, parameters.c1, mask(), units, hidden);
  if (status.ok()) {
    status =
        blas_->Multiply({on_.h, rows, hidden}, {parameters.w2, hidden, kClasses}, false, on_.p);
  }
  if (!status.ok()) return status;
  const TextSoftmax softmax = {
      on_.p,        parameters.c2, parameters.skip, batch_.added ? on_.add : nullptr,
      on_.contexts, on_.targets,   on_.losses,      rows,
      context};
  return Launch(kTextSoftmax, uint64_t{rows} * kThreadsPerRow, softmax);
}

absl::Status TextDevice::Backward(const TextParameters& parameters, const TextGradient& gradient,
                                  float scale) {
  const auto [rows, context, width, hidden, input, units] = sizes();
  const auto read = [](float* data) { return static_cast<const float*>(data); };
  const Matrix p = {on_.p, rows, kClasses};
  const Matrix dh = {on_.dh, rows, hidden};

  absl::Status status = Launch(kTextOutputGradient, uint64_t{rows} * kClasses, on_.p,
                               static_cast<const uint8_t*>(on_.targets), scale, rows);
  if (status.ok()) {  // by the last byte of each context
    status = Launch(kTextAddByByte, uint64_t{kClasses} * kClasses, read(on_.p),
                    static_cast<const uint8_t*>(on_.contexts + context - 1), context, gradient.skip,
                    rows, kClasses);
  }
  if (status.ok()) {
    status = Launch(kColumnSums, kClasses, read(on_.p), gradient.c2, rows, kClasses);
  }
  if (status.ok()) status = blas_->Multiply({on_.h, rows, hidden, true}, p, true, gradient.w2);
  if (status.ok()) {
    status = blas_->Multiply(p, {parameters.w2, hidden, kClasses, true}, false, on_.dh);
  }
  if (status.ok()) {
    status = Launch(kTextHiddenGradient, units, on_.dh, read(on_.h), mask(), units);
  }
  if (status.ok()) {
    status = Launch(kColumnSums, hidden, read(on_.dh), gradient.c1, rows, hidden);
  }
  if (status.ok()) status = blas_->Multiply({on_.x, rows, input, true}, dh, true, gradient.w1);
  if (status.ok()) {
    status = blas_->Multiply(dh, {parameters.w1, input, hidden, true}, false, on_.dx);
  }
  if (!status.ok()) return status;
  return Launch(kTextAddByByte, uint64_t{kClasses} * width, read(on_.dx),
                static_cast<const uint8_t*>(on_.contexts), uint32_t{1}, gradient.embedding,
                rows * context, width);
}

}  // namespace verbena::worker
