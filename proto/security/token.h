// Tokens of the control plane: creates and parses them, and compares their hashes.
//
// A token is "vbn_" ID "_" SECRET: 12 hexadecimal digits that identify it, and 43 characters
// (base64url, RFC 4648) of 256 random bits. A cluster stores its SHA-256. A slow hash, as for
// passwords, is not needed, because 256 random bits cannot be guessed.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. No error contains a part of a secret.
#ifndef VERBENA_PROTO_SECURITY_TOKEN_H_
#define VERBENA_PROTO_SECURITY_TOKEN_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// Metadata of a call, besides its token: the view revision in its request. Servers use it to
// authorize the caller before they read the request.
inline constexpr char kRevisionMetadata[] = "verbena-view-revision";

struct NewToken {
  std::string text;  // only for the bearer
  std::string id;
};
// INTERNAL: the system provides no random bits.
absl::StatusOr<NewToken> MakeToken();

// The id of a well-formed token. INVALID_ARGUMENT: the text is not one.
absl::StatusOr<std::string> TokenId(std::string_view text);

// Hexadecimal digits in lower case, so that an id has one spelling.
inline constexpr size_t kTokenIdDigits = 12;
constexpr bool IsTokenId(std::string_view id) {
  return id.size() == kTokenIdDigits &&
         id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// SHA-256, 32 bytes.
inline constexpr size_t kTokenHashBytes = 32;
std::string HashToken(std::string_view text);

// Compares in constant time.
bool SameHash(std::string_view a, std::string_view b);

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_TOKEN_H_
