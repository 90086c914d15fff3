// Every call of the control plane by everybody: the code that it ends with, and its audit line.
#include <array>
#include <map>
#include <set>

#include "proto/security/token.h"
#include "tests/server/access_fixture.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using google::protobuf::Message;

enum Who { kOperator, kServer, kJob, kOtherJob, kReadOnly, kWhos };
constexpr bool kMay = true, kMayNot = false;

// The roles that may call each method of the two services, for worker, table and job of "ours".
const std::map<std::string, std::array<bool, kWhos>> kTable = {
    {"/verbena.v1.Cluster/JoinServer", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/JoinWorker", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/Heartbeat", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/Leave", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/AdmitMembers", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/CreateTable", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/DropTable", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/RenewRestore", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/FinishRestore", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/MovePartitions", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/DrainServer", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/RemoveServer", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/ResetTable", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    // The request names an incarnation of a server.
    {"/verbena.v1.Cluster/Reconfigure", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/GetView", {kMay, kMay, kMay, kMay, kMay}},
    {"/verbena.v1.Cluster/CreateToken", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/ListTokens", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/RevokeToken", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/ForgetJob", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/SetJobLimits", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/MoveLeader", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/OpenLane", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/CloseLane", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/GetStatistics", {kMay, kMay, kMay, kMay, kMay}},
    {"/verbena.v1.Shard/BeginCheckpoint", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/BeginRestore", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/WaitRestore", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/WaitCheckpoint", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/EndCheckpoint", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
};

// A request for each method. Without a request id (or with a shard that does not exist) a call that
// is allowed changes nothing: it ends with another error.
std::map<std::string, std::unique_ptr<Message>> Requests(uint64_t worker) {
  std::map<std::string, std::unique_ptr<Message>> all;
  const auto add = [&](const char* method, auto request) {
    all[method] = std::make_unique<decltype(request)>(std::move(request));
  };
  v1::JoinServerRequest join_server;
  join_server.set_name("more");
  join_server.set_address("127.0.0.1:1");
  join_server.set_shards(1);
  add("/verbena.v1.Cluster/JoinServer", join_server);
  v1::JoinWorkerRequest join_worker;
  join_worker.set_job("ours");
  add("/verbena.v1.Cluster/JoinWorker", join_worker);
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(worker);
  add("/verbena.v1.Cluster/Heartbeat", heartbeat);
  v1::LeaveRequest leave;
  leave.set_incarnation(worker);
  add("/verbena.v1.Cluster/Leave", leave);
  v1::CreateTableRequest create;
  *create.mutable_spec() = Spec("more", "ours");
  add("/verbena.v1.Cluster/CreateTable", create);
  v1::DropTableRequest drop;
  drop.set_name("t");
  add("/verbena.v1.Cluster/DropTable", drop);
  v1::AdmitMembersRequest admit;
  admit.set_incarnation(worker);
  add("/verbena.v1.Cluster/AdmitMembers", admit);
  v1::ForgetJobRequest forget;
  forget.set_job("ours");
  add("/verbena.v1.Cluster/ForgetJob", forget);
  v1::MovePartitionsRequest move;
  add("/verbena.v1.Cluster/MovePartitions", move);
  v1::DrainServerRequest drain;
  add("/verbena.v1.Cluster/DrainServer", drain);
  v1::RemoveServerRequest remove;
  remove.set_name("server-0");
  add("/verbena.v1.Cluster/RemoveServer", remove);
  v1::ResetTableRequest reset;
  reset.set_name("t");
  add("/verbena.v1.Cluster/ResetTable", reset);
  v1::ReconfigureRequest reconfigure;
  reconfigure.set_incarnation(1);
  add("/verbena.v1.Cluster/Reconfigure", reconfigure);
  add("/verbena.v1.Cluster/GetView", v1::GetViewRequest());
  add("/verbena.v1.Cluster/CreateToken", v1::CreateTokenRequest());
  add("/verbena.v1.Cluster/ListTokens", v1::ListTokensRequest());
  add("/verbena.v1.Cluster/RevokeToken", v1::RevokeTokenRequest());
  v1::SetJobLimitsRequest limits;
  limits.set_job("ours");
  add("/verbena.v1.Cluster/SetJobLimits", limits);
  add("/verbena.v1.Cluster/MoveLeader", v1::MoveLeaderRequest());
  v1::OpenLaneRequest open;
  open.set_incarnation(worker);
  open.set_shard(999);
  add("/verbena.v1.Shard/OpenLane", open);
  v1::CloseLaneRequest close;
  close.set_incarnation(worker);
  close.set_shard(999);
  add("/verbena.v1.Shard/CloseLane", close);
  add("/verbena.v1.Shard/GetStatistics", v1::GetStatisticsRequest());
  // The request names another incarnation of the server.
  add("/verbena.v1.Shard/BeginCheckpoint", v1::BeginCheckpointRequest());
  add("/verbena.v1.Shard/WaitCheckpoint", v1::WaitCheckpointRequest());
  add("/verbena.v1.Shard/BeginRestore", v1::BeginRestoreRequest());
  add("/verbena.v1.Shard/WaitRestore", v1::WaitRestoreRequest());
  add("/verbena.v1.Cluster/FinishRestore", v1::FinishRestoreRequest());
  add("/verbena.v1.Cluster/RenewRestore", v1::RenewRestoreRequest());
  add("/verbena.v1.Shard/EndCheckpoint", v1::EndCheckpointRequest());
  return all;
}

std::vector<const google::protobuf::MethodDescriptor*> AllMethods() {
  std::vector<const google::protobuf::MethodDescriptor*> all;
  for (const auto* file :
       {v1::ClusterView::descriptor()->file(), v1::OpenLaneRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        all.push_back(file->service(s)->method(m));
      }
    }
  }
  return all;
}

std::string PathOf(const google::protobuf::MethodDescriptor* method) {
  return "/" + method->service()->full_name() + "/" + method->name();
}

bool Refused(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

std::string LastLine(const std::string& text) {
  if (text.empty()) return "";
  const size_t before = text.rfind('\n', text.size() - 2);
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

TEST_CASE("every call of the control plane, with each role") {
  TokenCluster cluster;
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string expired = cluster.Token("expired", {"--role", "operator", "--expires", "1s"});
  const std::string revoked = cluster.Token("revoked", {"--role", "operator"});
  cluster.Revoke(revoked);
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  REQUIRE((*client)->CreateTable(Spec("t", "ours")).status() == absl::OkStatus());
  const std::array<std::string, kWhos> tokens = {
      cluster.operator_token(), cluster.Token("server", {"--role", "server"}), ours,
      cluster.Token("others", {"--role", "job", "--job", "others"}),
      cluster.Token("looks", {"--role", "read-only", "--job", "ours"})};
  // One that the cluster never had, and one whose secret is not that of its id.
  WriteFile(cluster.File("unknown"), MakeToken()->text);
  std::string altered = ReadFile(ours);
  altered[20] = altered[20] == 'A' ? 'B' : 'A';
  WriteFile(cluster.File("altered"), altered);
  REQUIRE(Eventually([&] { return cluster.Operate({"jobs"}, expired).status == 3; }));

  struct Stranger {
    const char* name;
    std::string token, says;
  };
  const std::vector<Stranger> strangers = {{"no token", "", "asks for a token"},
                                           {"expired", expired, "has expired"},
                                           {"revoked", revoked, "was revoked"},
                                           {"unknown", cluster.File("unknown"), "no such token"},
                                           {"altered", cluster.File("altered"), "no such token"}};
  const auto requests = Requests((*client)->run().incarnation);
  std::set<std::string> called;
  for (const auto* method : AllMethods()) {
    const std::string path = PathOf(method);
    INFO(path);
    // A new method belongs into both of these.
    REQUIRE(kTable.count(path) == 1);
    REQUIRE(requests.count(path) == 1);
    called.insert(path);
    const Message& request = *requests.at(path);
    const auto call = [&](const std::string& token) {
      const auto channel = ChannelAs(cluster.worker().tls(), token);
      return CallMethod(channel.get(), cluster.address(), path, request, method->output_type());
    };
    // Lines are written by a thread of their own.
    const auto audited = [&](const std::string& result, const std::string& says) {
      return Eventually([&] {
        const std::string line = LastLine(cluster.audit());
        return Contains(path).match(line) && Contains(result).match(line) &&
               Contains(says).match(line);
      });
    };
    for (const Stranger& stranger : strangers) {
      INFO(stranger.name);
      const absl::Status status = call(stranger.token);
      CHECK(status.code() == absl::StatusCode::kUnauthenticated);
      CHECK_THAT(std::string(status.message()), Contains(stranger.says));
      CHECK(audited("UNAUTHENTICATED", stranger.says));
    }
    for (int who = 0; who < kWhos; ++who) {
      INFO("caller " << who);
      const absl::Status status = call(tokens[who]);
      INFO(status.ToString());
      if (kTable.at(path)[who]) {
        CHECK_FALSE(Refused(status));
        continue;
      }
      CHECK(status.code() == absl::StatusCode::kPermissionDenied);
      CHECK(audited("PERMISSION_DENIED", TokenCluster::IdIn(tokens[who])));
    }
  }
  CHECK(called.size() == kTable.size());
  // The worker was there all the time.
  CHECK((*client)->Push(*(*client)->OpenTable("t"), *(*client)->AllocateRegion(256)).Wait() ==
        absl::OkStatus());
}

TEST_CASE("a server's token is good for lanes and configurations of servers, not of workers") {
  TokenCluster cluster;
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  const std::string server = cluster.Token("server", {"--role", "server"});
  const auto channel = ChannelAs(cluster.worker().tls(), server);
  for (const bool of_server : {true, false}) {
    const auto requests = Requests(of_server ? 1 : (*client)->run().incarnation);
    v1::ReconfigureRequest reconfigure;
    reconfigure.set_incarnation(of_server ? 1 : (*client)->run().incarnation);
    for (const auto* method : AllMethods()) {
      const std::string path = PathOf(method);
      const bool lane = path.find("Lane") != std::string::npos;
      if (!lane && method->name() != "Reconfigure") continue;
      INFO(path << (of_server ? " of a server" : " of a worker"));
      const Message& request = lane ? *requests.at(path) : reconfigure;
      const absl::Status status =
          CallMethod(channel.get(), cluster.address(), path, request, method->output_type());
      INFO(status.ToString());
      CHECK(absl::IsPermissionDenied(status) == !of_server);
      CHECK_FALSE(absl::IsUnauthenticated(status));
    }
  }
}

TEST_CASE("every call of the control plane, with the wrong certificate and without TLS") {
  TokenCluster cluster;
  const auto requests = Requests(1);
  for (const TlsOptions& tls : {cluster.strange().tls(), TlsOptions()}) {
    const auto channel = ChannelAs(tls, cluster.operator_token());
    for (const auto* method : AllMethods()) {
      const std::string path = PathOf(method);
      INFO(path << (tls.ca.empty() ? " without TLS" : " with the wrong certificate"));
      REQUIRE(requests.count(path) == 1);
      const absl::Status status = CallMethod(channel.get(), cluster.address(), path,
                                             *requests.at(path), method->output_type());
      INFO(status.ToString());
      CHECK(status.code() == absl::StatusCode::kUnauthenticated);
    }
    // gRPC reports a failed handshake without the peer and without the call.
    const std::string why = tls.ca.empty() ? "wrong version number" : "certificate verify failed";
    CHECK(Eventually([&] {
      const std::string audit = cluster.audit();
      return audit.find("TLS handshake") != std::string::npos &&
             audit.find(why) != std::string::npos;
    }));
  }
}

}  // namespace
}  // namespace verbena::test
