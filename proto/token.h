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

struct NewToken {
  std::string text;  // the bearer's, and nobody else's
  std::string id;
};
// INTERNAL: the system has no random bits.
absl::StatusOr<NewToken> MakeToken();

// The id of what looks like a token. INVALID_ARGUMENT otherwise.
absl::StatusOr<std::string> TokenId(std::string_view text);

// OK: 12 hexadecimal digits. INVALID_ARGUMENT says what is allowed.
absl::Status CheckTokenId(std::string_view id);

// SHA-256, 32 bytes.
inline constexpr size_t kTokenHashBytes = 32;
std::string HashToken(std::string_view text);

// Takes as long whether they differ early or late.
bool SameHash(std::string_view a, std::string_view b);

}  // namespace verbena

#endif  // VERBENA_PROTO_TOKEN_H_
