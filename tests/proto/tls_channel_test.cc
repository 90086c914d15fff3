// The control channel against servers with and without TLS: verification of both certificates, and
// the errors.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <poll.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <optional>

#include "proto/control/grpc_control_channel.h"
#include "proto/security/grpc_credentials.h"
#include "tests/support/certificates.h"
#include "tests/support/process.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena {
namespace tls_channel_test {

using Catch::Contains;
using test::Authority;
using test::Identity;
using test::WriteFile;

constexpr char kHeartbeat[] = "/verbena.v1.Cluster/Heartbeat";

class Service final : public v1::Cluster::CallbackService {
 public:
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest*,
                                      v1::HeartbeatResponse* response) override {
    response->set_revision(7);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class Server {
 public:
  explicit Server(std::shared_ptr<grpc::ServerCredentials> credentials,
                  const std::string& listen = "127.0.0.1:0")
      : credentials_(std::move(credentials)) {
    grpc::ServerBuilder builder;
    ConfigureControlServer(&builder);
    builder.AddListeningPort(listen, credentials_, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    REQUIRE(port_ != 0);
  }
  ~Server() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address(const std::string& host = "127.0.0.1") const {
    return host + ":" + std::to_string(port_);
  }

 private:
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// One process's files; each is written only when it is not empty.
class Party {
 public:
  Party(const std::string& ca, const Identity& identity) {
    Write("ca.pem", ca, &options_.ca);
    Write("cert.pem", identity.cert, &options_.cert);
    Write("key.pem", identity.key, &options_.key);
    auto opened = TlsFiles::Open(options_);
    REQUIRE(opened.ok());
    files_ = *opened;
  }
  void Replace(const std::string& ca, const Identity& identity) {
    Write("ca.pem", ca, &options_.ca);
    Write("cert.pem", identity.cert, &options_.cert);
    Write("key.pem", identity.key, &options_.key);
  }
  const TlsOptions& options() const { return options_; }
  const std::shared_ptr<TlsFiles>& files() const { return files_; }

 private:
  void Write(const char* name, const std::string& text, std::string* path) {
    if (text.empty()) return;
    *path = directory_.File(name);
    WriteFile(*path, text);
  }
  test::TemporaryDirectory directory_;
  TlsOptions options_;
  std::shared_ptr<TlsFiles> files_;
};

// The deadline is far off: the error must come before it.
absl::Status CallOnce(GrpcControlChannel& channel, const std::string& address) {
  std::optional<absl::Status> answer;
  Call<v1::HeartbeatResponse>(
      channel, address, kHeartbeat, v1::HeartbeatRequest(), absl::Hours(1),
      [&](absl::StatusOr<v1::HeartbeatResponse> response) { answer = response.status(); });
  while (!answer.has_value()) {
    if (channel.RunOnce()) continue;
    pollfd descriptor = {channel.wake_fd(), POLLIN, 0};
    REQUIRE(poll(&descriptor, 1, 60000) == 1);
  }
  return *answer;
}

// The error for the user; a peer that is reached but not trusted is never UNAVAILABLE.
std::string Refusal(GrpcControlChannel& channel, const std::string& address) {
  const absl::Status status = CallOnce(channel, address);
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kUnauthenticated);
  const std::string message(status.message());
  REQUIRE(message.rfind(address + ": ", 0) == 0);
  return message;
}

struct World {
  Authority authority{"the authority"};
  Authority stranger{"a stranger"};
  std::string ca = authority.certificate();
  Party server{ca, authority.Issue({.name = "server"})};
};

TEST_CASE("TLS: the client verifies the server, and the server accepts any client") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), false));
  Party client(world.ca, {});
  GrpcControlChannel channel(client.files());
  REQUIRE(CallOnce(channel, server.address()).ok());
  REQUIRE(CallOnce(channel, server.address("localhost")).ok());
}

TEST_CASE("TLS over IPv6: the address in brackets is the one in the certificate") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true), "[::1]:0");
  Party client(world.ca, world.authority.Issue());
  GrpcControlChannel channel(client.files());
  REQUIRE(CallOnce(channel, server.address("[::1]")).ok());
  GrpcControlChannel plain;
  REQUIRE_THAT(Refusal(plain, server.address("[::1]")), Contains("speaks TLS"));
  Party elsewhere(world.ca, world.authority.Issue({.hosts = {"IP:10.0.0.1"}}));
  const Server other(MakeServerCredentials(elsewhere.files(), false), "[::1]:0");
  REQUIRE_THAT(Refusal(channel, other.address("[::1]")),
               Contains("is for '10.0.0.1', not for '::1'"));
}

TEST_CASE("mutual TLS: both sides verify each other") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true));
  Party client(world.ca, world.authority.Issue({.name = "worker", .usage = "clientAuth"}));
  GrpcControlChannel channel(client.files());
  REQUIRE(CallOnce(channel, server.address()).ok());
}

TEST_CASE("a server that fails verification is refused, with the reason") {
  World world;
  Party client(world.ca, {});
  GrpcControlChannel channel(client.files());
  SECTION("by another authority") {
    Party other(world.ca, world.stranger.Issue());
    const Server server(MakeServerCredentials(other.files(), false));
    REQUIRE_THAT(Refusal(channel, server.address()),
                 Contains("is not trusted") && Contains("CN=a stranger") &&
                     Contains(client.options().ca) && Contains("--tls-ca"));
  }
  SECTION("for other names") {
    Party other(world.ca, world.authority.Issue({.hosts = {"DNS:node1", "IP:10.0.0.1"}}));
    const Server server(MakeServerCredentials(other.files(), false));
    REQUIRE_THAT(Refusal(channel, server.address()),
                 Contains("for 'node1', '10.0.0.1', not for '127.0.0.1'"));
    REQUIRE_THAT(Refusal(channel, server.address("localhost")), Contains("not for 'localhost'"));
  }
  SECTION("of a worker: its certificate is not for servers") {
    Party other(world.ca, world.authority.Issue({.usage = "clientAuth"}));
    const Server server(MakeServerCredentials(other.files(), false));
    REQUIRE_THAT(Refusal(channel, server.address()), Contains("is not trusted"));
  }
  SECTION("expired") {
    // Our own files would not be read: gRPC's are.
    const Identity expired =
        world.authority.Issue({.valid_from = -absl::Hours(48), .valid_to = -absl::Hours(24)});
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs = {{expired.key, expired.cert}};
    const Server server(grpc::SslServerCredentials(options));
    REQUIRE_THAT(Refusal(channel, server.address()),
                 Contains("certificate has expired") && Contains("Renew it"));
  }
}

TEST_CASE("a client that fails verification is refused, with the reason") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true));
  SECTION("without a certificate") {
    Party client(world.ca, {});
    GrpcControlChannel channel(client.files());
    REQUIRE_THAT(Refusal(channel, server.address()), Contains("--tls-cert and --tls-key"));
  }
  SECTION("by another authority") {
    Party client(world.ca, world.stranger.Issue());
    GrpcControlChannel channel(client.files());
    REQUIRE_THAT(Refusal(channel, server.address()),
                 Contains("does not trust") && Contains(client.options().cert));
  }
  SECTION("of a server: its certificate is not for clients") {
    Party client(world.ca, world.authority.Issue({.usage = "serverAuth"}));
    GrpcControlChannel channel(client.files());
    REQUIRE_THAT(Refusal(channel, server.address()), Contains("does not trust"));
  }
}

TEST_CASE("one side with TLS and the other without") {
  World world;
  SECTION("the client with") {
    const Server server(grpc::InsecureServerCredentials());
    Party client(world.ca, {});
    GrpcControlChannel channel(client.files());
    REQUIRE_THAT(Refusal(channel, server.address()), Contains("does not speak TLS"));
    // Also when asked again, at once.
    REQUIRE_THAT(Refusal(channel, server.address()), Contains("does not speak TLS"));
  }
  SECTION("the server with") {
    const bool mutual = GENERATE(false, true);
    const Server server(MakeServerCredentials(world.server.files(), mutual));
    GrpcControlChannel channel;
    REQUIRE_THAT(Refusal(channel, server.address()),
                 Contains("speaks TLS") && Contains("--tls-ca"));
  }
}

TEST_CASE("a server takes replaced files without a restart") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true));
  const Identity worker = world.authority.Issue();
  Party client(world.ca, worker);
  GrpcControlChannel earlier(client.files());
  REQUIRE(CallOnce(earlier, server.address()).ok());

  // Another authority for both directions, as after a breach.
  Authority next("the next authority");
  world.server.Replace(next.certificate(), next.Issue());
  Party moved(next.certificate(), next.Issue());
  GrpcControlChannel with_next(moved.files());
  REQUIRE(CallOnce(with_next, server.address()).ok());
  GrpcControlChannel with_old(client.files());
  REQUIRE_THAT(Refusal(with_old, server.address()), Contains("CN=the next authority"));
  // A connection that was there is not cut.
  REQUIRE(CallOnce(earlier, server.address()).ok());

  // Unusable files change nothing.
  WriteFile(world.server.options().key, "nothing");
  GrpcControlChannel again(moved.files());
  REQUIRE(CallOnce(again, server.address()).ok());
}

TEST_CASE("a client takes replaced files without a restart") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true));
  Party client(world.stranger.certificate(), world.stranger.Issue());
  GrpcControlChannel channel(client.files());
  REQUIRE_THAT(Refusal(channel, server.address()), Contains("is not trusted"));
  client.Replace(world.ca, world.authority.Issue());
  REQUIRE(CallOnce(channel, server.address()).ok());
  // In the other direction: the certificate that it accepted before is no longer trusted.
  client.Replace(world.stranger.certificate(), world.stranger.Issue());
  REQUIRE_THAT(Refusal(channel, server.address()), Contains("is not trusted"));
}

TEST_CASE("a channel destroyed while it determines an error's reason does not hang") {
  World world;
  const Server server(MakeServerCredentials(world.server.files(), true));
  for (int round = 0; round < 5; ++round) {
    GrpcControlChannel channel;
    Call<v1::HeartbeatResponse>(channel, server.address(), kHeartbeat, v1::HeartbeatRequest(),
                                absl::Hours(1), [](absl::StatusOr<v1::HeartbeatResponse>) {});
    poll(nullptr, 0, round * 3);  // anywhere in the course of the call
  }
}

}  // namespace tls_channel_test
}  // namespace verbena
