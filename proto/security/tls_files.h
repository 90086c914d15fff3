// The files of TlsOptions: reads and checks them, and reads them again after they were replaced.
//
// **Thread safety**: TlsFiles: every function may be called from any thread. The others are pure
// functions that read files.
//
// Invariants:
//  1. The result of Current() was checked as a whole: the certificate belongs to the key.
//  2. No error, log line or description contains a byte of a key.
#ifndef VERBENA_PROTO_SECURITY_TLS_FILES_H_
#define VERBENA_PROTO_SECURITY_TLS_FILES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "verbena/tls_options.h"

namespace verbena {

// The contents of the files. `files` has the names of those that exist.
struct TlsMaterial {
  TlsOptions files;
  std::string ca, cert, key;
  absl::Time expires = absl::InfiniteFuture();  // of the certificate
};

// Reads and checks the files. INVALID_ARGUMENT: a certificate without its key or the reverse.
// FAILED_PRECONDITION has the file and the problem: it cannot be read; it holds no PEM certificate
// or key; the key has a pass phrase or belongs to another certificate; the certificate has expired
// or is not valid yet.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsOptions& options);

// OK if the certificate is for `host` (a name or an IP address). Otherwise the error lists its
// hosts.
absl::Status CheckCertificateName(const TlsMaterial& material, const std::string& host);

class TlsFiles {
 public:
  // Called once for each set of replaced files, by the thread that calls Current(): OK, or the
  // reason why they are not used.
  using Log = absl::AnyInvocable<void(const absl::Status&)>;

  // Null if `options` has no file: no TLS. Errors: those of ReadTlsFiles().
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const TlsOptions& options, Log log = {});

  // The current files, or the last usable ones.
  std::shared_ptr<const TlsMaterial> Current();

 private:
  // Identifies a state of a file without reading it.
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
  bool usable_ = true;  // whether the files read last are usable
  std::shared_ptr<const TlsMaterial> current_;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_TLS_FILES_H_
