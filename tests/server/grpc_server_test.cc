#include "server/control/grpc_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "server/control/control_call.h"
#include "tests/support/process.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena::server {
namespace {

// Keeps each call until Answer().
class KeepingService final : public ControlService {
 public:
  KeepingService() {
    Add<KeepingService, v1::LeaveRequest, v1::LeaveResponse>(&KeepingService::Keep);
  }
  bool kept() const { return kept_.load() != nullptr; }
  void Answer() {
    if (ControlCall* const call = kept_.exchange(nullptr)) call->Finish(grpc::Status::OK);
  }

 protected:
  absl::Status Admit(Caller*, const std::string&) const override { return absl::OkStatus(); }

 private:
  void Keep(ControlCall* call, const v1::LeaveRequest*, v1::LeaveResponse*) { kept_ = call; }

  std::atomic<ControlCall*> kept_{nullptr};
};

// A server with one call that is not answered.
struct Fixture {
  Fixture() {
    auto started =
        GrpcServer::Start("127.0.0.1:0", grpc::InsecureServerCredentials(), 32 << 20, {&service});
    REQUIRE(started.ok());
    server = *std::move(started);
    caller = std::thread([this] {
      grpc::ClientContext context;
      v1::LeaveResponse response;
      v1::Cluster::NewStub(
          grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()))
          ->Leave(&context, v1::LeaveRequest(), &response);
    });
    REQUIRE(test::Eventually([this] { return service.kept(); }));
  }
  ~Fixture() { caller.join(); }

  KeepingService service;
  std::unique_ptr<GrpcServer> server;
  std::thread caller;
};

TEST_CASE("the control port ends once its calls are answered") {
  Fixture w;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(w.server->Stop([&] { w.service.Answer(); }).ok());
  CHECK(std::chrono::steady_clock::now() - begin < GrpcServer::kLongestStop);
}

TEST_CASE("the end of the control port is not waited for without end") {
  // Never destroyed: the call may use it for as long as this process lives.
  static auto& w = *new Fixture;
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status stopped = w.server->Stop([] {});
  CHECK(absl::IsDeadlineExceeded(stopped));
  CHECK_THAT(std::string(stopped.message()), Catch::Contains("have not ended within 5 s"));
  CHECK(std::chrono::steady_clock::now() - begin < 2 * GrpcServer::kLongestStop);
  // A late answer is still allowed: the call keeps the parts of the server that it needs.
  w.server.reset();
  w.service.Answer();
  w.caller.join();
}

}  // namespace
}  // namespace verbena::server
