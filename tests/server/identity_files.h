// The TLS files of one process of a test.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_SERVER_IDENTITY_FILES_H_
#define VERBENA_TESTS_SERVER_IDENTITY_FILES_H_

#include <string>
#include <vector>

#include "tests/support/certificates.h"
#include "tests/support/process.h"
#include "verbena/tls_options.h"

namespace verbena::test {

// Authority, certificate and key, as options name them.
class Files {
 public:
  Files(const std::string& ca, const Identity& identity) { Replace(ca, identity); }
  void Replace(const std::string& ca, const Identity& identity) const {
    WriteFile(tls().ca, ca);
    WriteFile(tls().cert, identity.cert);
    WriteFile(tls().key, identity.key);
  }
  TlsOptions tls() const {
    return {directory_.File("ca.pem"), directory_.File("cert.pem"), directory_.File("key.pem")};
  }
  std::vector<std::string> Options(std::vector<std::string> more = {}) const {
    const TlsOptions o = tls();
    more.insert(more.end(), {"--tls-ca", o.ca, "--tls-cert", o.cert, "--tls-key", o.key});
    return more;
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_IDENTITY_FILES_H_
