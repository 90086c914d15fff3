// The file that a token is in: read, checked, and read again when it was replaced.
//
// **Thread safety**: every function from any thread.
//
// Invariants:
//  1. No error has a part of the token in it.
#ifndef VERBENA_PROTO_TOKEN_FILE_H_
#define VERBENA_PROTO_TOKEN_FILE_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace verbena {

class TokenFile {
 public:
  // Null when `path` is empty: no token. FAILED_PRECONDITION names the file and what is wrong with
  // it: it cannot be read, or it holds no token.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(const std::string& path);

  // The token as the file has it, looked at again once in a second; the one before while the file
  // cannot be used.
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

// What the file holds, without white space around it. Errors as TokenFile::Open().
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Writes `token` into a new file that only its owner may read. ALREADY_EXISTS: there is a file.
// FAILED_PRECONDITION: it cannot be written.
absl::Status WriteToken(const std::string& path, const std::string& token);

}  // namespace verbena

#endif  // VERBENA_PROTO_TOKEN_FILE_H_
