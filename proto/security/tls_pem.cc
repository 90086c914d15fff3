#include "proto/security/tls_pem.h"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>

#include "absl/strings/str_cat.h"

namespace verbena::tls {
namespace {

using Bio = std::unique_ptr<BIO, Deleter<&BIO_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Deleter<&GENERAL_NAMES_free>>;

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without this callback OpenSSL prompts on the terminal.
int NoPassPhrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

std::string AddressText(const ASN1_OCTET_STRING* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(address) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(address) != 16) return "?";
  inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof(text));
  return text;
}

}  // namespace

std::vector<Certificate> ParseCertificates(const std::string& pem) {
  std::vector<Certificate> found;
  const Bio bio = Reader(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(certificate);
  }
  // At the end of the text the error is "no start line"; any other error means damage.
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (!at_end) found.clear();
  return found;
}

ParsedKey ParseKey(const std::string& pem) {
  ParsedKey parsed;
  bool asked = false;
  const Bio bio = Reader(pem);
  parsed.key.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassPhrase, &asked));
  ERR_clear_error();
  if (parsed.key == nullptr) {
    parsed.problem = asked ? KeyProblem::kEncrypted : KeyProblem::kNotAKey;
  }
  return parsed;
}

absl::Time NotBefore(const X509* certificate) { return ToTime(X509_get0_notBefore(certificate)); }

absl::Time NotAfter(const X509* certificate) { return ToTime(X509_get0_notAfter(certificate)); }

std::string Issuer(const X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_issuer_name(certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(std::max<long>(size, 0))};
}

std::string HostsOf(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string hosts;
  const auto add = [&hosts](const std::string& host) {
    absl::StrAppend(&hosts, hosts.empty() ? "'" : ", '", host, "'");
  };
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      const auto* data = reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName));
      add(std::string(data, static_cast<size_t>(ASN1_STRING_length(name->d.dNSName))));
    } else if (name->type == GEN_IPADD) {
      add(AddressText(name->d.iPAddress));
    }
  }
  return hosts.empty() ? "nobody (it has no subject alternative name)" : hosts;
}

bool IsIpAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool IsFor(X509* certificate, const std::string& host) {
  return IsIpAddress(host)
             ? X509_check_ip_asc(certificate, host.c_str(), 0) == 1
             : X509_check_host(certificate, host.data(), host.size(), 0, nullptr) == 1;
}

}  // namespace verbena::tls
