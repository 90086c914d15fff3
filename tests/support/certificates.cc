#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>

namespace verbena::test {
namespace {

void Need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "certificates: %s failed\n", what);
  std::abort();
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string CertificatePem(X509* certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  Need(PEM_write_bio_X509(bio, certificate) == 1, "PEM_write_bio_X509");
  return TextOf(bio);
}

std::string KeyPem(EVP_PKEY* key) {
  BIO* bio = BIO_new(BIO_s_mem());
  Need(PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
       "PEM_write_bio_PrivateKey");
  return TextOf(bio);
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Need(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, long serial) {
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

Authority::Authority(const std::string& name) : key_(EVP_EC_gen("P-256")) {
  Need(key_ != nullptr, "EVP_EC_gen");
  certificate_ = NewCertificate(name, key_, 1);
  X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_));
  X509_gmtime_adj(X509_getm_notBefore(certificate_), -86400L * 365);
  X509_gmtime_adj(X509_getm_notAfter(certificate_), 86400L * 365);
  AddExtension(certificate_, certificate_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_, certificate_, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(certificate_, certificate_, NID_subject_key_identifier, "hash");
  Need(X509_sign(certificate_, key_, EVP_sha256()) > 0, "X509_sign");
}

Authority::~Authority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

std::string Authority::certificate() const { return CertificatePem(certificate_); }

Identity Authority::Issue(const CertificateOptions& options) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  Need(key != nullptr, "EVP_EC_gen");
  X509* certificate = NewCertificate(options.name, key, ++serial_);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate_));
  X509_gmtime_adj(X509_getm_notBefore(certificate), absl::ToInt64Seconds(options.valid_from));
  X509_gmtime_adj(X509_getm_notAfter(certificate), absl::ToInt64Seconds(options.valid_to));
  std::string hosts;
  for (const std::string& host : options.hosts) hosts += (hosts.empty() ? "" : ",") + host;
  AddExtension(certificate, certificate_, NID_authority_key_identifier, "keyid");
  if (!hosts.empty()) AddExtension(certificate, certificate_, NID_subject_alt_name, hosts);
  if (!options.usage.empty()) {
    AddExtension(certificate, certificate_, NID_ext_key_usage, options.usage);
  }
  Need(X509_sign(certificate, key_, EVP_sha256()) > 0, "X509_sign");
  Identity identity = {CertificatePem(certificate), KeyPem(key)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return identity;
}

std::string Encrypted(const std::string& key_pem) {
  BIO* in = BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  BIO_free(in);
  Need(key != nullptr, "PEM_read_bio_PrivateKey");
  BIO* out = BIO_new(BIO_s_mem());
  unsigned char phrase[] = "phrase";
  Need(PEM_write_bio_PrivateKey(out, key, EVP_aes_128_cbc(), phrase, 6, nullptr, nullptr) == 1,
       "PEM_write_bio_PrivateKey");
  EVP_PKEY_free(key);
  return TextOf(out);
}

}  // namespace verbena::test
