// gRPC credentials made of TlsFiles.
//
// **Thread safety**: pure functions; what they return may be used from any thread.
#ifndef VERBENA_PROTO_GRPC_CREDENTIALS_H_
#define VERBENA_PROTO_GRPC_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "proto/tls_files.h"

namespace verbena {

// Of a client; of this material for good.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material);

// Of a server, which they must outlive (gRPC keeps only a part of them). Every new connection gets
// the files as they are then. `require_client_certificate`: a peer without a certificate by one of
// the authorities is refused; otherwise none is asked for.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(std::shared_ptr<TlsFiles> files,
                                                               bool require_client_certificate);

}  // namespace verbena

#endif  // VERBENA_PROTO_GRPC_CREDENTIALS_H_
