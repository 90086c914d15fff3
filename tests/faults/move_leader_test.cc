// `verbena move-leader`: the leader's office moves to a standby, as planned.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "proto/control/standby.h"
#include "tests/faults/coordinator_work.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

Finished MoveLeader(const std::string& cluster, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {CliPath(),   "--cluster", cluster,
                                   "--timeout", "20",        "move-leader"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunProgram(argv);
}

absl::Status Request(const std::string& coordinator, const std::string& successor, uint64_t term) {
  GrpcControlChannel channel(nullptr, nullptr, absl::Seconds(5));
  v1::MoveLeaderRequest request;
  request.set_successor(successor);
  request.set_term(term);
  return CallCluster<v1::MoveLeaderResponse>(channel, coordinator, "MoveLeader", request,
                                             absl::Seconds(10))
      .status();
}

// A coordinator that knows no MoveLeader: it leads, or follows `leader`.
class EarlierCoordinator final : public grpc::CallbackGenericService {
 public:
  explicit EarlierCoordinator(std::string leader = "") : leader_(std::move(leader)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~EarlierCoordinator() override { server_->Shutdown(); }

  const std::string address = AddressToKeep();

 private:
  struct Call final : grpc::ServerGenericBidiReactor {
    void OnDone() override { delete this; }
    grpc::ByteBuffer response;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    auto* const call = new Call;
    if (context->method() != "/verbena.v1.Cluster/GetView") {
      call->Finish({grpc::StatusCode::UNIMPLEMENTED, ""});
    } else if (!leader_.empty()) {
      call->Finish({grpc::StatusCode::UNAVAILABLE, "a standby",
                    StandbyDetails(StandbyError("a standby", leader_))});
    } else {
      v1::GetViewResponse view;
      view.mutable_view()->set_term(3);
      const grpc::Slice slice(view.SerializeAsString());
      call->response = grpc::ByteBuffer(&slice, 1);
      call->StartWriteAndFinish(&call->response, {}, grpc::Status::OK);
    }
    return call;
  }

  const std::string leader_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("a leader of an earlier version cannot hand over, and the command has another way") {
  const EarlierCoordinator leader, standby(leader.address);
  const Finished moved = MoveLeader(leader.address + "," + standby.address, {});
  INFO(moved.err);
  CHECK(moved.status == 1);
  CHECK_THAT(moved.err, Contains("is of an earlier version, which cannot hand over; stop it"));
  // A standby of another leader, or one that is known by another address.
  const EarlierCoordinator other("elsewhere:7000");
  const Finished foreign = MoveLeader(leader.address + "," + other.address, {other.address});
  CHECK(foreign.status == 1);
  CHECK_THAT(foreign.err, Contains("follows coordinator elsewhere:7000, not"));
}

TEST_CASE("the leader moves under training: no call fails, and it takes less than after a death") {
  World world;
  EtcdCluster& cluster = world.cluster;
  std::vector<double> moves_s;
  v1::ClusterView view;
  int leader = cluster.WaitLeader(-1, &view);
  for (int move = 0; move < 4; ++move) {
    REQUIRE(leader >= 0);
    const uint64_t term = view.term();
    const int next = (leader + 1 + move % 2) % 3;
    // The last time to any standby.
    std::vector<std::string> arguments = {"--json"};
    if (move < 3) arguments.push_back(cluster.coordinator_address(next));
    const Finished moved = MoveLeader(cluster.address(), arguments);
    INFO(moved.err);
    INFO(cluster.logs());
    REQUIRE(moved.status == 0);
    CHECK(JsonField(moved.out, "former_leader") == cluster.coordinator_address(leader));
    const int now = cluster.WaitLeader(leader, &view);
    REQUIRE(now >= 0);
    CHECK(JsonField(moved.out, "leader") == cluster.coordinator_address(now));
    if (move < 3) CHECK(now == next);
    CHECK(view.term() == term + 1);
    CHECK(JsonField(moved.out, "term") == absl::StrCat(view.term()));
    moves_s.push_back(std::stod(JsonField(moved.out, "seconds")));
    leader = now;
    // Without a pause now and then: a standby may not know the leader yet.
    if (move != 2) world.Goes("the leader has moved");
  }
  const absl::Time killed = absl::Now();
  cluster.KillCoordinator(leader);
  REQUIRE(cluster.WaitLeader(leader) >= 0);
  const double death_s = absl::ToDoubleSeconds(absl::Now() - killed);
  CHECK(*std::max_element(moves_s.begin(), moves_s.end()) < death_s);
  world.Goes("the leader was killed");
  WARN(world.Check() << "; seconds of a move: " << absl::StrJoin(moves_s, " ")
                     << ", after a death: " << death_s);
}

TEST_CASE("the leader stays where it cannot move, and the command has the reason") {
  EtcdCluster cluster({.members = 1, .coordinators = 2, .servers = 1});
  v1::ClusterView view;
  const int leader = cluster.WaitLeader(-1, &view);
  REQUIRE(leader >= 0);
  const int standby = 1 - leader;
  const std::string& address = cluster.coordinator_address(leader);
  const std::string nobody = AddressToKeep();
  const auto refused = [](const Finished& moved, const std::string& reason) {
    INFO(moved.err);
    CHECK(moved.status == 1);
    CHECK(moved.out.empty());
    CHECK_THAT(moved.err, Contains(reason));
  };
  refused(MoveLeader(cluster.address(), {address}), "leads already");
  refused(MoveLeader(cluster.address(), {nobody}), "has no such standby: coordinator " + nobody);
  refused(MoveLeader(address, {}), "has no standby. Standbys share");
  CHECK(absl::IsAborted(Request(address, cluster.coordinator_address(standby), view.term() + 1)));
  CHECK(absl::IsFailedPrecondition(Request(address, address, view.term())));
  CHECK(absl::IsInvalidArgument(Request(address, "", view.term())));
  CHECK(absl::IsUnavailable(Request(cluster.coordinator_address(standby), address, view.term())));
  v1::ClusterView later;
  REQUIRE(cluster.Leader(&later) == leader);
  CHECK(later.term() == view.term());

  // A successor that is gone: one of the others leads when its time has passed.
  REQUIRE(Request(address, nobody, view.term()).ok());
  REQUIRE(Eventually([&] { return cluster.Leader(&later) >= 0 && later.term() > view.term(); },
                     absl::Seconds(30)));

  cluster.KillCoordinator(1 - cluster.WaitLeader());
  refused(MoveLeader(cluster.address(), {}), "does not answer");

  TemporaryDirectory directory;
  const std::string alone = AddressToKeep();
  const auto sqlite = StartCoordinator(alone, {"--state", directory.File("state")});
  refused(MoveLeader(alone, {}), "one with --state has none");
  const absl::Status stays = Request(alone, nobody, 1);
  CHECK(absl::IsFailedPrecondition(stays));
  CHECK_THAT(std::string(stays.message()), Contains("so it has no standbys"));
}

}  // namespace
}  // namespace verbena::test
