// A cluster of real processes that asks for tokens: who may call what, and what the audit log says.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <poll.h>
#include <signal.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "client/client.h"
#include "proto/grpc_control_channel.h"
#include "proto/token.h"
#include "proto/verbena/v1/shard.pb.h"
#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "tests/server/identity_files.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using google::protobuf::Message;

// A coordinator that is a server, too, with mutual TLS and tokens; and an operator in front of it.
class TokenCluster {
 public:
  explicit TokenCluster(std::vector<std::string> more = {})
      : daemon_(server_.Options(
            Joined({"--coordinator", "--name", "first", "--log-level", "trace",
                    "--operator-token-file", File("operator.token"), "--audit-log", File("audit")},
                   std::move(more)))) {
    address_ = daemon_.Ready().address();
  }

  const std::string& address() const { return address_; }
  Daemon& daemon() { return daemon_; }
  std::string File(const std::string& name) const { return directory_.File(name); }
  const Files& worker() const { return worker_; }
  const Files& strange() const { return strange_; }
  std::string audit() const { return ReadFile(File("audit")); }
  std::string operator_token() const { return File("operator.token"); }

  Finished Operate(std::vector<std::string> arguments, const std::string& token = {}) const {
    std::vector<std::string> command = {"--cluster", address_, "--token-file",
                                        token.empty() ? operator_token() : token};
    command = worker_.Options(std::move(command));
    command.insert(command.end(), arguments.begin(), arguments.end());
    return Cli(command);
  }
  // Its file.
  std::string Token(const std::string& name, std::vector<std::string> options) const {
    std::vector<std::string> command = {"token", "create", "--out", File(name)};
    command.insert(command.end(), options.begin(), options.end());
    const Finished made = Operate(command);
    INFO(made.err);
    REQUIRE(made.status == 0);
    CHECK(made.out == "");  // what is in the file is nowhere else
    return File(name);
  }
  void Revoke(const std::string& token_file) const {
    const Finished revoked = Operate({"token", "revoke", IdIn(token_file)});
    INFO(revoked.err);
    REQUIRE(revoked.status == 0);
  }
  static std::string IdIn(const std::string& token_file) {
    return ReadFile(token_file).substr(4, 12);
  }

  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& token, const std::string& job,
                                                  bool observer = false) const {
    ClientOptions options;
    options.cluster = address_;
    options.job = job;
    options.name = "worker-of-" + job;
    options.observer = observer;
    options.timeout = absl::Seconds(20);
    options.tls = worker_.tls();
    options.token_file = token;
    return Client::Connect(options);
  }

 private:
  static std::vector<std::string> Joined(std::vector<std::string> a, std::vector<std::string> b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  Authority authority_{"the authority"}, stranger_{"a stranger"};
  TemporaryDirectory directory_;
  Files server_{authority_.certificate(), authority_.Issue({.name = "server"})};
  Files worker_{authority_.certificate(), authority_.Issue({.name = "worker"})};
  Files strange_{authority_.certificate(), stranger_.Issue({.name = "strange"})};
  Daemon daemon_;
  std::string address_;
};

v1::TableSpec Spec(const std::string& name, const std::string& job) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(64);
  spec.set_dtype(v1::DTYPE_F32);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

// One call of any method, by its descriptor.
absl::Status CallMethod(GrpcControlChannel* channel, const std::string& address,
                        const std::string& method, const Message& request,
                        const google::protobuf::Descriptor* answer) {
  absl::Status result = absl::UnknownError("not called");
  bool done = false;
  std::shared_ptr<Message> response(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(answer)->New());
  channel->Unary(address, method, request, response, absl::Seconds(20), [&](absl::Status status) {
    result = std::move(status);
    done = true;
  });
  while (!done) {
    if (channel->RunOnce()) continue;
    pollfd fd = {channel->wake_fd(), POLLIN, 0};
    poll(&fd, 1, 1000);
  }
  return result;
}

// ---- the table ----------------------------------------------------------------------------------

enum Who { kOperator, kServer, kJob, kOtherJob, kReadOnly, kWhos };
constexpr bool kMay = true, kMayNot = false;

// Each method of the two services: who may call it for worker, table and job of "ours".
const std::map<std::string, std::array<bool, kWhos>> kTable = {
    {"/verbena.v1.Cluster/JoinServer", {kMay, kMay, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/JoinWorker", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/Heartbeat", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/Leave", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/CreateTable", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/DropTable", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/GetView", {kMay, kMay, kMay, kMay, kMay}},
    {"/verbena.v1.Cluster/CreateToken", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/ListTokens", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/RevokeToken", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Cluster/SetJobLimits", {kMay, kMayNot, kMayNot, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/OpenLane", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/CloseLane", {kMay, kMayNot, kMay, kMayNot, kMayNot}},
    {"/verbena.v1.Shard/GetStatistics", {kMay, kMay, kMay, kMay, kMay}},
};

// What they are about. Without a request id (or with a shard that is not there) a call that is
// allowed changes nothing: it ends with another error.
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
  add("/verbena.v1.Cluster/GetView", v1::GetViewRequest());
  add("/verbena.v1.Cluster/CreateToken", v1::CreateTokenRequest());
  add("/verbena.v1.Cluster/ListTokens", v1::ListTokensRequest());
  add("/verbena.v1.Cluster/RevokeToken", v1::RevokeTokenRequest());
  v1::SetJobLimitsRequest limits;
  limits.set_job("ours");
  add("/verbena.v1.Cluster/SetJobLimits", limits);
  v1::OpenLaneRequest open;
  open.set_incarnation(worker);
  open.set_shard(999);
  add("/verbena.v1.Shard/OpenLane", open);
  v1::CloseLaneRequest close;
  close.set_incarnation(worker);
  close.set_shard(999);
  add("/verbena.v1.Shard/CloseLane", close);
  add("/verbena.v1.Shard/GetStatistics", v1::GetStatisticsRequest());
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

// A client's side of the control plane, as somebody.
std::unique_ptr<GrpcControlChannel> ChannelAs(const TlsOptions& tls, const std::string& token) {
  auto files = TlsFiles::Open(tls);
  REQUIRE(files.ok());
  auto file = TokenFile::Open(token);
  REQUIRE(file.ok());
  return std::make_unique<GrpcControlChannel>(*files, *file);
}

TEST_CASE("every call of the control plane, by everybody") {
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
  const auto requests = Requests((*client)->incarnation());
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
    for (const Stranger& stranger : strangers) {
      INFO(stranger.name);
      const absl::Status status = call(stranger.token);
      CHECK(status.code() == absl::StatusCode::kUnauthenticated);
      CHECK_THAT(std::string(status.message()), Contains(stranger.says));
      const std::string line = LastLine(cluster.audit());
      CHECK_THAT(line, Contains(path) && Contains("UNAUTHENTICATED") && Contains(stranger.says));
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
      const std::string line = LastLine(cluster.audit());
      CHECK_THAT(line, Contains(path) && Contains("PERMISSION_DENIED") &&
                           Contains(TokenCluster::IdIn(tokens[who])));
    }
  }
  CHECK(called.size() == kTable.size());
  // The worker was there all the time.
  CHECK((*client)->Push(*(*client)->OpenTable("t"), *(*client)->AllocateRegion(256)).Wait() ==
        absl::OkStatus());
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
    // gRPC says of a handshake that failed, not of whom, and not of which call.
    const std::string why = tls.ca.empty() ? "wrong version number" : "certificate verify failed";
    CHECK(Eventually([&] {
      const std::string audit = cluster.audit();
      return audit.find("TLS handshake") != std::string::npos &&
             audit.find(why) != std::string::npos;
    }));
  }
}

// ---- what it means ------------------------------------------------------------------------------

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
  auto seen = (*other)->OpenTable("t");
  REQUIRE(seen.status() == absl::OkStatus());
  auto spied = (*other)->AllocateRegion(seen->bytes());
  CHECK_FALSE((*other)->Pull(*seen, *spied).Wait().ok());
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
}

TEST_CASE("a token that is revoked ends its workers at once, and says so") {
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
  // Whoever joined with another token goes on.
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
  CHECK_THAT(cli.err, Contains("readable on the way") && Contains("--tls-ca"));
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

}  // namespace
}  // namespace verbena::test
