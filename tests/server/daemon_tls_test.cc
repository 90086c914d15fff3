// A cluster of real processes with TLS: authentication, errors of refused peers, replaced files.
#include <fstream>
#include <iterator>

#include "tests/server/daemon_fixture.h"
#include "tests/server/identity_files.h"
#include "verbena/client.h"
#include "verbena/verbena.h"

namespace verbena::test {
namespace daemon_tls_test {

using Catch::Matchers::Contains;

// A coordinator that is a server, too, with mutual TLS.
struct Cluster {
  Authority authority{"the authority"};
  Authority stranger{"a stranger"};
  Files server{authority.certificate(), authority.Issue({.name = "server"})};
  Files worker{authority.certificate(),
               authority.Issue({.name = "worker", .hosts = {}, .usage = "clientAuth"})};
  Daemon daemon{server.Options({"--coordinator", "--name", "first", "--log-level", "trace"})};
};

absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address, const TlsOptions& tls) {
  return Client::Connect(
      {.cluster = address, .job = "tls", .timeout = absl::Seconds(60), .tls = tls});
}

// Parameters come back, as they are initialised.
void CheckWorks(const std::string& address, const TlsOptions& tls) {
  const auto client = Connect(address, tls);
  REQUIRE(client.status() == absl::OkStatus());
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_job("tls");
  spec.add_shape(64);
  spec.set_dtype(v1::DTYPE_F32);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(3);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  const auto table = (*client)->CreateTable(spec);
  REQUIRE(table.status() == absl::OkStatus());
  const auto region = (*client)->AllocateRegion(table->bytes());
  REQUIRE(region.status() == absl::OkStatus());
  REQUIRE((*client)->Pull(*table, *region).Wait() == absl::OkStatus());
  CHECK(region->floats()[63] == 3);
}

std::string Cli() {
  const char* path = std::getenv("VERBENA_CLI");
  REQUIRE(path != nullptr);
  return path;
}

TEST_CASE("beyond loopback a server starts only with TLS or --insecure") {
  // Addresses for documentation (RFC 5737, RFC 3849): nobody has them, so nothing listens there.
  for (const char* address : {"192.0.2.1:7000", "[2001:db8::1]:7000"}) {
    INFO(address);
    const Finished refused = Verbenad({"--coordinator", "--listen", address});
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, Contains(address) && Contains("--tls-cert") && Contains("--insecure"));
    CHECK_THAT(refused.err, !Contains("cannot listen"));
    const Finished insecure = Verbenad({"--coordinator", "--insecure", "--listen", address});
    CHECK_THAT(insecure.err, Contains("without TLS (--insecure)") && Contains("cannot listen"));
  }
  const Finished wildcard = Verbenad({"--coordinator", "--listen", "0.0.0.0:7000"});
  CHECK(wildcard.status == 1);
  CHECK_THAT(wildcard.err, Contains("--insecure"));
}

TEST_CASE("TLS options that do not go together, and files that cannot be used") {
  Authority authority("authority");
  const Files good(authority.certificate(), authority.Issue());
  const Files far(authority.certificate(), authority.Issue({.hosts = {"DNS:node1"}}));
  const TlsOptions o = good.tls();
  struct Case {
    std::vector<std::string> arguments;
    int status;
    std::vector<std::string> says;
  };
  for (const Case& c : std::vector<Case>{
           {{"--tls-cert", o.cert}, 2, {"--tls-cert and --tls-key go together"}},
           {{"--tls-ca", o.ca}, 2, {"--tls-ca " + o.ca, "--tls-cert and --tls-key"}},
           {{"--tls-cert", o.cert, "--tls-key", o.key}, 2, {"--tls-ca", "--shards 0"}},
           {good.Options({"--insecure"}), 2, {"--insecure", "exclude each other"}},
           {{"--tls-ca", o.ca, "--tls-cert", o.cert, "--tls-key", "/nowhere/key"},
            1,
            {"TLS key file /nowhere/key", "No such file"}},
           {{"--tls-ca", o.ca, "--tls-cert", o.cert, "--tls-key", far.tls().key},
            1,
            {far.tls().key, "does not belong to the certificate in " + o.cert}},
           {far.Options(), 1, {far.tls().cert, "'node1'", "'127.0.0.1'"}}}) {
    std::vector<std::string> arguments = {"--coordinator", "--listen", "127.0.0.1:0"};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    const Finished run = Verbenad(arguments);
    INFO(run.err);
    CHECK(run.status == c.status);
    for (const std::string& text : c.says) CHECK_THAT(run.err, Contains(text));
  }
}

TEST_CASE("a cluster with mutual TLS works: server, worker, the operator's program") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  const Files other(cluster.authority.certificate(), cluster.authority.Issue({.name = "other"}));
  Daemon second(other.Options({"--join", address, "--name", "second", "--shards", "2"}));
  second.Ready();
  CheckWorks(address, cluster.worker.tls());
  CheckWorks("localhost:" + address.substr(address.rfind(':') + 1), cluster.worker.tls());

  const Finished status =
      RunProgram({Cli(), "--cluster", address, "--tls-ca", cluster.worker.tls().ca, "--tls-cert",
                  cluster.worker.tls().cert, "status", "--tls-key", cluster.worker.tls().key});
  CHECK(status.err == "");
  CHECK(status.status == 0);
  CHECK_THAT(status.out, Contains("first") && Contains("second"));
}

TEST_CASE("a training run with mutual TLS, and one that is refused") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  TemporaryDirectory directory;
  std::string text;
  while (text.size() < 20000) text += "the quick brown fox jumps over the lazy dog. ";
  WriteFile(directory.File("text"), text);
  const auto train = [&](const std::vector<std::string>& tls) {
    std::vector<std::string> command = {
        TrainPath(), "--cluster", address,   "--format", "text",  "--data", directory.File("text"),
        "--workers", "2",         "--steps", "5",        "--json"};
    command.insert(command.end(), tls.begin(), tls.end());
    return RunProgram(command);
  };
  const Finished trained = train(cluster.worker.Options());
  INFO(trained.err);
  CHECK(trained.status == 0);
  CHECK_THAT(trained.out, Contains("bits_per_byte"));
  const Finished refused = train({"--tls-ca", cluster.worker.tls().ca});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.err, Contains("--tls-cert and --tls-key name one"));
  const Finished usage = train({"--tls-cert", cluster.worker.tls().cert});
  CHECK(usage.status == 2);
  CHECK_THAT(usage.err, Contains("--tls-key"));
}

TEST_CASE("a peer without a trusted certificate gets an error with the reason, and no access") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  const TlsOptions good = cluster.worker.tls();
  const Files strange(cluster.stranger.certificate(), cluster.stranger.Issue());
  struct Case {
    const char* name;
    TlsOptions tls;
    std::string says;
  };
  for (const Case& c : {Case{"no TLS", {}, "speaks TLS"},
                        Case{"no certificate", {.ca = good.ca}, "--tls-cert and --tls-key"},
                        Case{"another authority for the server",
                             {strange.tls().ca, good.cert, good.key},
                             "CN=the authority"},
                        Case{"a certificate by another authority",
                             {good.ca, strange.tls().cert, strange.tls().key},
                             "does not trust the certificate in " + strange.tls().cert}}) {
    INFO(c.name);
    // The deadline is a minute; the error comes at once.
    const absl::Status status = Connect(address, c.tls).status();
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kUnauthenticated);
    CHECK_THAT(std::string(status.message()), Contains(address) && Contains(c.says));

    std::vector<std::string> command = {Cli(), "--cluster", address, "jobs"};
    if (!c.tls.ca.empty()) command.insert(command.end(), {"--tls-ca", c.tls.ca});
    if (!c.tls.cert.empty()) {
      command.insert(command.end(), {"--tls-cert", c.tls.cert, "--tls-key", c.tls.key});
    }
    const Finished cli = RunProgram(command);
    CHECK(cli.status == 3);
    CHECK_THAT(cli.err, Contains(c.says) && Contains(address));
  }
  // In C, the same code.
  verbena_connect_options options;
  verbena_connect_options_init(&options, sizeof options);
  options.cluster = address.c_str();
  options.tls_ca = good.ca.c_str();
  verbena_client* client = nullptr;
  CHECK(verbena_connect(&options, &client) == VERBENA_UNAUTHENTICATED);
  CHECK(client == nullptr);
  CHECK_THAT(std::string(verbena_last_error()), Contains("--tls-cert and --tls-key"));
  options.tls_cert = good.cert.c_str();
  options.tls_key = good.key.c_str();
  CHECK(verbena_connect(&options, &client) == VERBENA_OK);
  verbena_client_free(client);
}

TEST_CASE("TLS towards a cluster without, and files that a client cannot use") {
  Daemon plain({"--coordinator"});
  const std::string address = plain.Ready().address();
  Authority authority("authority");
  const Files files(authority.certificate(), authority.Issue());
  const absl::Status status = Connect(address, files.tls()).status();
  CHECK(status.code() == absl::StatusCode::kUnauthenticated);
  CHECK_THAT(std::string(status.message()), Contains("does not speak TLS"));

  const absl::Status missing = Connect(address, {.ca = "/nowhere/ca.pem"}).status();
  CHECK(missing.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(missing.message()), Contains("TLS CA file /nowhere/ca.pem"));
  const absl::Status lone = Connect(address, {.cert = files.tls().cert}).status();
  CHECK(lone.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(lone.message()), Contains("ClientOptions::tls.cert"));
  const Finished cli =
      RunProgram({Cli(), "--cluster", address, "--tls-ca", "/nowhere/ca.pem", "status"});
  CHECK(cli.status == 2);
  CHECK_THAT(cli.err, Contains("TLS CA file /nowhere/ca.pem"));
}

TEST_CASE("a server with an untrusted certificate logs the reason, and joins when it is repaired") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  const Files mistaken(cluster.authority.certificate(), cluster.stranger.Issue());
  Daemon second(mistaken.Options({"--join", address, "--name", "second"}));
  REQUIRE(second.process().WaitFor("does not trust the certificate in " + mistaken.tls().cert));
  mistaken.Replace(cluster.authority.certificate(), cluster.authority.Issue());
  second.Ready();
}

TEST_CASE("files are replaced without a restart") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  CheckWorks(address, cluster.worker.tls());
  Authority next("the next authority");
  const Files moved(next.certificate(), next.Issue());
  CHECK(Connect(address, moved.tls()).status().code() == absl::StatusCode::kUnauthenticated);

  cluster.server.Replace(next.certificate(), next.Issue());
  CheckWorks(address, moved.tls());
  REQUIRE(cluster.daemon.process().WaitFor("the files were replaced"));
  CHECK(Connect(address, cluster.worker.tls()).status().code() ==
        absl::StatusCode::kUnauthenticated);

  // A key that does not belong to the certificate is logged, and the previous files stay in use.
  WriteFile(cluster.server.tls().key, next.Issue().key);
  CheckWorks(address, moved.tls());
  REQUIRE(cluster.daemon.process().WaitFor("does not belong to the certificate in"));
}

TEST_CASE("a cluster where workers need no certificate") {
  Authority authority("authority");
  const Files files(authority.certificate(), authority.Issue());
  Daemon daemon(files.Options({"--coordinator", "--tls-require-client-cert", "false"}));
  const std::string address = daemon.Ready().address();
  CheckWorks(address, {.ca = files.tls().ca});
}

TEST_CASE("no key is ever shown: not in logs, not in the process list") {
  Cluster cluster;
  const std::string address = cluster.daemon.Ready().address();
  CheckWorks(address, cluster.worker.tls());
  WriteFile(cluster.server.tls().cert, "not a certificate");
  CHECK(Connect(address, {}).status().code() == absl::StatusCode::kUnauthenticated);
  CHECK(Connect(address, {.ca = cluster.worker.tls().ca}).status().code() ==
        absl::StatusCode::kUnauthenticated);
  const pid_t pid = cluster.daemon.process().pid();
  std::string seen = cluster.daemon.process().err() + cluster.daemon.process().out();
  for (const char* file : {"cmdline", "environ"}) {
    seen += ReadFile("/proc/" + std::to_string(pid) + "/" + file);
  }
  CHECK_THAT(seen, !Contains("PRIVATE KEY"));
  for (const Files* files : {&cluster.server, &cluster.worker}) {
    std::ifstream key(files->tls().key);
    for (std::string line; std::getline(key, line);) CHECK_THAT(seen, !Contains(line));
  }
}

}  // namespace daemon_tls_test
}  // namespace verbena::test
