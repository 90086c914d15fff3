#include "proto/security/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

constexpr std::string_view kPrefix = "vbn_";
constexpr size_t kIdBytes = kTokenIdDigits / 2;
constexpr size_t kSecretBytes = 32, kSecretCharacters = 43;

bool IsBase64Url(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

}  // namespace

absl::StatusOr<NewToken> MakeToken() {
  unsigned char bytes[kIdBytes + kSecretBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
    return absl::InternalError("no random bits available for a token");
  }
  const absl::string_view all(reinterpret_cast<const char*>(bytes), sizeof(bytes));
  NewToken token;
  token.id = absl::BytesToHexString(all.substr(0, kIdBytes));
  token.text = absl::StrCat(absl::string_view(kPrefix.data(), kPrefix.size()), token.id, "_",
                            absl::WebSafeBase64Escape(all.substr(kIdBytes)));  // without padding
  OPENSSL_cleanse(bytes, sizeof(bytes));
  return token;
}

absl::StatusOr<std::string> TokenId(std::string_view text) {
  const std::string_view rest = text.substr(std::min(text.size(), kPrefix.size()));
  const bool right = text.substr(0, kPrefix.size()) == kPrefix &&
                     rest.size() == kTokenIdDigits + 1 + kSecretCharacters &&
                     rest[kTokenIdDigits] == '_' && IsTokenId(rest.substr(0, kTokenIdDigits)) &&
                     std::all_of(rest.begin() + kTokenIdDigits + 1, rest.end(), IsBase64Url);
  if (!right) {
    return absl::InvalidArgumentError(absl::StrCat(
        "not a token (", text.size(), " bytes); allowed: the output of 'verbena token create'"));
  }
  return std::string(rest.substr(0, kTokenIdDigits));
}

std::string HashToken(std::string_view text) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  // It fails only if memory is exhausted. The empty hash then matches no token.
  if (EVP_Digest(text.data(), text.size(), hash, &size, EVP_sha256(), nullptr) != 1) return "";
  return std::string(reinterpret_cast<const char*>(hash), size);
}

bool SameHash(std::string_view a, std::string_view b) {
  return a.size() == kTokenHashBytes && b.size() == kTokenHashBytes &&
         CRYPTO_memcmp(a.data(), b.data(), kTokenHashBytes) == 0;
}

}  // namespace verbena
