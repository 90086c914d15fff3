// Coordinators and etcd with TLS, client certificates, and users whose tokens expire.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/coordinator_work.h"
#include "tests/support/certificates.h"

namespace verbena::test {
namespace {

TEST_CASE("etcd with TLS, client certificates and users whose tokens expire") {
  Authority authority("an authority"), other("another authority");
  TemporaryDirectory directory;
  const auto write = [&](const std::string& name, const std::string& content) {
    WriteFile(directory.File(name), content);
    REQUIRE(chmod(directory.File(name).c_str(), 0600) == 0);
    return directory.File(name);
  };
  const std::string ca = write("ca.pem", authority.certificate());
  const Identity etcd = authority.Issue({.name = "etcd"});
  const Identity client = authority.Issue({.name = "client"}), foreign = other.Issue();
  const std::string etcd_cert = write("etcd.pem", etcd.cert),
                    etcd_key = write("etcd.key", etcd.key);
  const std::string cert = write("client.pem", client.cert), key = write("client.key", client.key);
  const std::string password = write("password", "secret\n");
  const std::string jwt = directory.File("jwt.key"), jwt_public = directory.File("jwt.pem");
  REQUIRE(RunProgram({"/usr/bin/openssl", "genrsa", "-out", jwt, "2048"}).status == 0);
  REQUIRE(
      RunProgram({"/usr/bin/openssl", "rsa", "-in", jwt, "-pubout", "-out", jwt_public}).status ==
      0);
  const std::vector<std::string> tls = {"--etcd-ca", ca, "--etcd-cert", cert, "--etcd-key", key};
  std::vector<std::string> with_user = tls;
  with_user.insert(with_user.end(), {"--etcd-user", "verbena", "--etcd-password-file", password});
  EtcdClusterOptions options{
      .members = 1,
      .coordinators = 0,
      .servers = 0,
      .member_options = {"--cert-file", etcd_cert, "--key-file", etcd_key, "--trusted-ca-file", ca,
                         "--client-cert-auth", "--auth-token",
                         "jwt,pub-key=" + jwt_public + ",priv-key=" + jwt +
                             ",sign-method=RS256,ttl=2s"},
      .etcdctl_options = {"--cacert", ca, "--cert", cert, "--key", key},
      .tls = true};
  EtcdCluster cluster(options);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"user", "add", "root:rootpass"},
           {"user", "add", "verbena:secret"},
           {"role", "add", "coordinator"},
           {"role", "grant-permission", "coordinator", "readwrite", "--prefix=true", "/verbena/"},
           {"user", "grant-role", "verbena", "coordinator"},
           {"auth", "enable"}}) {
    cluster.Etcdctl(command);
  }
  // Each of these is refused for its reason, and leads never.
  const std::string address = AddressToKeep();
  const auto refused = [&](const std::vector<std::string>& etcd_options, const char* reason) {
    std::vector<std::string> argv = {VerbenadPath(), "--coordinator", "--shards", "0",
                                     "--listen",     address,         "--etcd",   cluster.etcd()};
    argv.insert(argv.end(), etcd_options.begin(), etcd_options.end());
    Process process(argv);
    INFO(reason);
    const bool said = process.WaitFor(reason, absl::Seconds(30));
    INFO(process.err_end());
    CHECK(said);
    CHECK(process.err().find("this coordinator leads") == std::string::npos);
    // The audit log, which goes to the daemon's log here, is for those who call this process.
    CHECK(process.err().find("TLS handshake") == std::string::npos);
  };
  // etcd takes the certificate's common name for a user, which has no rights.
  refused(tls, "permission denied");
  refused({"--etcd-ca", write("other.pem", other.certificate()), "--etcd-cert", cert, "--etcd-key",
           key, "--etcd-user", "verbena", "--etcd-password-file", password},
          "cannot be elected");
  refused({"--etcd-ca", ca, "--etcd-user", "verbena", "--etcd-password-file", password},
          "cannot be elected");
  refused({"--etcd-ca", ca, "--etcd-cert", write("foreign.pem", foreign.cert), "--etcd-key",
           write("foreign.key", foreign.key), "--etcd-user", "verbena", "--etcd-password-file",
           password},
          "cannot be elected");
  refused({"--etcd-ca", ca, "--etcd-cert", cert, "--etcd-key", key, "--etcd-user", "verbena",
           "--etcd-password-file", write("wrong", "wrong\n")},
          "invalid user ID or password");

  with_user.insert(with_user.end(), {"--etcd", cluster.etcd()});
  std::unique_ptr<Process> coordinator = StartCoordinator(address, with_user);
  Process server({VerbenadPath(), "--join", address, "--listen", "127.0.0.1:0", "--name", "server",
                  "--transport", TestTransport()});
  REQUIRE(server.WaitFor(" ready"));
  Work work(address);
  // Tokens have expired several times, of the leader's key and of its state.
  const auto expired = [&] {
    const std::string log = cluster.member(0).err();
    int lines = 0;
    for (size_t at = 0; (at = log.find("oken is expired", at)) != std::string::npos; ++at) ++lines;
    return lines;
  };
  INFO(cluster.member(0).err_end());
  REQUIRE(Eventually([&] { return expired() >= 4 || !work.failed().empty(); }, kPatience));
  const int64_t pushes = work.pushes(), tables = work.tables();
  REQUIRE(Eventually(
      [&] {
        return !work.failed().empty() || (work.pushes() > pushes + 5 && work.tables() > tables + 5);
      },
      kPatience));
  work.End();
  INFO(coordinator->err_end());
  CHECK(work.failed() == "");
  work.CheckTables();
  // It has led all the time.
  CHECK(coordinator->err().find("leads no more") == std::string::npos);
}

}  // namespace
}  // namespace verbena::test
