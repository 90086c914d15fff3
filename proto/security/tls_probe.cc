#include "proto/security/tls_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/host_port.h"
#include "proto/security/tls_pem.h"

namespace verbena {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);  // between checks of `stop`
constexpr unsigned char kHttp2[] = {2, 'h', '2'};         // ALPN: length and name

// The time limit and the stop flag of a probe.
class Patience {
 public:
  Patience(absl::Duration at_most, const std::atomic<bool>& stop)
      : end_(absl::Now() + at_most), stop_(stop) {}
  // Waits until the descriptor is ready for `events`; false: give up.
  bool Wait(int fd, short events) const {
    while (!stop_.load(std::memory_order_relaxed)) {
      const absl::Duration left = end_ - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      pollfd ready = {fd, events, 0};
      const int ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLook))) + 1;
      if (poll(&ready, 1, ms) > 0) return true;
    }
    return false;
  }

 private:
  const absl::Time end_;
  const std::atomic<bool>& stop_;
};

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// -1: the connection failed or timed out.
int Connect(const HostAndPort& to, const Patience& patience) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(to.host.c_str(), absl::StrCat(to.port).c_str(), &hints, &found) != 0) return -1;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && patience.Wait(fd, POLLOUT) &&
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)) {
      return fd;
    }
    close(fd);
  }
  return -1;
}

tls::Context MakeContext(const TlsMaterial* material) {
  tls::Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return nullptr;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  if (material == nullptr) return context;  // without TLS there is nothing to verify
  for (const tls::Certificate& authority : tls::ParseCertificates(material->ca)) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
  }
  if (material->cert.empty()) return context;
  const std::vector<tls::Certificate> chain = tls::ParseCertificates(material->cert);
  const tls::ParsedKey key = tls::ParseKey(material->key);
  if (chain.empty() || key.key == nullptr) return context;
  SSL_CTX_use_certificate(context.get(), chain.front().get());
  SSL_CTX_use_PrivateKey(context.get(), key.key.get());
  for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context.get(), chain[i].get());
  return context;
}

// Repeats `step` (SSL_connect, SSL_read) until it succeeds or fails. 0: timeout.
template <typename F>
int Repeat(SSL* ssl, int fd, const Patience& patience, F step) {
  while (true) {
    ERR_clear_error();
    const int result = step();
    if (result > 0) return result;
    const int error = SSL_get_error(ssl, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return -1;
    if (!patience.Wait(fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return 0;
  }
}

// The server's part in a handshake.
struct Course {
  tls::Certificate shown;  // the server's certificate; null: none was received
  bool asked = false;      // whether it requested a client certificate
};

int NoteCertificate(int ok, X509_STORE_CTX* store) {
  const auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  X509* leaf = X509_STORE_CTX_get0_cert(store);
  if (leaf != nullptr && X509_up_ref(leaf) == 1) {
    static_cast<Course*>(SSL_get_app_data(ssl))->shown.reset(leaf);
  }
  return ok;
}

int NoteQuestion(SSL*, void* course) {
  static_cast<Course*>(course)->asked = true;
  return 1;
}

std::string Validity(const X509* certificate) {
  const auto minute = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
  };
  return absl::StrCat("valid ", minute(tls::NotBefore(certificate)), " to ",
                      minute(tls::NotAfter(certificate)));
}

std::string NotTrusted(long verdict, X509* leaf, const TlsMaterial& material,
                       const std::string& host) {
  const std::string reason = X509_verify_cert_error_string(verdict);
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat("its certificate is not valid now (", reason, "; ", Validity(leaf),
                          "). Renew it there (a restart is not needed), or set this host's clock "
                          "right");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("its certificate is for ", tls::HostsOf(leaf), ", not for '", host,
                          "'. Reach it by a name of its certificate, or have one issued with this "
                          "name as subject alternative name");
    default:
      return absl::StrCat("its certificate is not trusted (", reason, "; issued by ",
                          tls::Issuer(leaf), "). Is ", material.files.ca,
                          " the file of the authority that issued it? --tls-ca names it");
  }
}

// A gRPC server that rejects its client's certificate closes the connection without an alert.
std::string Refused(const TlsMaterial& material) {
  if (material.cert.empty()) {
    return "it wants a certificate of its clients (mutual TLS) and none was given: --tls-cert and "
           "--tls-key name one";
  }
  return absl::StrCat("it does not trust the certificate in ", material.files.cert,
                      ". Is it by an authority in that server's --tls-ca, for use by clients, and "
                      "valid by that host's clock?");
}

std::string ExplainWithTls(SSL* ssl, int fd, const TlsMaterial& material, const std::string& host,
                           const Patience& patience) {
  Course course;
  SSL_set_app_data(ssl, &course);
  SSL_set_verify(ssl, SSL_VERIFY_PEER, &NoteCertificate);
  SSL_set_cert_cb(ssl, &NoteQuestion, &course);
  const int connected = Repeat(ssl, fd, patience, [&] { return SSL_connect(ssl); });
  if (connected == 0) return "";
  const long verdict = SSL_get_verify_result(ssl);
  if (connected < 0 && verdict != X509_V_OK && course.shown != nullptr) {
    return NotTrusted(verdict, course.shown.get(), material, host);
  }
  if (connected < 0 && course.shown == nullptr) {
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    if (reason != SSL_R_WRONG_VERSION_NUMBER && reason != SSL_R_HTTP_REQUEST) return "";
    return "that port does not speak TLS, and this process is set to use it. Start the "
           "server with --tls-cert, --tls-key and --tls-ca, or leave --tls-ca out here";
  }
  // In TLS 1.3 the server verifies the client certificate only after the handshake. A gRPC server
  // that accepts it sends first (HTTP/2 settings).
  char byte = 0;
  const bool ended =
      connected < 0 || Repeat(ssl, fd, patience, [&] { return SSL_read(ssl, &byte, 1); }) < 0;
  return ended && course.asked ? Refused(material) : "";
}

std::string ExplainWithoutTls(SSL* ssl, int fd, const Patience& patience) {
  Repeat(ssl, fd, patience, [&] { return SSL_connect(ssl); });
  // Regardless of the result, a peer that sends a certificate uses TLS.
  if (SSL_get0_peer_certificate(ssl) == nullptr) return "";
  return "that port speaks TLS, and this process is not set to use it. --tls-ca names "
         "the file of the authority that issued its certificate";
}

}  // namespace

std::string ExplainTlsFailure(const std::string& address, const TlsMaterial* material,
                              absl::Duration at_most, const std::atomic<bool>& stop) {
  const Patience patience(at_most, stop);
  const absl::StatusOr<HostAndPort> to = SplitHostPort(address);
  if (!to.ok()) return "";
  const Socket socket(Connect(*to, patience));
  if (socket.fd() < 0) return "";
  const tls::Context context = MakeContext(material);
  if (context == nullptr) return "";
  const tls::Connection ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket.fd()) != 1) return "";
  if (tls::IsIpAddress(to->host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), to->host.c_str());
  } else {
    SSL_set_tlsext_host_name(ssl.get(), to->host.c_str());
    SSL_set1_host(ssl.get(), to->host.c_str());
  }
  std::string said = material != nullptr
                         ? ExplainWithTls(ssl.get(), socket.fd(), *material, to->host, patience)
                         : ExplainWithoutTls(ssl.get(), socket.fd(), patience);
  ERR_clear_error();
  return said;
}

}  // namespace verbena
