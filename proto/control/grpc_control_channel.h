// ControlChannel over gRPC: calls any unary method of any server by name, with or without TLS.
//
// **Thread safety**: Unary(), RunOnce() and wake_fd() may be called from any thread (a mutex guards
// them). `done` runs on the thread that calls RunOnce(). The destructor must not run concurrently
// with another call, nor inside a `done`.
//
// Invariants:
//  1. A call's `done` and its response message are touched only inside RunOnce(), never by a gRPC
//     thread.
//  2. When the destructor returns, no other thread uses this object. Pending `done`s are dropped.
//  3. A token is sent only to a peer that TLS has verified, or to this host.
//  4. With TLS, nothing is sent to a peer that is not verified, and nothing is sent without TLS.
//  5. Of a list of addresses, a call is sent to one at a time, and to each at most once.
#ifndef VERBENA_PROTO_CONTROL_GRPC_CONTROL_CHANNEL_H_
#define VERBENA_PROTO_CONTROL_GRPC_CONTROL_CHANNEL_H_

#include <memory>
#include <string>

#include "proto/control/control_channel.h"
#include "proto/security/tls_files.h"
#include "proto/security/token_file.h"

namespace grpc {
class ServerBuilder;
}

namespace verbena {

class GrpcControlChannel final : public ControlChannel {
 public:
  // The longest time from when a peer listens again until a call reaches it. It is the longest
  // pause between two connection attempts (500 ms plus up to 20% at random) and the attempt itself.
  static constexpr absl::Duration kLongestReconnect = absl::Seconds(1);

  // FAILED_PRECONDITION: this process is a fork of one that has made a channel. gRPC does not work
  // in such a fork: its threads are missing, and calls would hang.
  static absl::Status CheckProcess();

  // `tls` null: without TLS. `token` null: without a token. `attempt` limits one connection
  // attempt: if a host accepts connections but does not answer, calls are UNAVAILABLE after it. If
  // it is longer than the calls' timeouts, these calls end by their own deadlines.
  explicit GrpcControlChannel(std::shared_ptr<TlsFiles> tls = nullptr,
                              std::shared_ptr<TokenFile> token = nullptr,
                              absl::Duration attempt = absl::Seconds(2));
  // Cancels outstanding calls and waits until gRPC has released them.
  ~GrpcControlChannel() override;
  GrpcControlChannel(const GrpcControlChannel&) = delete;
  GrpcControlChannel& operator=(const GrpcControlChannel&) = delete;

  // `address` may be a list "HOST:PORT,HOST:PORT" of coordinators: the one that has answered last
  // is called first. A coordinator that does not lead (proto/control/standby.h) or is not reached
  // is passed over for the one that it names, if that is listed, else for the next. After one that
  // did not answer by a call's deadline, the next call begins with another.
  //
  // Errors contain the address: "127.0.0.1:7000: failed to connect ...". An unreachable peer is
  // UNAVAILABLE at once, not at the deadline; a peer that restarts is reachable again within about
  // a second. UNAUTHENTICATED: TLS verification failed, only one side uses TLS, or a token would be
  // sent unencrypted. The message has the cause and the fix; a TLS probe finds them, which takes up
  // to a second.
  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override;
  bool RunOnce() override;
  bool any_thread() const override { return true; }
  int wake_fd() const override;

 private:
  struct State;
  struct Pending;
  // Shared with gRPC's callbacks, whose last step may run while the destructor ends.
  std::shared_ptr<State> state_;
};

// Settings that a server needs for clients of this channel: message sizes, and the allowed rate of
// keepalive pings. gRPC's default would close the connection after a few pings.
void ConfigureControlServer(grpc::ServerBuilder* builder);

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_GRPC_CONTROL_CHANNEL_H_
