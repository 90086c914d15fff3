#include "proto/security/role.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

constexpr std::pair<v1::Role, const char*> kRoles[] = {{v1::ROLE_OPERATOR, "operator"},
                                                       {v1::ROLE_SERVER, "server"},
                                                       {v1::ROLE_JOB, "job"},
                                                       {v1::ROLE_READ_ONLY, "read-only"}};

}  // namespace

std::string RoleName(v1::Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return role == v1::ROLE_UNSPECIFIED ? "none" : absl::StrCat(static_cast<int>(role));
}

absl::StatusOr<v1::Role> ParseRole(std::string_view name) {
  std::string names;
  for (const auto& [role, known] : kRoles) {
    if (name == known) return role;
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape({name.data(), name.size()}),
                                                 "' is not allowed: one of ", names));
}

}  // namespace verbena
