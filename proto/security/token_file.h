// The file that contains a token: reads and checks it, and reads it again after it was replaced.
//
// **Thread safety**: every function may be called from any thread.
//
// Invariants:
//  1. No error contains a part of the token.
#ifndef VERBENA_PROTO_SECURITY_TOKEN_FILE_H_
#define VERBENA_PROTO_SECURITY_TOKEN_FILE_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace verbena {

class TokenFile {
 public:
  // Null if `path` is empty: no token. FAILED_PRECONDITION has the file and the problem: it cannot
  // be read, or it contains no token.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(const std::string& path);

  // The token in the file, which is checked at most once a second. If the file is not usable, the
  // previous token.
  std::string Current();

 private:
  TokenFile(std::string path, std::string token)
      : path_(std::move(path)), token_(std::move(token)) {}

  const std::string path_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string token_;
  absl::Time looked_ = absl::InfinitePast();
};

// The first 4 KiB of a file with a secret, without surrounding white space. FAILED_PRECONDITION has
// `kind` ("password"), the file and the problem, and no part of the secret.
absl::StatusOr<std::string> ReadSecret(const std::string& path, const std::string& kind);

// The file's contents without surrounding white space. Errors: those of TokenFile::Open().
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Writes `token` into a new file that only its owner can read. ALREADY_EXISTS: the file exists.
// FAILED_PRECONDITION: it cannot be written.
absl::Status WriteToken(const std::string& path, const std::string& token);

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_TOKEN_FILE_H_
