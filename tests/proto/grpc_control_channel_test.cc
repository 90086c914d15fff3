// The control channel against real servers on loopback.
#include "proto/control/grpc_control_channel.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "proto/control/standby.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena {
namespace grpc_control_channel_test {

constexpr char kHeartbeat[] = "/verbena.v1.Cluster/Heartbeat";
constexpr char kGetView[] = "/verbena.v1.Cluster/GetView";
constexpr char kDropTable[] = "/verbena.v1.Cluster/DropTable";

// Heartbeat answers incarnation + 1; DropTable fails with the code it is given; GetView never ends.
class TestService final : public v1::Cluster::CallbackService {
 public:
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override {
    ++heartbeats;
    if (standby) {
      const std::lock_guard<std::mutex> lock(mutex);
      return Finished(context, {grpc::StatusCode::UNAVAILABLE, "a standby",
                                StandbyDetails(StandbyError("a standby", leader))});
    }
    response->set_revision(request->incarnation() + 1);
    return Finished(context, grpc::Status::OK);
  }
  grpc::ServerUnaryReactor* DropTable(grpc::CallbackServerContext* context,
                                      const v1::DropTableRequest* request,
                                      v1::DropTableResponse*) override {
    const auto code = static_cast<grpc::StatusCode>(std::stoi(request->name()));
    return Finished(context, grpc::Status(code, "as asked"));
  }
  grpc::ServerUnaryReactor* GetView(grpc::CallbackServerContext*, const v1::GetViewRequest*,
                                    v1::GetViewResponse*) override {
    class Held final : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    ++held;
    return new Held;
  }
  std::atomic<int> held{0};
  std::atomic<int> heartbeats{0};
  std::atomic<bool> standby{false};
  std::mutex mutex;
  std::string leader;  // that a standby names; guarded by mutex

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context,
                                            grpc::Status status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(std::move(status));
    return reactor;
  }
};

class TestServer {
 public:
  explicit TestServer(int port = 0) {
    grpc::ServerBuilder builder;
    ConfigureControlServer(&builder);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  ~TestServer() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  bool listening() const { return server_ != nullptr && port_ != 0; }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  TestService service;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Sleeps on the wake descriptor, as owners do; the limit only turns a hang into a failure.
void RunUntil(GrpcControlChannel& channel, const std::function<bool()>& done) {
  while (!done()) {
    if (channel.RunOnce()) continue;
    pollfd descriptor{channel.wake_fd(), POLLIN, 0};
    REQUIRE(poll(&descriptor, 1, 60000) == 1);
  }
}

template <typename Response = v1::HeartbeatResponse>
absl::StatusOr<Response> CallAndWait(GrpcControlChannel& channel, const std::string& address,
                                     const std::string& method,
                                     const google::protobuf::Message& request,
                                     absl::Duration timeout = absl::Seconds(30)) {
  std::optional<absl::StatusOr<Response>> answer;
  Call<Response>(channel, address, method, request, timeout,
                 [&](absl::StatusOr<Response> response) { answer.emplace(std::move(response)); });
  REQUIRE_FALSE(answer.has_value());  // never inside Unary()
  RunUntil(channel, [&] { return answer.has_value(); });
  return *answer;
}

v1::HeartbeatRequest Heartbeat(uint64_t incarnation) {
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation);
  return request;
}

bool Contains(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

TEST_CASE("calls are answered, many at a time") {
  TestServer server;
  GrpcControlChannel channel;
  REQUIRE(CallAndWait(channel, server.address(), kHeartbeat, Heartbeat(41))->revision() == 42);
  int answers = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    Call<v1::HeartbeatResponse>(channel, server.address(), kHeartbeat, Heartbeat(i),
                                absl::Seconds(30),
                                [&, i](absl::StatusOr<v1::HeartbeatResponse> response) {
                                  REQUIRE(response.ok());
                                  REQUIRE(response->revision() == i + 1);
                                  ++answers;
                                });
  }
  RunUntil(channel, [&] { return answers == 500; });
  REQUIRE_FALSE(channel.RunOnce());
  pollfd descriptor{channel.wake_fd(), POLLIN, 0};
  REQUIRE(poll(&descriptor, 1, 0) == 0);
}

TEST_CASE("every status code is passed on, with the address") {
  TestServer server;
  GrpcControlChannel channel;
  for (int code = 1; code <= 16; ++code) {
    v1::DropTableRequest request;
    request.set_name(std::to_string(code));
    const auto answer = CallAndWait(channel, server.address(), kDropTable, request).status();
    INFO(answer.ToString());
    REQUIRE(static_cast<int>(answer.code()) == code);
    REQUIRE(Contains(answer, server.address() + ": "));
    if (code != 4) REQUIRE(Contains(answer, "as asked"));
  }
  const auto unknown =
      CallAndWait(channel, server.address(), "/verbena.v1.Cluster/Nothing", Heartbeat(1)).status();
  REQUIRE(unknown.code() == absl::StatusCode::kUnimplemented);
}

TEST_CASE("a call that is not answered ends at its deadline") {
  TestServer server;
  GrpcControlChannel channel;
  const auto status =
      CallAndWait(channel, server.address(), kGetView, v1::GetViewRequest(), absl::Milliseconds(50))
          .status();
  REQUIRE(status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(Contains(status, server.address() + ": no answer to " + kGetView + " within 50ms"));
  REQUIRE(
      CallAndWait(channel, server.address(), kGetView, v1::GetViewRequest(), absl::ZeroDuration())
          .status()
          .code() == absl::StatusCode::kDeadlineExceeded);
}

// A port on which nothing listens: bound, so that nobody else takes it.
class ClosedPort {
 public:
  ClosedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~ClosedPort() { close(fd_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int fd_, port_;
};

TEST_CASE("a peer that cannot be reached is UNAVAILABLE, not a wait") {
  ClosedPort port;
  GrpcControlChannel channel;
  // The deadline is far beyond the test's own limit.
  const auto status =
      CallAndWait(channel, port.address(), kHeartbeat, Heartbeat(1), absl::Hours(1)).status();
  INFO(status.ToString());
  REQUIRE(status.code() == absl::StatusCode::kUnavailable);
  REQUIRE(Contains(status, port.address() + ": "));
  REQUIRE(Contains(status, "refused"));
  for (const char* nonsense : {"", "no-port", "127.0.0.1:99999", "::::"}) {
    INFO(nonsense);
    REQUIRE_FALSE(CallAndWait(channel, nonsense, kHeartbeat, Heartbeat(1), absl::Seconds(20)).ok());
  }
}

TEST_CASE("of several coordinators the leader is found, by its name or by asking all") {
  TestServer a, b, c;
  ClosedPort gone;
  GrpcControlChannel channel;
  const std::string list =
      gone.address() + "," + a.address() + "," + b.address() + "," + c.address();
  const auto set_leader = [&](TestServer* leader, const std::string& name) {
    for (TestServer* server : {&a, &b, &c}) {
      server->service.standby = server != leader;
      const std::lock_guard<std::mutex> lock(server->service.mutex);
      server->service.leader = name;
    }
  };
  set_leader(&c, c.address());
  REQUIRE(CallAndWait(channel, list, kHeartbeat, Heartbeat(1))->revision() == 2);
  CHECK(b.service.heartbeats == 0);  // the first standby has named the leader
  // It is asked first from now on.
  for (int i = 0; i < 5; ++i) REQUIRE(CallAndWait(channel, list, kHeartbeat, Heartbeat(1)).ok());
  CHECK(a.service.heartbeats == 1);
  CHECK(c.service.heartbeats == 6);
  // Another one leads, and nobody knows its name yet.
  set_leader(&b, "");
  REQUIRE(CallAndWait(channel, list, kHeartbeat, Heartbeat(1)).ok());
  // A name that the caller did not list is not called.
  TestServer foreign;
  set_leader(&a, foreign.address());
  REQUIRE(CallAndWait(channel, list, kHeartbeat, Heartbeat(1)).ok());
  CHECK(foreign.service.heartbeats == 0);
  // Each is asked once by a call, also where standbys name each other.
  set_leader(nullptr, b.address());
  const int before = a.service.heartbeats + b.service.heartbeats + c.service.heartbeats;
  const auto none = CallAndWait(channel, list, kHeartbeat, Heartbeat(1));
  CHECK(none.status().code() == absl::StatusCode::kUnavailable);
  CHECK(a.service.heartbeats + b.service.heartbeats + c.service.heartbeats == before + 3);
  for (const TestServer* server : {&a, &b, &c}) CHECK(Contains(none.status(), server->address()));
}

TEST_CASE("an error of the leader is the call's, and is not asked for elsewhere") {
  TestServer a, b;
  GrpcControlChannel channel;
  v1::DropTableRequest request;
  request.set_name(std::to_string(static_cast<int>(absl::StatusCode::kUnavailable)));
  const auto status = CallAndWait<v1::DropTableResponse>(channel, a.address() + "," + b.address(),
                                                         kDropTable, request)
                          .status();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(status, a.address() + ": as asked"));
  CHECK_FALSE(Contains(status, b.address()));
}

TEST_CASE("after a coordinator that does not answer in a call's time, another one is called") {
  TestServer a, b;
  GrpcControlChannel channel;
  const std::string list = a.address() + "," + b.address();
  CHECK(CallAndWait<v1::GetViewResponse>(channel, list, kGetView, v1::GetViewRequest(),
                                         absl::Milliseconds(50))
            .status()
            .code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(CallAndWait(channel, list, kHeartbeat, Heartbeat(1)).ok());
  CHECK(a.service.heartbeats == 0);
  CHECK(b.service.heartbeats == 1);
}

TEST_CASE("a channel destroyed with calls outstanding runs no callback and does not hang") {
  TestServer server;
  ClosedPort port;
  const auto alive = std::make_shared<int>(0);
  for (int round = 0; round < 20; ++round) {
    auto channel = std::make_unique<GrpcControlChannel>();
    const int before = server.service.held;
    for (int i = 0; i < 20; ++i) {
      std::string address = i % 5 == 4 ? port.address() : server.address();
      if (i % 5 == 3) address = port.address() + "," + server.address();
      Call<v1::GetViewResponse>(*channel, address, kGetView, v1::GetViewRequest(), absl::Hours(1),
                                [alive](absl::StatusOr<v1::GetViewResponse>) { ++*alive; });
    }
    // Some rounds with calls known to be in the server, some with calls on their way.
    while (round % 2 == 0 && server.service.held < before + 16) std::this_thread::yield();
    channel.reset();
    REQUIRE(alive.use_count() == 1);
  }
  REQUIRE(*alive == 0);
}

TEST_CASE("a restarted server is found again, and calls to a stopped one end at once") {
  auto server = std::make_unique<TestServer>();
  const int port = server->port();
  const std::string address = server->address();
  GrpcControlChannel channel;
  for (int round = 0; round < 3; ++round) {
    REQUIRE(CallAndWait(channel, address, kHeartbeat, Heartbeat(1)).ok());
    server.reset();
    const auto gone = CallAndWait(channel, address, kHeartbeat, Heartbeat(1), absl::Hours(1));
    REQUIRE(gone.status().code() == absl::StatusCode::kUnavailable);
    server = std::make_unique<TestServer>(port);
    REQUIRE(server->listening());
    // A caller tries again after a moment. gRPC's default backoff would refuse far longer.
    bool found = false;
    const auto start = std::chrono::steady_clock::now();
    while (!found && std::chrono::steady_clock::now() - start < std::chrono::seconds(30)) {
      found = CallAndWait(channel, address, kHeartbeat, Heartbeat(1)).ok();
      if (!found) poll(nullptr, 0, 20);
    }
    REQUIRE(found);
  }
}

TEST_CASE("a port in use is an error, not shared") {
  TestServer first;
  TestServer second(first.port());
  REQUIRE(first.listening());
  REQUIRE_FALSE(second.listening());
}

TEST_CASE("several threads may start calls and run callbacks") {
  TestServer server;
  GrpcControlChannel channel;
  std::atomic<int> answers{0};
  std::vector<std::thread> threads;
  constexpr int kEach = 200;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        Call<v1::HeartbeatResponse>(
            channel, server.address(), kHeartbeat, Heartbeat(i), absl::Seconds(30),
            [&](absl::StatusOr<v1::HeartbeatResponse> response) { answers += response.ok(); });
        channel.RunOnce();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RunUntil(channel, [&] { return answers == 3 * kEach; });
}

}  // namespace grpc_control_channel_test
}  // namespace verbena
