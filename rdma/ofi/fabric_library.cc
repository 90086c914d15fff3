#include "rdma/ofi/fabric_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr const char kLibrary[] = "libfabric.so.1";
constexpr const char kVariable[] = "VERBENA_LIBFABRIC";
constexpr uint32_t kOldest = FI_VERSION(1, 17);

// The functions' versions (dlvsym(3)) are those of a program linked with 1.17; later libraries keep
// them.
template <typename Function>
void Find(void* library, const char* name, const char* version, Function** function,
          const char** missing) {
  *function = reinterpret_cast<Function*>(dlvsym(library, name, version));
  if (*function == nullptr) *missing = name;
}

// Restores the process's signal actions: constructors of libinfinipath make SIGBUS, SIGINT, SIGTERM
// and others end the process with a backtrace, unless the variable is set. Signals to this thread
// wait meanwhile.
class SignalActions {
 public:
  SignalActions() {
    (void)setenv("IPATH_NO_BACKTRACE", "1", /*replace=*/0);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &mask_);
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction action;
      if (sigaction(signal, nullptr, &action) == 0) before_[signal] = action;
    }
  }
  SignalActions(const SignalActions&) = delete;
  SignalActions& operator=(const SignalActions&) = delete;
  ~SignalActions() {
    for (int signal = 1; signal < NSIG; ++signal) {
      if (before_[signal].has_value()) (void)sigaction(signal, &*before_[signal], nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  std::array<std::optional<struct sigaction>, NSIG> before_;
  sigset_t mask_ = {};
};

void* OpenLibrary(const std::string& path) {
  const SignalActions restored;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

const absl::StatusOr<FabricApi>& Loaded() {
  // Never destroyed: endpoints may be closed by destructors of static objects.
  static const auto* const loaded = [] {
    const char* named = std::getenv(kVariable);
    return new absl::StatusOr<FabricApi>(
        LoadFabricFrom(named == nullptr || *named == '\0' ? kLibrary : named));
  }();
  return *loaded;
}

}  // namespace

absl::Status LoadFabric() { return Loaded().status(); }

const FabricApi& Fabric() { return *Loaded(); }

absl::StatusOr<FabricApi> LoadFabricFrom(const std::string& path) {
  // Never closed: its providers have threads.
  void* const library = OpenLibrary(path);
  if (library == nullptr) {
    const char* error = dlerror();
    return absl::UnavailableError(absl::StrCat(
        "no libfabric: ", error == nullptr ? path : error,
        "; install it (Debian: libfabric1), or have LD_LIBRARY_PATH or ", kVariable, " name it"));
  }
  FabricApi api;
  const char* missing = nullptr;
  Find(library, "fi_getinfo", "FABRIC_1.3", &api.getinfo, &missing);
  Find(library, "fi_freeinfo", "FABRIC_1.3", &api.freeinfo, &missing);
  Find(library, "fi_dupinfo", "FABRIC_1.3", &api.dupinfo, &missing);
  Find(library, "fi_fabric", "FABRIC_1.1", &api.fabric, &missing);
  Find(library, "fi_version", "FABRIC_1.0", &api.version, &missing);
  Find(library, "fi_strerror", "FABRIC_1.0", &api.strerror, &missing);
  if (missing != nullptr) {
    return absl::UnavailableError(
        absl::StrCat(path, " lacks ", missing, ": it is not libfabric, or too old; needed: 1.17"));
  }
  const uint32_t version = api.version();
  if (FI_VERSION_LT(version, kOldest)) {
    return absl::UnavailableError(absl::StrCat(path, " is libfabric ", FI_MAJOR(version), ".",
                                               FI_MINOR(version), "; needed: 1.17 or newer"));
  }
  return api;
}

}  // namespace verbena::rdma
