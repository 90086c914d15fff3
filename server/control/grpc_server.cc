#include "server/control/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/grpc_control_channel.h"
#include "proto/threads.h"

namespace verbena::server {

namespace {

// 10,000 members need less than the least of these.
constexpr uint64_t kLeastControlMemory = uint64_t{32} << 20;
constexpr uint64_t kMostControlMemory = uint64_t{1} << 30;
// Of one connection. A process has one to each server, with a long poll for each of its clients.
constexpr int kMostStreams = 4096;
// Also the bytes that a call may hold before it is admitted.
constexpr int kStreamWindow = 65535;
constexpr int kMostControlHeaders = 8192;
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleConnectionMs = 300'000;
// A restore of 60,000 tables; views, which are larger, are answers. gRPC compares the size once it
// has the whole request, so the memory above is what bounds the announced ones.
constexpr int kMostControlRequest = 16 << 20;

// Bounds of what a peer can take, for the most part before it shows a token.
void LimitPeers(uint64_t memory, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("verbena-control");
  quota.Resize(memory);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMostControlRequest);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  // A fixed window: one that adapts to the network grows to many MiB.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindow);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostControlHeaders);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  // A small message could become a large one.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

}  // namespace

uint64_t ControlMemory(uint64_t memory_limit) {
  return std::clamp(memory_limit / 8, kLeastControlMemory, kMostControlMemory);
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const std::string& listen, std::shared_ptr<grpc::ServerCredentials> credentials,
    uint64_t memory, const std::vector<grpc::Service*>& services) {
  absl::StatusOr<std::unique_ptr<ConnectionListener>> listener = ConnectionListener::Open(listen);
  if (!listener.ok()) return listener.status();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureControlServer(&builder);
  LimitPeers(memory, &builder);
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  result->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  for (grpc::Service* service : services) builder.RegisterService(service);
  result->credentials_ = std::move(credentials);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve on ", listen, ": gRPC refused it"));
  }
  result->SetServing(false);
  result->listener_ = *std::move(listener);
  absl::Status started =
      result->listener_->Start([acceptor = result->acceptor_.get()](int from, rdma::UniqueFd fd) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = from;
        connection.fd = fd.release();
        acceptor->HandleNewConnection(&connection);
      });
  if (!started.ok()) return started;
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
  // Ends the listener's thread first, so there is room for this one.
  if (listener_ != nullptr) listener_->Stop();
  // Shutdown() returns when every call has been finished, and finishing takes our drain().
  absl::StatusOr<std::thread> shutdown = StartThread("that ends the control port", [&] {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
    stopped.store(true, std::memory_order_release);
  });
  if (!shutdown.ok()) {
    // The process ends, and calls with it.
    (void)server_.release();
    return;
  }
  while (!stopped.load(std::memory_order_acquire)) {
    drain();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  shutdown->join();
  server_.reset();
}

}  // namespace verbena::server
