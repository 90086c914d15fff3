// The gRPC server of a verbenad: its services, health checking and reflection on one address.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CONTROL_GRPC_SERVER_H_
#define VERBENA_SERVER_CONTROL_GRPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/control_call.h"
#include "server/control/control_port.h"

namespace verbena::server {

// Of GrpcServer::Start(): a part of --memory-limit.
uint64_t ControlMemory(uint64_t memory_limit);

class GrpcServer {
 public:
  // `credentials`: of every connection. `memory`: bytes that connections and requests may take
  // together; beyond it gRPC ends streams. `services` outlive it. UNAVAILABLE: "cannot listen on
  // HOST:PORT: address already in use".
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const std::string& listen, std::shared_ptr<grpc::ServerCredentials> credentials,
      uint64_t memory, const std::vector<ControlService*>& services);
  ~GrpcServer();

  const std::string& address() const { return address_; }  // host:port, with the port taken
  size_t connections() const { return parts_->port->connections(); }
  // What health checking answers, for all services.
  void SetServing(bool serving);
  // Takes no new calls and waits for the ones under way, which are cancelled after a moment.
  // `drain` runs again and again meanwhile, on this thread: whatever the calls wait for.
  // An error after kLongestStop: gRPC 1.51 waits for ever for threads that it cannot start. Calls
  // may then still run, so nothing of their services may be destroyed, and the process should end.
  // What they use of this object outlives it.
  absl::Status Stop(const std::function<void()>& drain);

  static constexpr std::chrono::seconds kLongestStop{5};

 private:
  GrpcServer() = default;
  // The server goes first.
  struct Parts {
    std::shared_ptr<grpc::ServerCredentials> credentials;
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
    std::unique_ptr<ControlPort> port;
    std::unique_ptr<grpc::Server> server;
    std::atomic<bool> ended{false};
  };

  std::string address_;
  bool stopped_ = false;
  // Shared with the thread that ends the server, and with calls that do not end.
  std::shared_ptr<Parts> parts_ = std::make_shared<Parts>();
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_GRPC_SERVER_H_
