#include "worker/cuda/kernel_module.h"

#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "worker/cuda/kernel_image.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

namespace cuda = rdma::cuda;
using cuda::CudaContext;

// The error of a module that was not loaded, with the fix.
absl::Status LoadError(CudaContext* context, cuda::Result code) {
  const absl::Status status = context->Fail(code, "cuModuleLoadData of the GPU kernels");
  const bool unfit = code == cuda::kNoBinaryForGpu || code == cuda::kUnsupportedPtxVersion ||
                     code == cuda::kInvalidImage;
  if (!unfit) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(status.message()),
                   "; the kernels are for GPUs of compute capability 8.0 and above, and those "
                   "newer than 10.0 need a driver of CUDA 13.0 or later"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelModule>> KernelModule::Load(
    std::shared_ptr<rdma::Device> device) {
  CudaContext* const context = rdma::ContextOf(device.get());
  if (context == nullptr) {
    return absl::UnimplementedError("GPU kernels run on CUDA devices only");
  }
  if (KernelImage().empty()) {
    return absl::UnimplementedError(
        "this program was built without GPU kernels: CMake found no nvcc of CUDA 12.8 or later");
  }
  std::unique_ptr<KernelModule> module(new KernelModule(std::move(device), context));
  if (absl::Status status = module->Start(); !status.ok()) return status;
  return module;
}

absl::Status KernelModule::Start() {
  const cuda::DriverApi& api = context_->api();
  const CudaContext::Scope scope(context_);
  if (!scope.status().ok()) return scope.status();
  cuda::Result code = api.cuModuleLoadData(&module_, KernelImage().data());
  if (code != cuda::kSuccess) {
    module_ = nullptr;
    return LoadError(context_, code);
  }
  functions_.resize(std::size(kKernelNames));
  for (size_t i = 0; i < functions_.size(); ++i) {
    code = api.cuModuleGetFunction(&functions_[i], module_, kKernelNames[i]);
    if (code == cuda::kSuccess) continue;
    return context_->Fail(code, absl::StrCat("cuModuleGetFunction of ", kKernelNames[i]));
  }
  int multiprocessors = 0;
  code = api.cuDeviceGetAttribute(&multiprocessors, cuda::kAttributeMultiprocessorCount,
                                  context_->device());
  if (code != cuda::kSuccess) return context_->Fail(code, "cuDeviceGetAttribute");
  if (multiprocessors > 0) multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  return absl::OkStatus();
}

KernelModule::~KernelModule() {
  if (module_ == nullptr) return;
  const CudaContext::Scope scope(context_, CudaContext::Scope::When::kAlways);
  (void)context_->api().cuModuleUnload(module_);
}

absl::Status KernelModule::Launch(const char* name, uint32_t blocks, uintptr_t stream,
                                  void** parameters) const {
  if (blocks == 0) return absl::OkStatus();  // the driver takes that for an error
  size_t i = 0;
  while (i < functions_.size() && std::strcmp(kKernelNames[i], name) != 0) ++i;
  if (i == functions_.size()) return absl::InternalError(absl::StrCat("there is no kernel ", name));
  const CudaContext::Scope scope(context_);
  if (!scope.status().ok()) return scope.status();
  const cuda::Result code =
      context_->api().cuLaunchKernel(functions_[i], blocks, 1, 1, kThreadsPerBlock, 1, 1, 0,
                                     reinterpret_cast<cuda::Stream>(stream), parameters, nullptr);
  if (code == cuda::kSuccess) return absl::OkStatus();
  if (code == cuda::kInvalidHandle) {
    return absl::InvalidArgumentError(absl::StrCat("0x", absl::Hex(stream), " is not a stream of ",
                                                   context_->name(), " (destroyed?)"));
  }
  return context_->Fail(code, absl::StrCat("cuLaunchKernel of ", name));
}

}  // namespace verbena::worker
