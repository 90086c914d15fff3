// gRPC credentials made of TlsFiles.
//
// **Thread safety**: pure functions; any thread may use the returned objects.
#ifndef VERBENA_PROTO_SECURITY_GRPC_CREDENTIALS_H_
#define VERBENA_PROTO_SECURITY_GRPC_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "proto/security/tls_files.h"

namespace verbena {

// Client credentials. They keep this material for their lifetime.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material);

// Server credentials, which must outlive the server because gRPC keeps only a part of them. Every
// new connection uses the current files. With `require_client_certificate` a peer without a
// certificate of one of the CAs is refused; otherwise no client certificate is requested.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               bool require_client_certificate);

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_GRPC_CREDENTIALS_H_
