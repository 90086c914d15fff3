// The files of TlsOptions: read, checked, and read again when they were replaced.
//
// **Thread safety**: TlsFiles: every function from any thread. The others are pure functions that
// read files.
//
// Invariants:
//  1. What Current() returns was checked as a whole: the certificate belongs to the key.
//  2. No error, log line or description has a byte of a key in it.
#ifndef VERBENA_PROTO_TLS_FILES_H_
#define VERBENA_PROTO_TLS_FILES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls_options.h"

namespace verbena {

// What the files held. `files` says which of them there are.
struct TlsMaterial {
  TlsOptions files;
  std::string ca, cert, key;
  absl::Time expires = absl::InfiniteFuture();  // the certificate
};

// Reads and checks them. INVALID_ARGUMENT: a certificate without its key or the reverse.
// FAILED_PRECONDITION names the file and what is wrong with it: it cannot be read, it holds no PEM
// certificate or key, the key has a pass phrase or belongs to another certificate, the certificate
// has expired or is not valid yet.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsOptions& options);

// OK when the certificate is for `host` (a name or an IP address); otherwise for which ones it is.
absl::Status CheckCertificateName(const TlsMaterial& material, const std::string& host);

class TlsFiles {
 public:
  // Told of files that were replaced: OK, or why they are not used. Called by whoever calls
  // Current(), not twice for the same files.
  using Log = absl::AnyInvocable<void(const absl::Status&)>;

  // Null when `options` names no file: no TLS. Errors as ReadTlsFiles().
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const TlsOptions& options, Log log = {});

  // The files as they are now, or as they were when they last could be used.
  std::shared_ptr<const TlsMaterial> Current();

 private:
  // What tells one state of a file from another, without reading it.
  struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::vector<Stamp>;

  TlsFiles(const TlsOptions& options, Log log) : options_(options), log_(std::move(log)) {}
  Stamps Look() const;

  const TlsOptions options_;
  std::mutex mutex_;
  // Guarded by mutex_.
  Log log_;
  Stamps seen_;
  bool usable_ = true;  // what was read last
  std::shared_ptr<const TlsMaterial> current_;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_TLS_FILES_H_
