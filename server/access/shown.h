// Names as messages and log lines have them.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_ACCESS_SHOWN_H_
#define VERBENA_SERVER_ACCESS_SHOWN_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::server {

inline constexpr size_t kMostShownBytes = 256;

// A caller chooses the length of a name, so its end is cut.
inline std::string Shown(const std::string& name) {
  if (name.size() <= kMostShownBytes) return name;
  return absl::StrCat(name.substr(0, kMostShownBytes), "... (", name.size(), " bytes)");
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_SHOWN_H_
