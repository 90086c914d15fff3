// Shortens names for messages and log lines.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_ACCESS_SHOWN_H_
#define VERBENA_SERVER_ACCESS_SHOWN_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::server {

inline constexpr size_t kMostShownBytes = 256;

// A caller chooses the length of a name, so it is truncated.
inline std::string Shown(const std::string& name) {
  if (name.size() <= kMostShownBytes) return name;
  return absl::StrCat(name.substr(0, kMostShownBytes), "... (", name.size(), " bytes)");
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_SHOWN_H_
