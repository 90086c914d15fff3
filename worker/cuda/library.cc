#include "worker/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace verbena::worker {

absl::StatusOr<void*> OpenCudaLibrary(const std::string& what, const char* variable,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> paths = names;
  for (const std::string& name : names) paths.push_back("/usr/local/cuda/lib64/" + name);
  const char* named = std::getenv(variable);
  if (named != nullptr && *named != '\0') paths = {named};
  std::string errors;
  for (const std::string& path : paths) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* error = dlerror();
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", error == nullptr ? path : error);
  }
  return absl::UnavailableError(absl::StrCat("no ", what, ": ", errors,
                                             "; install it, and have LD_LIBRARY_PATH or ", variable,
                                             " name it"));
}

}  // namespace verbena::worker
