#include "server/control/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/grpc_control_channel.h"
#include "server/control/address.h"

namespace verbena::server {

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const std::string& listen, std::shared_ptr<grpc::ServerCredentials> credentials,
    const std::vector<grpc::Service*>& services) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(listen);
  if (!parsed.ok()) return parsed.status();
  // gRPC says only that it failed; the reason comes from trying ourselves.
  if (absl::Status status = CheckCanListen(listen); !status.ok()) return status;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureControlServer(&builder);
  // With port reuse a second daemon would take half of the first one's connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  builder.AddListeningPort(listen, credentials, &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->credentials_ = std::move(credentials);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": gRPC refused it"));
  }
  result->address_ = JoinHostPort(parsed->host, static_cast<uint16_t>(port));
  result->SetServing(false);
  return result;
}

GrpcServer::~GrpcServer() {
  if (server_ != nullptr) Stop([] {});
}

void GrpcServer::SetServing(bool serving) {
  if (auto* health = server_->GetHealthCheckService()) {
    // "" is the server as a whole.
    for (const char* name : {"", "verbena.v1.Cluster", "verbena.v1.Shard"}) {
      health->SetServingStatus(name, serving);
    }
  }
}

void GrpcServer::Stop(const std::function<void()>& drain) {
  if (server_ == nullptr) return;
  std::atomic<bool> stopped{false};
  // Shutdown() returns when every call has been finished, and finishing takes our drain().
  std::thread shutdown([&] {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    stopped.store(true, std::memory_order_release);
  });
  while (!stopped.load(std::memory_order_acquire)) {
    drain();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  shutdown.join();
  server_.reset();
}

}  // namespace verbena::server
