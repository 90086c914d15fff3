// ControlChannel over gRPC: any unary method of any server by its name, with or without TLS.
//
// **Thread safety**: Unary(), RunOnce() and wake_fd() from any thread (a mutex inside); `done` runs
// on the thread that calls RunOnce(). The destructor must not run at the same time as another call,
// nor inside a `done`.
//
// Invariants:
//  1. A call's `done` and its response message are touched only inside RunOnce(), never by a gRPC
//     thread.
//  2. When the destructor returns no other thread uses this object; `done`s not yet run are
//  dropped.
//  3. A token travels to a peer that TLS has made sure of, or to this host itself; never elsewhere.
//  4. With TLS nothing is sent to a peer that is not believed, and nothing ever without TLS.
#ifndef VERBENA_PROTO_GRPC_CONTROL_CHANNEL_H_
#define VERBENA_PROTO_GRPC_CONTROL_CHANNEL_H_

#include <memory>
#include <string>

#include "proto/control_channel.h"
#include "proto/tls_files.h"
#include "proto/token_file.h"

namespace grpc {
class ServerBuilder;
}

namespace verbena {

class GrpcControlChannel final : public ControlChannel {
 public:
  // From the moment a peer listens again until a call reaches it: the longest pause between two
  // attempts to connect (half a second, and a fifth of it at random), and the attempt.
  static constexpr absl::Duration kLongestReconnect = absl::Seconds(1);

  // FAILED_PRECONDITION: an earlier channel was made by a process of which this one is a fork. gRPC
  // works in no such copy: its threads are missing, and calls would wait for ever.
  static absl::Status CheckProcess();

  // Null: without TLS; without a token. `attempt`: limit of one attempt to connect, after which
  // calls to an address where something accepts connections but does not answer are UNAVAILABLE.
  // One that is longer than the calls lets them end by their own deadlines there.
  explicit GrpcControlChannel(std::shared_ptr<TlsFiles> tls = nullptr,
                              std::shared_ptr<TokenFile> token = nullptr,
                              absl::Duration attempt = absl::Seconds(2));
  // Cancels what is outstanding and waits for gRPC to let go of it.
  ~GrpcControlChannel() override;
  GrpcControlChannel(const GrpcControlChannel&) = delete;
  GrpcControlChannel& operator=(const GrpcControlChannel&) = delete;

  // Errors name the address: "127.0.0.1:7000: failed to connect ...". A peer that is not reachable
  // is UNAVAILABLE at once, not at the deadline; one that restarts is found again within about a
  // second. UNAUTHENTICATED says why one of the two sides does not believe the other, or which one
  // does not use TLS, and what to do: found out by a second look, which takes up to a second. Also
  // when a token would have to travel readably.
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
  // Shared with gRPC's callbacks, whose last step may overlap the end of the destructor.
  std::shared_ptr<State> state_;
};

// What a server must set so that clients of this channel work with it: message sizes, and how often
// a client may send keepalive pings (gRPC's default would close the connection after a few).
void ConfigureControlServer(grpc::ServerBuilder* builder);

}  // namespace verbena

#endif  // VERBENA_PROTO_GRPC_CONTROL_CHANNEL_H_
