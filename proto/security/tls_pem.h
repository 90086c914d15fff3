// Owning pointers to OpenSSL's objects, and conversion of PEM texts to such objects.
//
// **Thread safety**: pure functions. OpenSSL's error queue belongs to the calling thread and is
// left empty.
#ifndef VERBENA_PROTO_SECURITY_TLS_PEM_H_
#define VERBENA_PROTO_SECURITY_TLS_PEM_H_

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace verbena::tls {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Deleter<&X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<&EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Deleter<&SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Deleter<&SSL_free>>;

// All certificates of the text, in order; empty if there are none or one of them is damaged.
std::vector<Certificate> ParseCertificates(const std::string& pem);

enum class KeyProblem { kNone, kNotAKey, kEncrypted };
struct ParsedKey {
  Key key;  // null if there is a problem
  KeyProblem problem = KeyProblem::kNone;
};
// Never prompts for a pass phrase.
ParsedKey ParseKey(const std::string& pem);

absl::Time NotBefore(const X509* certificate);
absl::Time NotAfter(const X509* certificate);

// "CN=server-0,O=Example", formatted as in RFC 2253.
std::string Issuer(const X509* certificate);
// The hosts of the certificate: "'node1', '10.0.0.1'". "nobody" if it lists no host.
std::string HostsOf(const X509* certificate);
// `host`: a name or a numeric IP address.
bool IsFor(X509* certificate, const std::string& host);
bool IsIpAddress(const std::string& host);

}  // namespace verbena::tls

#endif  // VERBENA_PROTO_SECURITY_TLS_PEM_H_
