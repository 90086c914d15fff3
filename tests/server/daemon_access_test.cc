// Tokens of real daemons: the workers that may train, refusals, revocation, and where secrets are.
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "proto/security/token.h"
#include "rdma/lane/lane_request.h"
#include "rdma/shm/shm_endpoint.h"
#include "tests/server/access_fixture.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {
namespace daemon_access_test {

using Catch::Matchers::Contains;

TEST_CASE("a job's token is for that job: its workers train, and see nothing of another's tables") {
  TokenCluster cluster;
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string others = cluster.Token("others", {"--role", "job", "--job", "others"});
  CHECK_THAT(std::string(cluster.Connect(others, "ours").status().message()),
             Contains("may not call") && Contains("that is of job 'ours'"));
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  auto table = (*client)->CreateTable(Spec("t", "ours"));
  REQUIRE(table.status() == absl::OkStatus());
  auto region = (*client)->AllocateRegion(table->bytes());
  REQUIRE((*client)->Push(*table, *region).Wait() == absl::OkStatus());
  REQUIRE((*client)->Pull(*table, *region).Wait() == absl::OkStatus());

  auto other = cluster.Connect(others, "others");
  REQUIRE(other.status() == absl::OkStatus());
  CHECK((*other)->CreateTable(Spec("mine", "ours")).status().code() ==
        absl::StatusCode::kPermissionDenied);
  CHECK((*other)->DropTable("t").code() == absl::StatusCode::kPermissionDenied);
  const absl::Status seen = (*other)->OpenTable("t").status();
  CHECK(absl::IsFailedPrecondition(seen));
  CHECK_THAT(std::string(seen.message()), Contains("job 'ours'") && Contains("job 'others'"));
}

TEST_CASE("a read-only token looks, and joins as an observer that pulls") {
  TokenCluster cluster;
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string looks = cluster.Token("looks", {"--role", "read-only"});
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  auto table = (*client)->CreateTable(Spec("t", "ours"));
  REQUIRE(table.status() == absl::OkStatus());
  CHECK(cluster.Operate({"status"}, looks).status == 0);
  CHECK(cluster.Operate({"token", "list"}, looks).status == 1);
  CHECK(cluster.Connect(looks, "ours").status().code() == absl::StatusCode::kPermissionDenied);
  auto observer = cluster.Connect(looks, "ours", /*observer=*/true);
  REQUIRE(observer.status() == absl::OkStatus());
  auto seen = (*observer)->OpenTable("t");
  REQUIRE(seen.status() == absl::OkStatus());
  auto region = (*observer)->AllocateRegion(seen->bytes());
  CHECK((*observer)->Pull(*seen, *region).Wait() == absl::OkStatus());
  CHECK_FALSE((*observer)->Push(*seen, *region).Wait().ok());
  // Values of optimizers are for observers whose token may write.
  CHECK((*observer)->SetOptimizer(*seen, {.rate = 2}).Wait().code() ==
        absl::StatusCode::kPermissionDenied);
  auto writer = cluster.Connect(ours, "ours", /*observer=*/true);
  REQUIRE(writer.status() == absl::OkStatus());
  CHECK((*writer)->SetOptimizer(*(*writer)->OpenTable("t"), {.rate = 2}).Wait() ==
        absl::OkStatus());
}

TEST_CASE("regression: a token of a job opens no lane for an observer that reads all jobs") {
  TokenCluster cluster;
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string narrow = cluster.Token("narrow", {"--role", "read-only", "--job", "ours"});
  const std::string wide = cluster.Token("wide", {"--role", "read-only"});
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  auto reader = cluster.Connect(wide, "ours", /*observer=*/true);
  REQUIRE(reader.status() == absl::OkStatus());
  // Everybody sees its incarnation in the view.
  v1::OpenLaneRequest open = rdma::NewLaneRequest(
      (*reader)->run().incarnation,
      std::stoull(JsonField(cluster.daemon().ready_text(), "incarnation")), 0, {});
  rdma::AddOffer("shm", rdma::ShmHostIdentity(), &open);
  const auto call = [&](const std::string& token) {
    const auto channel = ChannelAs(cluster.worker().tls(), token);
    return CallMethod(channel.get(), cluster.address(), "/verbena.v1.Shard/OpenLane", open,
                      v1::OpenLaneResponse::descriptor());
  };
  CHECK(Eventually([&] { return call(wide).ok(); }));
  for (const std::string& token : {ours, narrow}) {
    const absl::Status refused = call(token);
    CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
    CHECK_THAT(std::string(refused.message()), Contains("reads the tables of all jobs"));
  }
}

TEST_CASE("regression: a refused call has an audit line whatever revision it states") {
  TokenCluster cluster;
  std::string altered = ReadFile(cluster.Token("ours", {"--role", "job", "--job", "ours"}));
  altered[30] = altered[30] == 'a' ? 'b' : 'a';
  const std::string wrong = cluster.File("altered");
  std::ofstream(wrong) << altered;
  REQUIRE(chmod(wrong.c_str(), 0600) == 0);
  v1::OpenLaneRequest open = rdma::NewLaneRequest(
      1, std::stoull(JsonField(cluster.daemon().ready_text(), "incarnation")), 0, {});
  open.set_revision(uint64_t{1} << 60);  // its token may be newer than the server's view
  const auto channel = ChannelAs(cluster.worker().tls(), wrong);
  CHECK(
      absl::IsUnavailable(CallMethod(channel.get(), cluster.address(), "/verbena.v1.Shard/OpenLane",
                                     open, v1::OpenLaneResponse::descriptor())));
  CHECK(Eventually([&] {
    const std::string audit = cluster.audit();
    return Contains("Shard/OpenLane").match(audit) && Contains("UNAVAILABLE").match(audit);
  }));
}

TEST_CASE("a read-only token joins jobs that there are, and makes none") {
  TokenCluster cluster;
  const std::string looks = cluster.Token("looks", {"--role", "read-only"});
  ClientOptions options = cluster.As(looks, "nobody's", /*observer=*/true);
  options.timeout = absl::Seconds(2);
  const absl::Status refused = Client::Connect(options).status();
  CHECK(absl::IsUnavailable(refused));
  CHECK_THAT(std::string(refused.message()), Contains("there is no job 'nobody's' yet"));
  CHECK_THAT(cluster.Operate({"jobs"}).out, !Contains("nobody's"));
  auto client = cluster.Connect(cluster.operator_token(), "nobody's");
  REQUIRE(client.status() == absl::OkStatus());
  CHECK(cluster.Connect(looks, "nobody's", /*observer=*/true).status() == absl::OkStatus());
}

TEST_CASE("calls that change nothing have no line in the audit log") {
  TokenCluster cluster;
  auto client = cluster.Connect(cluster.operator_token(), "ours");
  REQUIRE(client.status() == absl::OkStatus());
  for (int i = 0; i < 20; ++i) {
    REQUIRE((*client)->CreateTable(Spec("t", "ours")).status() == absl::OkStatus());
  }
  REQUIRE((*client)->DropTable("t") == absl::OkStatus());
  const auto lines = [&](const std::string& call) {
    const std::string audit = cluster.audit();
    size_t found = 0;
    for (size_t at = 0; (at = audit.find(call, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  REQUIRE(Eventually([&] { return lines("Cluster/DropTable") == 1; }));
  CHECK(lines("Cluster/CreateTable") == 1);
  // A checkpoint of a sync table first asks each shard for the newest step.
  v1::TableSpec spec = Spec("steps", "ours");
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  auto table = (*client)->CreateTable(spec);
  REQUIRE(table.status() == absl::OkStatus());
  auto gradients = (*client)->AllocateRegion(table->bytes());
  REQUIRE(gradients.status() == absl::OkStatus());
  REQUIRE((*client)->Push(*table, *gradients).Wait() == absl::OkStatus());
  Finished saved;
  std::atomic<bool> ended = false;
  std::thread save([&] {
    saved = cluster.Operate({"checkpoint", "save", cluster.File("saves")});
    ended = true;
  });
  while (!ended) {
    CHECK((*client)->EndStep(*table).Wait() == absl::OkStatus());
    CHECK((*client)->Push(*table, *gradients).Wait() == absl::OkStatus());
  }
  save.join();
  INFO(saved.err);
  CHECK(saved.status == 0);
  CHECK(lines("Shard/BeginCheckpoint") == 1);
}

TEST_CASE("revoking a token ends its workers at once, with the reason") {
  TokenCluster cluster;
  const std::string token = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string other = cluster.Token("others", {"--role", "job", "--job", "ours"});
  auto client = cluster.Connect(token, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  auto observer = cluster.Connect(other, "ours", /*observer=*/true);
  REQUIRE(observer.status() == absl::OkStatus());
  auto table = (*client)->CreateTable(Spec("t", "ours"));
  REQUIRE(table.status() == absl::OkStatus());
  auto region = (*client)->AllocateRegion(table->bytes());
  REQUIRE((*client)->Push(*table, *region).Wait() == absl::OkStatus());
  cluster.Revoke(token);
  absl::Status status;
  REQUIRE(Eventually([&] {
    status = (*client)->Push(*table, *region).Wait();
    return !status.ok();
  }));
  INFO(status.ToString());
  CHECK(Eventually([&] {
    const absl::Status later = (*client)->Push(*table, *region).Wait();
    return absl::IsFailedPrecondition(later);  // its incarnation has ended
  }));
  // Workers that joined with another token go on.
  auto seen = (*observer)->OpenTable("t");
  REQUIRE(seen.status() == absl::OkStatus());
  CHECK((*observer)->Pull(*seen, *(*observer)->AllocateRegion(seen->bytes())).Wait() ==
        absl::OkStatus());
  CHECK_FALSE(cluster.Connect(token, "ours").ok());
}

TEST_CASE("another server joins with a token of its role, and judges by the same tokens") {
  TokenCluster cluster({"--expected-servers", "2"});
  const std::string server = cluster.Token("server", {"--role", "server"});
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  Daemon second(cluster.worker().Options(
      {"--join", cluster.address(), "--name", "second", "--token-file", server}));
  second.Ready();
  Daemon third(cluster.worker().Options(
      {"--join", cluster.address(), "--name", "third", "--token-file", ours}));
  CHECK(third.process().WaitFor("may not call /verbena.v1.Cluster/JoinServer"));
  auto client = cluster.Connect(ours, "ours");
  REQUIRE(client.status() == absl::OkStatus());
  v1::TableSpec spec = Spec("t", "ours");
  spec.set_shape(0, 1 << 20);  // on both of them
  auto table = (*client)->CreateTable(spec);
  REQUIRE(table.status() == absl::OkStatus());
  auto region = (*client)->AllocateRegion(table->bytes());
  CHECK((*client)->Push(*table, *region).Wait() == absl::OkStatus());
  const auto nobody = ChannelAs(cluster.worker().tls(), "");
  CHECK(CallMethod(nobody.get(), second.address(), "/verbena.v1.Shard/GetStatistics",
                   v1::GetStatisticsRequest(), v1::GetStatisticsResponse::descriptor())
            .code() == absl::StatusCode::kUnauthenticated);
}

TEST_CASE("lanes between servers are for a server's token, and a worker's is for none") {
  TokenCluster cluster({"--expected-servers", "2"});
  const std::string server = cluster.Token("server", {"--role", "server"});
  const std::string ours = cluster.Token("ours", {"--role", "job", "--job", "ours"});
  const std::string looks = cluster.Token("looks", {"--role", "read-only"});
  Daemon second(cluster.worker().Options(
      {"--join", cluster.address(), "--name", "second", "--token-file", server}));
  second.Ready();
  const std::string incarnation = JsonField(second.ready_text(), "incarnation");
  v1::OpenLaneRequest open = rdma::NewLaneRequest(
      std::stoull(incarnation),
      std::stoull(JsonField(cluster.daemon().ready_text(), "incarnation")), 0, {});
  open.set_source_shard(5);
  rdma::AddOffer("shm", rdma::ShmHostIdentity(), &open);
  v1::CloseLaneRequest close;
  close.set_incarnation(open.incarnation());
  close.set_lane(1234);
  const auto call = [&](const std::string& token, const std::string& method,
                        const google::protobuf::Message& request) {
    const auto channel = ChannelAs(cluster.worker().tls(), token);
    return CallMethod(channel.get(), cluster.address(), "/verbena.v1.Shard/" + method, request,
                      method == "OpenLane" ? v1::OpenLaneResponse::descriptor()
                                           : v1::CloseLaneResponse::descriptor());
  };
  // Its view may be older for a moment.
  CHECK(Eventually([&] { return call(server, "OpenLane", open).ok(); }));
  CHECK(call(cluster.operator_token(), "OpenLane", open).ok());
  CHECK(Eventually([&] {
    return Contains("shard 5 of server incarnation " + incarnation + ", shard 0")
        .match(cluster.audit());
  }));
  CHECK(call(server, "CloseLane", close).code() == absl::StatusCode::kNotFound);
  for (const std::string& token : {ours, looks}) {
    const absl::Status refused = call(token, "OpenLane", open);
    CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
    CHECK_THAT(std::string(refused.message()), Contains("that is a server's incarnation"));
    CHECK(call(token, "CloseLane", close).code() == absl::StatusCode::kPermissionDenied);
  }
  CHECK(call("", "OpenLane", open).code() == absl::StatusCode::kUnauthenticated);
}

TEST_CASE("tokens outlive the coordinator, and no secret is anywhere but in its file") {
  TemporaryDirectory directory;
  const auto start = [&](const std::string& listen) {
    return std::make_unique<Process>(std::vector<std::string>{
        VerbenadPath(), "--coordinator", "--name", "first", "--listen", listen, "--state",
        directory.File("state"), "--operator-token-file", directory.File("operator"),
        "--ready-file", directory.File("ready"), "--audit-log", directory.File("audit"),
        "--log-level", "trace", "--metrics", "127.0.0.1:0"});
  };
  const auto wait_ready = [&] {
    REQUIRE(Eventually([&] { return !ReadFile(directory.File("ready")).empty(); }));
  };
  auto daemon = start("127.0.0.1:0");
  wait_ready();
  const std::string address = JsonField(ReadFile(directory.File("ready")), "address");
  const auto operate = [&](std::vector<std::string> arguments, const std::string& token) {
    arguments.insert(arguments.begin(), {"--cluster", address, "--token-file", token});
    return Cli(arguments);
  };
  const Finished made =
      operate({"token", "create", "--role", "read-only", "--json"}, directory.File("operator"));
  INFO(made.err);
  REQUIRE(made.status == 0);
  const std::string token = JsonField(made.out, "token");
  WriteFile(directory.File("reader"), token);
  REQUIRE(operate({"jobs"}, directory.File("reader")).status == 0);
  std::string seen = daemon->err() + daemon->out();
  for (const char* file : {"cmdline", "environ"}) {
    seen += ReadFile("/proc/" + std::to_string(daemon->pid()) + "/" + file);
  }
  daemon->Signal(SIGKILL);
  daemon->Wait();
  WriteFile(directory.File("ready"), "");
  daemon = start(address);
  wait_ready();
  CHECK(operate({"jobs"}, directory.File("reader")).status == 0);
  WriteFile(directory.File("none"), MakeToken()->text);
  CHECK(operate({"jobs"}, directory.File("none")).status == 3);

  seen += daemon->err() + ReadFile(directory.File("audit")) + made.err;
  for (const char* file : {"coordinator.db", "coordinator.db-wal"}) {
    seen += ReadFile(directory.File("state") + "/" + file);
  }
  for (const char* file : {"operator", "reader", "none"}) {
    const std::string secret = ReadFile(directory.File(file)).substr(17, 43);
    REQUIRE(secret.size() == 43);
    CHECK(seen.find(secret) == std::string::npos);
  }
}

TEST_CASE("a token never travels readably beyond this host") {
  TemporaryDirectory directory;
  WriteFile(directory.File("token"), MakeToken()->text);
  // An address for documentation (RFC 5737): nobody has it.
  const Finished cli = Cli({"--cluster", "192.0.2.1:7000", "--token-file", directory.File("token"),
                            "--timeout", "5", "status"});
  CHECK(cli.status == 3);
  CHECK_THAT(cli.err, Contains("readable on the network") && Contains("--tls-ca"));
  const Finished daemon = Verbenad({"--coordinator", "--insecure", "--operator-token-file",
                                    directory.File("token"), "--listen", "192.0.2.1:7000"});
  CHECK(daemon.status == 2);
  CHECK_THAT(daemon.err, Contains("exclude each other"));
}

TEST_CASE("token files that cannot be used") {
  TemporaryDirectory directory;
  WriteFile(directory.File("poem"), "so much depends upon");
  for (const std::string& file : {directory.File("missing"), directory.File("poem")}) {
    const Finished cli = Cli({"--token-file", file, "status"});
    CHECK(cli.status == 2);
    CHECK_THAT(cli.err, Contains("token file " + file));
    CHECK_THAT(cli.err, !Contains("depends"));
    const Finished daemon = Verbenad({"--join", "127.0.0.1:1", "--token-file", file});
    CHECK(daemon.status == 1);
    CHECK_THAT(daemon.err, Contains("token file " + file));
    ClientOptions options;
    options.cluster = "127.0.0.1:1";
    options.token_file = file;
    CHECK_THAT(std::string(Client::Connect(options).status().message()),
               Contains("token file " + file));
  }
  const Finished made = Verbenad(
      {"--coordinator", "--operator-token-file", "/nowhere/token", "--listen", "127.0.0.1:0"});
  CHECK(made.status == 1);
  CHECK_THAT(made.err, Contains("/nowhere/token"));
  const Finished audit =
      Verbenad({"--coordinator", "--audit-log", "/nowhere/audit", "--listen", "127.0.0.1:0"});
  CHECK(audit.status == 1);
  CHECK_THAT(audit.err, Contains("audit log /nowhere/audit"));
}

}  // namespace daemon_access_test
}  // namespace verbena::test
