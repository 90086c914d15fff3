#include "proto/security/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <mutex>
#include <string>
#include <utility>

namespace verbena {
namespace {

// gRPC's C++ wrapper has two kinds of TLS server credentials. One has fixed certificates. The other
// has a thread that reads files every second and uses any contents: with a key that does not match
// the certificate, every connection fails. The C core has a third kind, which calls back for every
// new connection and keeps the current files if nothing changed. This class makes it usable from
// C++.
class ReloadingServerCredentials final : public grpc::ServerCredentials {
 public:
  ReloadingServerCredentials(std::shared_ptr<TlsFiles> files, bool require_client_certificate)
      : files_(std::move(files)), mutual_(require_client_certificate) {
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            mutual_ ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &Fetch, this));
  }
  ~ReloadingServerCredentials() override { grpc_server_credentials_release(credentials_); }

  // This class does not inspect calls.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadingServerCredentials*>(self)->Fetch(config);
  }

  // Runs for every connection, on a gRPC thread.
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const TlsMaterial> now = files_->Current();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->cert.c_str()};
    // gRPC 1.51 aborts without CAs, although they are used only if a client certificate is
    // requested.
    const std::string& authorities = mutual_ ? now->ca : now->cert;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    given_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<TlsFiles> files_;
  const bool mutual_;
  std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> given_;  // guarded by mutex_
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = material.ca;
  options.pem_private_key = material.key;
  options.pem_cert_chain = material.cert;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               bool require_client_certificate) {
  return std::make_shared<ReloadingServerCredentials>(std::move(files), require_client_certificate);
}

}  // namespace verbena
