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
#include "proto/base/threads.h"
#include "proto/control/grpc_control_channel.h"

namespace verbena::server {

namespace {

// 10,000 members need less than the least of these.
constexpr uint64_t kLeastControlMemory = uint64_t{32} << 20;
constexpr uint64_t kMostControlMemory = uint64_t{1} << 30;
// Limit of one connection. A process has one connection to each server, with a long poll for each
// of its clients.
constexpr int kMostStreams = 4096;
// Also the bytes that a call may hold before it is admitted.
constexpr int kStreamWindow = 65535;
constexpr int kMostControlHeaders = 8192;
constexpr int kMostReflectionThreads = 8;
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleConnectionMs = 300'000;
// Enough for a restore of 60,000 tables; views are larger, but they are replies. gRPC compares the
// size once it has the whole request, so until then the memory quota bounds the request.
constexpr int kMostControlRequest = 16 << 20;

// Bounds the memory, threads and streams that a peer can take, mostly before it shows a token.
void LimitPeers(uint64_t memory, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("verbena-control");
  quota.Resize(memory);
  // Reflection alone is served by threads of gRPC's: one for each of its calls.
  quota.SetMaxThreads(kMostReflectionThreads);
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
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
    uint64_t memory, const std::vector<ControlService*>& services) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(listen);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<std::unique_ptr<ControlPort>> port =
      ControlPort::Listen(listen, {.caller_bytes = memory / 2});
  if (!port.ok()) return port.status();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  Parts& parts = *result->parts_;
  grpc::ServerBuilder builder;
  ConfigureControlServer(&builder);
  LimitPeers(memory, &builder);
  parts.acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  for (ControlService* service : services) {
    service->SetPort(port->get());
    builder.RegisterService(service);
  }
  parts.credentials = std::move(credentials);
  parts.server = builder.BuildAndStart();
  if (parts.server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": gRPC refused it"));
  }
  result->address_ = JoinHostPort(parsed->host, (*port)->port());
  result->SetServing(false);
  parts.port = *std::move(port);
  const absl::Status serves =
      parts.port->Serve([acceptor = parts.acceptor.get()](int listener, int connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
        taken.listener_fd = listener;
        taken.fd = connection;
        acceptor->HandleNewConnection(&taken);
      });
  if (!serves.ok()) return serves;
  return result;
}

GrpcServer::~GrpcServer() {
  (void)Stop([] {});
}

void GrpcServer::SetServing(bool serving) {
  if (auto* health = parts_->server->GetHealthCheckService()) {
    // "" is the server as a whole.
    for (const char* name : {"", "verbena.v1.Cluster", "verbena.v1.Shard"}) {
      health->SetServingStatus(name, serving);
    }
  }
}

absl::Status GrpcServer::Stop(const std::function<void()>& drain) {
  if (parts_->server == nullptr || std::exchange(stopped_, true)) return absl::OkStatus();
  // Ends the port's thread first, so there is room for the one below.
  if (parts_->port != nullptr) parts_->port->Stop();
  const auto longest = std::chrono::steady_clock::now() + kLongestStop;
  // Shutdown() returns when every call has been finished, and finishing takes our drain().
  absl::StatusOr<std::thread> shutdown =
      StartThread("that ends the control port", [parts = parts_] {
        parts->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
        parts->server->Wait();
        parts->ended.store(true, std::memory_order_release);
      });
  if (!shutdown.ok()) {
    // Its calls go on for as long as this process does.
    (void)new std::shared_ptr<Parts>(parts_);
    return shutdown.status();
  }
  while (!parts_->ended.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() > longest) {
      shutdown->detach();
      return absl::DeadlineExceededError(
          absl::StrCat("calls of the control plane have not ended within ", kLongestStop.count(),
                       " s; threads may be missing (", ThreadLimits(), ")"));
    }
    drain();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  shutdown->join();
  parts_->server.reset();
  return absl::OkStatus();
}

}  // namespace verbena::server
