#include "proto/security/tls_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/security/tls_pem.h"

namespace verbena {
namespace {

// Far larger than any CA bundle. Limits the read of a device file or a mistaken path.
constexpr size_t kMostBytes = 8 << 20;

absl::Status Wrong(const char* role, const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("TLS ", role, " file ", path, ": ", what));
}

absl::StatusOr<std::string> Read(const char* role, const std::string& path) {
  // Nonblocking, because opening a named pipe without a writer would block the process.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Wrong(role, path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  std::string text;
  char block[16384];
  ssize_t got = 0;
  while ((got = read(fd, block, sizeof(block))) > 0 && text.size() <= kMostBytes) {
    text.append(block, static_cast<size_t>(got));
  }
  const int error = got < 0 ? errno : 0;
  close(fd);
  if (error != 0) return Wrong(role, path, absl::StrCat("cannot be read: ", std::strerror(error)));
  if (text.size() > kMostBytes) return Wrong(role, path, "is longer than 8 MiB");
  return text;
}

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

absl::Status CheckIdentity(TlsMaterial* material) {
  const TlsOptions& files = material->files;
  const std::vector<tls::Certificate> chain = tls::ParseCertificates(material->cert);
  if (chain.empty()) {
    return Wrong("certificate", files.cert, "is not one or more certificates in PEM");
  }
  const tls::ParsedKey parsed = tls::ParseKey(material->key);
  if (parsed.problem == tls::KeyProblem::kEncrypted) {
    return Wrong(
        "key", files.key,
        "has a pass phrase, which cannot be asked for; store the key without one, readable "
        "by this process's user alone");
  }
  if (parsed.problem == tls::KeyProblem::kNotAKey) {
    return Wrong("key", files.key, "is not a private key in PEM");
  }
  X509* leaf = chain.front().get();
  if (X509_check_private_key(leaf, parsed.key.get()) != 1) {
    return Wrong("key", files.key,
                 absl::StrCat("does not belong to the certificate in ", files.cert));
  }
  const absl::Time now = absl::Now();
  material->expires = tls::NotAfter(leaf);
  if (material->expires < now) {
    return Wrong("certificate", files.cert,
                 absl::StrCat("expired on ", Date(material->expires), "; renew it"));
  }
  if (tls::NotBefore(leaf) > now) {
    return Wrong("certificate", files.cert,
                 absl::StrCat("is not valid before ", Date(tls::NotBefore(leaf)),
                              "; is this host's clock right?"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsOptions& options) {
  if (options.cert.empty() != options.key.empty()) {
    return absl::InvalidArgumentError(
        options.key.empty()
            ? absl::StrCat("TLS certificate file ", options.cert, " is given without its key file")
            : absl::StrCat("TLS key file ", options.key, " is given without its certificate file"));
  }
  TlsMaterial material;
  material.files = options;
  if (!options.ca.empty()) {
    absl::StatusOr<std::string> ca = Read("CA", options.ca);
    if (!ca.ok()) return ca.status();
    material.ca = *std::move(ca);
    if (tls::ParseCertificates(material.ca).empty()) {
      return Wrong("CA", options.ca, "is not one or more certificates in PEM");
    }
  }
  if (!options.cert.empty()) {
    absl::StatusOr<std::string> cert = Read("certificate", options.cert);
    if (!cert.ok()) return cert.status();
    absl::StatusOr<std::string> key = Read("key", options.key);
    if (!key.ok()) return key.status();
    material.cert = *std::move(cert);
    material.key = *std::move(key);
    if (absl::Status status = CheckIdentity(&material); !status.ok()) return status;
  }
  return material;
}

absl::Status CheckCertificateName(const TlsMaterial& material, const std::string& host) {
  const std::vector<tls::Certificate> chain = tls::ParseCertificates(material.cert);
  if (chain.empty() || tls::IsFor(chain.front().get(), host)) return absl::OkStatus();
  return Wrong(
      "certificate", material.files.cert,
      absl::StrCat("is for ", tls::HostsOf(chain.front().get()), ", not for '", host,
                   "', the address that others use for this server: they would refuse it"));
}

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Open(const TlsOptions& options, Log log) {
  if (options.ca.empty() && options.cert.empty() && options.key.empty()) return nullptr;
  std::shared_ptr<TlsFiles> files(new TlsFiles(options, std::move(log)));
  // Before the files are read, so that a replacement in the meantime is noticed later.
  files->seen_ = files->Look();
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(options);
  if (!material.ok()) return material.status();
  files->current_ = std::make_shared<const TlsMaterial>(*std::move(material));
  return files;
}

TlsFiles::Stamps TlsFiles::Look() const {
  Stamps stamps;
  for (const std::string* path : {&options_.ca, &options_.cert, &options_.key}) {
    struct stat found = {};
    Stamp stamp;
    if (!path->empty() && stat(path->c_str(), &found) == 0) {
      // The change time (ctime) cannot be set back, unlike the modification time.
      stamp = {found.st_dev, found.st_ino, static_cast<uint64_t>(found.st_size),
               found.st_ctim.tv_sec * 1'000'000'000LL + found.st_ctim.tv_nsec};
    }
    stamps.push_back(stamp);
  }
  return stamps;
}

std::shared_ptr<const TlsMaterial> TlsFiles::Current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Stamps stamps = Look();
  const bool same = stamps == seen_;
  // Unusable files may be partly written, or become valid later: they are read again.
  if (same && usable_) return current_;
  seen_ = std::move(stamps);
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(options_);
  usable_ = material.ok();
  if (!usable_ && same) return current_;
  if (material.ok() && material->ca == current_->ca && material->cert == current_->cert &&
      material->key == current_->key) {
    return current_;  // rewritten with the same contents
  }
  if (material.ok()) current_ = std::make_shared<const TlsMaterial>(*std::move(material));
  if (log_) log_(material.status());
  return current_;
}

}  // namespace verbena
