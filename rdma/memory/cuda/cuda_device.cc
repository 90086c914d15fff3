#include "rdma/memory/cuda/cuda_device.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/copy_queue.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/cuda/cuda_errors.h"
#include "rdma/memory/cuda/cuda_memory.h"
#include "rdma/memory/cuda/cuda_peer.h"
#include "rdma/memory/cuda/driver.h"

namespace verbena::rdma {
namespace {

using cuda::CudaContext;

class CudaMark final : public Device::Mark {
 public:
  CudaMark(std::shared_ptr<Device> device, CudaContext* context, CudaContext::EventHandle event)
      : device_(std::move(device)), context_(*context), event_(std::move(event)) {}

  absl::StatusOr<bool> Passed() override {
    if (passed_) return true;
    const CudaContext::Scope scope(&context_);
    if (!scope.status().ok()) return scope.status();
    const cuda::Result code = context_.api().cuEventQuery(event_.get());
    if (code == cuda::kNotReady) return false;
    if (code != cuda::kSuccess) return context_.Lose(code, "cuEventQuery of a mark");
    passed_ = true;
    return true;
  }

 private:
  const std::shared_ptr<Device> device_;  // owns the context, to which the event returns
  CudaContext& context_;
  const CudaContext::EventHandle event_;
  bool passed_ = false;
};

class CudaDevice final : public Device, public std::enable_shared_from_this<CudaDevice> {
 public:
  explicit CudaDevice(std::unique_ptr<CudaContext> context)
      : context_(std::move(context)),
        to_host_(context_.get(), Direction::kToHost),
        to_device_(context_.get(), Direction::kToDevice),
        access_(cuda::PeerAccessOf(context_.get())),
        flush_(cuda::NeedsFlush(context_.get())) {}

  CudaContext* context() const { return context_.get(); }

  int ordinal() const override { return context_->ordinal(); }
  std::string name() const override { return context_->name(); }

  absl::StatusOr<std::byte*> Allocate(size_t bytes) override {
    return cuda::AllocateMemory(context_.get(), bytes);
  }
  void Free(std::byte* data) override { cuda::FreeMemory(context_.get(), data); }
  absl::Status CheckMemory(const std::byte* data, size_t bytes) override {
    return cuda::CheckMemory(context_.get(), data, bytes);
  }
  absl::Status Pin(std::byte* data, size_t bytes) override {
    return cuda::PinMemory(context_.get(), data, bytes);
  }
  void Unpin(std::byte* data) override { cuda::UnpinMemory(context_.get(), data); }

  PeerAccess Access() const override { return access_; }
  absl::StatusOr<DmaBuf> ExportDmaBuf(const std::byte* data, size_t bytes) override {
    return cuda::ExportDmaBuf(context_.get(), data, bytes);
  }
  absl::Status FlushPeerWrites() override {
    return flush_ ? cuda::FlushPeerWrites(context_.get()) : absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Mark>> MarkStream(uintptr_t stream) override;
  absl::StatusOr<uint64_t> StartCopy(Direction direction, const std::byte* from, std::byte* to,
                                     size_t bytes) override {
    return Queue(direction).Start(from, to, bytes);
  }
  absl::StatusOr<uint64_t> StartCopies(Direction direction,
                                       absl::Span<const Copy> copies) override {
    return Queue(direction).StartAll(copies);
  }
  absl::StatusOr<uint64_t> CopiesDone(Direction direction) override {
    return Queue(direction).Done();
  }

 private:
  cuda::CopyQueue& Queue(Direction direction) {
    return direction == Direction::kToHost ? to_host_ : to_device_;
  }

  const std::unique_ptr<CudaContext> context_;
  cuda::CopyQueue to_host_;
  cuda::CopyQueue to_device_;
  const PeerAccess access_;
  const bool flush_;
};

absl::StatusOr<std::unique_ptr<Device::Mark>> CudaDevice::MarkStream(uintptr_t stream) {
  const CudaContext::Scope scope(context_.get());
  if (!scope.status().ok()) return scope.status();
  auto event = context_->TakeEvent();
  if (!event.ok()) return event.status();
  const cuda::DriverApi& api = context_->api();
  auto* const handle = reinterpret_cast<cuda::Stream>(stream);
  // In a captured stream the mark would become part of the graph and never pass.
  int status = cuda::kCaptureStatusNone;
  cuda::Result code = api.cuStreamIsCapturing(handle, &status);
  if (code == cuda::kSuccess && status != cuda::kCaptureStatusNone) {
    code = cuda::kStreamCaptureUnsupported;
  }
  if (code == cuda::kSuccess) code = api.cuEventRecord(event->get(), handle);
  if (code == cuda::kInvalidHandle) {
    return absl::InvalidArgumentError(absl::StrCat("0x", absl::Hex(stream), " is not a stream of ",
                                                   context_->name(), " (destroyed?)"));
  }
  if (code != cuda::kSuccess) {
    return context_->Fail(code, absl::StrCat("a mark in stream 0x", absl::Hex(stream)));
  }
  return std::make_unique<CudaMark>(shared_from_this(), context_.get(), *std::move(event));
}

struct OpenDevices {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Device>> devices;
};

}  // namespace

CudaContext* ContextOf(Device* device) {
  const auto* const found = dynamic_cast<CudaDevice*>(device);
  return found == nullptr ? nullptr : found->context();
}

absl::StatusOr<int> CudaDeviceCount() {
  const absl::StatusOr<const cuda::DriverApi*> api = cuda::LoadDriver();
  if (!api.ok()) return api.status();
  int count = 0;
  const cuda::Result code = (*api)->cuDeviceGetCount(&count);
  if (code != cuda::kSuccess) return cuda::DriverError(**api, code, "CUDA", "cuDeviceGetCount");
  if (count > 0) return count;
  return cuda::DriverError(**api, cuda::kNoDevice, "CUDA", "cuDeviceGetCount");
}

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(int ordinal) {
  const absl::StatusOr<const cuda::DriverApi*> api = cuda::LoadDriver();
  if (!api.ok()) return api.status();
  // Never destroyed: threads may open devices while the process ends.
  static auto* const known = new OpenDevices;
  const std::lock_guard<std::mutex> lock(known->mutex);
  if (const auto found = known->devices.find(ordinal); found != known->devices.end()) {
    if (std::shared_ptr<Device> device = found->second.lock()) return device;
  }
  auto context = CudaContext::Retain(*api, ordinal);
  if (!context.ok()) return context.status();
  std::shared_ptr<Device> device = std::make_shared<CudaDevice>(*std::move(context));
  known->devices[ordinal] = device;
  return device;
}

}  // namespace verbena::rdma
