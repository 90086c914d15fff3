#include "rdma/memory/cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/cuda_errors.h"

namespace verbena::rdma::cuda {
namespace {

constexpr const char kLibrary[] = "libcuda.so.1";
constexpr const char kVariable[] = "VERBENA_CUDA_DRIVER";

struct CloseLibrary {
  void operator()(void* library) const { (void)dlclose(library); }
};
using LibraryHandle = std::unique_ptr<void, CloseLibrary>;

std::string LastError() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

absl::Status Resolve(void* library, const std::string& path, DriverApi* api) {
  const char* missing = nullptr;
  const auto find = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr && missing == nullptr) missing = name;
    return symbol;
  };
  // dlsym(3) prescribes this conversion of a data pointer to a function pointer.
#define VERBENA_CUDA_RESOLVE(name, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(find(#name));
  VERBENA_CUDA_FUNCTIONS(VERBENA_CUDA_RESOLVE)
#undef VERBENA_CUDA_RESOLVE
#define VERBENA_CUDA_RESOLVE_NEWER(name, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, #name));
  VERBENA_CUDA_NEWER_FUNCTIONS(VERBENA_CUDA_RESOLVE_NEWER)
  VERBENA_CUDA_13_FUNCTIONS(VERBENA_CUDA_RESOLVE_NEWER)
#undef VERBENA_CUDA_RESOLVE_NEWER
  if (missing == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the CUDA driver ", path, " lacks ", missing,
                                             ": it is too old, or none; ", kOldestDriver,
                                             " or newer is needed"));
}

absl::StatusOr<const DriverApi*> LoadOnce() {
  const char* named = std::getenv(kVariable);
  absl::StatusOr<DriverApi> api =
      LoadDriverFrom(named == nullptr || *named == '\0' ? kLibrary : named);
  if (!api.ok()) return api.status();
  return new DriverApi(*api);  // lives as long as the process, like the driver
}

}  // namespace

absl::StatusOr<const DriverApi*> LoadDriver() {
  // Never destroyed: devices may be closed by destructors of static objects.
  static const auto* const loaded = new absl::StatusOr<const DriverApi*>(LoadOnce());
  return *loaded;
}

absl::StatusOr<DriverApi> LoadDriverFrom(const std::string& path) {
  LibraryHandle library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA driver: ", path, ": ", LastError(),
                     "; install NVIDIA's driver (in a container: the NVIDIA container toolkit), or "
                     "use host memory"));
  }
  DriverApi api;
  if (absl::Status status = Resolve(library.get(), path, &api); !status.ok()) return status;
  (void)library.release();  // invariant 1, from cuInit() on, even if it fails
  if (const Result code = api.cuInit(0); code != kSuccess) {
    const std::string_view hint = ErrorHint(code);
    return absl::UnavailableError(absl::StrCat("the CUDA driver ", path,
                                               " does not start: cuInit: ", ErrorText(api, code),
                                               hint.empty() ? "" : "; ", std::string(hint)));
  }
  return api;
}

}  // namespace verbena::rdma::cuda
