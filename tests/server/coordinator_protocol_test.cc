// Protocol versions of coordinator, servers and workers: who may join, and what is in force.
#include <catch2/catch.hpp>
#include <string>

#include "proto/protocol_version.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server::coordinator_protocol_test {
namespace {

using Catch::Matchers::Contains;

CoordinatorOptions Speaking(const Protocols& protocols, uint32_t servers) {
  CoordinatorOptions options;
  options.protocols = protocols;
  options.expected_servers = servers;
  return options;
}

absl::Status JoinServer(TestCoordinator* c, const std::string& name, const Protocols& protocols) {
  v1::JoinServerRequest request = c->ServerRequest(name);
  SetProtocols(protocols, request.mutable_protocol());
  request.set_version("1.2.3");
  return c->Call(&Coordinator::JoinServer, request).status();
}

absl::Status JoinWorker(TestCoordinator* c, const Protocols& protocols) {
  v1::JoinWorkerRequest request = c->WorkerRequest("job", 1, -1, /*observer=*/true);
  SetProtocols(protocols, request.mutable_protocol());
  return c->Call(&Coordinator::JoinWorker, request).status();
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("the version in force rises when the last old server has gone, and never falls") {
  TestCoordinator c(Speaking({10, 12}, 2));
  CHECK(ProtocolInForce(c.view()) == 10);
  REQUIRE(JoinServer(&c, "a", {11, 12}).code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(JoinServer(&c, "a", {10, 12}).ok());
  CHECK(c.view().servers(0).version() == "1.2.3");
  // The first server does not decide for those that are expected.
  CHECK(ProtocolInForce(c.view()) == 10);
  REQUIRE(JoinServer(&c, "b", {10, 11}).ok());
  CHECK(ProtocolInForce(c.view()) == 11);
  SECTION("a silent one may return") {
    REQUIRE(c.Leave(c.view().servers(1).incarnation()).ok());
    CHECK(ProtocolInForce(c.view()) == 11);
    v1::RemoveServerRequest remove;
    remove.set_request_id(c.NewId());
    remove.set_name("b");
    REQUIRE(JoinServer(&c, "c", {10, 12}).ok());
    REQUIRE(c.Call(&Coordinator::RemoveServer, remove).ok());
  }
  SECTION("it is replaced") {
    REQUIRE(c.Leave(c.view().servers(1).incarnation()).ok());
    REQUIRE(JoinServer(&c, "b", {10, 12}).ok());
  }
  CHECK(ProtocolInForce(c.view()) == 12);
  c.Restart();
  CHECK(ProtocolInForce(c.view()) == 12);
  CHECK_THAT(
      Message(JoinServer(&c, "d", {10, 11})),
      Contains("server 'd': its verbenad speaks protocol version 10 to 11, and version 12 is "
               "in force in this cluster; upgrade this server's verbenad"));
  CHECK_THAT(Message(JoinServer(&c, "d", {13, 13})),
             Contains("speaks protocol version 13, and version 12 is in force in this cluster; "
                      "upgrade the coordinator and the other servers first"));
  CHECK(c.view().servers_size() == 2);
}

TEST_CASE("the coordinator holds the version in force back, and refuses a state that has a newer") {
  TestCoordinator c(Speaking({10, 11}, 1));
  REQUIRE(JoinServer(&c, "a", {10, 12}).ok());
  CHECK(ProtocolInForce(c.view()) == 11);
  c.options().protocols = {10, 12};
  c.Restart();
  CHECK(ProtocolInForce(c.view()) == 12);

  MemoryStore store;
  CoordinatorState state;
  ManualClock clock;
  CoordinatorOptions options = Speaking({10, 12}, 1);
  options.cluster_id = "other";
  REQUIRE(Coordinator::Create(options, &clock, &store).ok());
  state = *store.Load();
  state.view.set_protocol(12);
  StateChange whole;
  REQUIRE(store.Save(state, whole).ok());
  options.protocols = {10, 11};
  const absl::Status older = Coordinator::Create(options, &clock, &store).status();
  CHECK(older.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(Message(older), Contains("protocol version 12 is in force in it, and this verbenad "
                                      "speaks 10 to 11; start the newer verbenad"));
  options.protocols = {13, 14};
  CHECK_THAT(
      Message(Coordinator::Create(options, &clock, &store).status()),
      Contains("speaks 13 to 14; upgrade coordinator and servers to a version between first"));
}

TEST_CASE("a server that names no versions speaks 10 alone") {
  TestCoordinator c(Speaking({10, 11}, 1));
  v1::JoinServerRequest unnamed = c.ServerRequest("a");
  unnamed.clear_protocol();
  REQUIRE(c.Call(&Coordinator::JoinServer, unnamed).ok());
  CHECK(ProtocolInForce(c.view()) == 10);
  v1::GetViewRequest look;
  const auto view = c.Call<v1::GetViewResponse>(&Coordinator::GetView, look);
  REQUIRE(view.ok());
  CHECK(ProtocolsOf(view->coordinator_protocol()) == Protocols{10, 11});
  REQUIRE(c.Leave(c.view().servers(0).incarnation()).ok());
  REQUIRE(JoinServer(&c, "a", {10, 11}).ok());
  CHECK(ProtocolInForce(c.view()) == 11);
  unnamed = c.ServerRequest("b");
  unnamed.clear_protocol();
  CHECK(c.Call(&Coordinator::JoinServer, unnamed).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("workers do not hold the version in force back, and need a version of the cluster") {
  TestCoordinator c(Speaking({11, 12}, 1));
  REQUIRE(JoinServer(&c, "a", {11, 12}).ok());
  CHECK(ProtocolInForce(c.view()) == 12);
  CHECK(JoinWorker(&c, {11, 11}).ok());
  CHECK(JoinWorker(&c, {12, 13}).ok());
  CHECK_THAT(Message(JoinWorker(&c, {10, 10})),
             Contains("worker: its libverbena speaks protocol version 10, and this cluster 11 to "
                      "12; upgrade the worker's libverbena"));
  const absl::Status later = JoinWorker(&c, {13, 13});
  CHECK(later.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(Message(later), Contains("upgrade the coordinator and the servers first"));
}

TEST_CASE("a version that could not be saved is not in force") {
  FaultyStore store;
  TestCoordinator c(Speaking({10, 11}, 1), &store);
  store.full = true;
  CHECK_FALSE(JoinServer(&c, "a", {10, 11}).ok());
  CHECK(ProtocolInForce(c.view()) == 10);
  store.full = false;
  REQUIRE(JoinServer(&c, "a", {10, 11}).ok());
  CHECK(ProtocolInForce(c.view()) == 11);
}

}  // namespace
}  // namespace verbena::server::coordinator_protocol_test
