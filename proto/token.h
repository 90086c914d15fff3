// Tokens of the control plane: made, taken apart, compared with what a cluster knows of them.
//
// A token is "vbn_" ID "_" SECRET: 12 hexadecimal digits that name it, and 43 characters
// (base64url, RFC 4648) of 256 random bits. A cluster keeps its SHA-256: with so many random bits
// nobody finds a token by trying, so none of the slow hashes that passwords need.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. No error has a part of a secret in it.
#ifndef VERBENA_PROTO_TOKEN_H_
#define VERBENA_PROTO_TOKEN_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// Metadata of a call, beside its token: the view revision that its request states, for servers that
// judge the caller before they read the request.
inline constexpr char kRevisionMetadata[] = "verbena-view-revision";

struct NewToken {
  std::string text;  // the bearer's, and nobody else's
  std::string id;
};
// INTERNAL: the system has no random bits.
absl::StatusOr<NewToken> MakeToken();

// The id of what looks like a token. INVALID_ARGUMENT otherwise.
absl::StatusOr<std::string> TokenId(std::string_view text);

// Hexadecimal digits in lower case: one id has one spelling.
inline constexpr size_t kTokenIdDigits = 12;
constexpr bool IsTokenId(std::string_view id) {
  return id.size() == kTokenIdDigits &&
         id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// SHA-256, 32 bytes.
inline constexpr size_t kTokenHashBytes = 32;
std::string HashToken(std::string_view text);

// Takes as long whether they differ early or late.
bool SameHash(std::string_view a, std::string_view b);

}  // namespace verbena

#endif  // VERBENA_PROTO_TOKEN_H_
