// Certificates for tests, made by OpenSSL's library: an authority, and the certificates that it
// issues.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_SUPPORT_CERTIFICATES_H_
#define VERBENA_TESTS_SUPPORT_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace verbena::test {

struct CertificateOptions {
  std::string name = "test";
  std::vector<std::string> hosts = {"DNS:localhost", "IP:127.0.0.1", "IP:::1"};
  // From now on.
  absl::Duration valid_from = -absl::Hours(1);
  absl::Duration valid_to = absl::Hours(1);
  // "serverAuth", "clientAuth", both, or "": for anything.
  std::string usage = "serverAuth,clientAuth";
};

// PEM texts.
struct Identity {
  std::string cert, key;
};

class Authority {
 public:
  explicit Authority(const std::string& name);
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  // PEM.
  std::string certificate() const;
  Identity Issue(const CertificateOptions& options = {});

 private:
  X509* certificate_;
  EVP_PKEY* key_;
  long serial_ = 1;
};

// The key with a pass phrase.
std::string Encrypted(const std::string& key_pem);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_CERTIFICATES_H_
