// A cluster of the version before, under load, whose processes are upgraded one after the other.
//
// VERBENA_PREVIOUS is a verbenad of that version: this tree's objects with the protocol range of
// the version before, or a build of an older revision (upgrade_from.sh). The clients are of the
// range that the test is linked with.
#ifndef VERBENA_TESTS_FAULTS_UPGRADE_CLUSTER_H_
#define VERBENA_TESTS_FAULTS_UPGRADE_CLUSTER_H_

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/protocol_version.h"
#include "tests/faults/sum_load.h"
#include "tests/support/cluster.h"

namespace verbena::test {

inline constexpr int kServers = 3;
inline constexpr uint32_t kPrevious = kProtocolVersion - 1;

inline std::string Program(const char* variable) {
  const char* const path = std::getenv(variable);
  INFO(variable);
  REQUIRE(path != nullptr);
  return path;
}

inline std::string Cli(const ProcessCluster& cluster, const std::string& command) {
  return RunProgram({CliPath(), "--cluster", cluster.address(), command, "--json"}).out;
}

inline std::string InForce(const ProcessCluster& cluster) {
  return JsonField(Cli(cluster, "status"), "in_force");
}

// The versions of the lanes that servers have to servers, or workers to servers; ascending.
inline std::vector<std::string> LaneVersions(const ProcessCluster& cluster, bool of_server) {
  const std::string shards = Cli(cluster, "shards");
  const std::vector<std::string> kinds = JsonFields(shards, "of_server");
  const std::vector<std::string> versions = JsonFields(shards, "protocol");
  REQUIRE(kinds.size() == versions.size());
  std::vector<std::string> found;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == (of_server ? "true" : "false")) found.push_back(versions[i]);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

inline std::vector<std::string> Only(uint32_t version) { return {absl::StrCat(version)}; }

// An async and a sync table under load, and the operator that upgrades the servers below them.
class Upgrade {
 public:
  Upgrade()
      : cluster_({.servers = kServers,
                  .lease_ms = 1000,
                  .replicas = 2,
                  .verbenad = Program("VERBENA_PREVIOUS")}),
        async_(cluster_),
        sync_(cluster_, v1::CONSISTENCY_SYNC) {
    AwaitMore();
    REQUIRE(cluster_.WaitReplicated());
  }

  ProcessCluster& cluster() { return cluster_; }
  void AwaitMore() {
    async_.AwaitMore();
    sync_.AwaitMore();
  }
  // `verbena rolling-restart` of these servers, whose command starts `verbenad`.
  void Roll(const std::string& verbenad, const std::vector<int>& servers) {
    cluster_.UseProgram(verbenad);
    const std::string file = directory_.File("restart");
    std::vector<std::string> argv = {
        CliPath(),
        "rolling-restart",
        "--cluster",
        cluster_.address(),
        "--command",
        absl::StrCat("echo > ", file, " && while test -e ", file, "; do sleep 0.05; done")};
    for (const int server : servers) {
      argv.insert(argv.end(), {"--server", absl::StrCat("server-", server)});
    }
    Process restart(argv);
    for (const int server : servers) {
      INFO(restart.err() << cluster_.logs());
      REQUIRE(Eventually([&] { return access(file.c_str(), F_OK) == 0; }, absl::Seconds(60)));
      cluster_.server(server).Signal(SIGTERM);
      REQUIRE(cluster_.server(server).Wait().has_value());
      cluster_.RestartServer(server);
      REQUIRE(unlink(file.c_str()) == 0);
    }
    const std::optional<int> status = restart.Wait();
    INFO(restart.err() << cluster_.logs());
    REQUIRE(status == 0);
    AwaitMore();
  }
  void Check() {
    async_.Check();
    sync_.Check();
  }

 private:
  TemporaryDirectory directory_;
  ProcessCluster cluster_;
  SumLoad async_, sync_;
};

// What holds once all processes are of the new version.
inline void CheckUpgraded(Upgrade* upgrade) {
  ProcessCluster& cluster = upgrade->cluster();
  CHECK(InForce(cluster) == absl::StrCat(kProtocolVersion));
  CHECK(LaneVersions(cluster, /*of_server=*/true) == Only(kProtocolVersion));
  CHECK(LaneVersions(cluster, /*of_server=*/false) == Only(SpokenProtocols().newest));
  upgrade->AwaitMore();
  upgrade->Check();
  // From now on there is no way back.
  const Finished old = RunProgram({Program("VERBENA_PREVIOUS"), "--join", cluster.address(),
                                   "--listen", "127.0.0.1:0", "--name", "late"});
  CHECK(old.status == 1);
  CHECK_THAT(old.err, Catch::Matchers::Contains(
                          absl::StrCat("server 'late': its verbenad speaks protocol version ",
                                       kPrevious, ", and version ", kProtocolVersion,
                                       " is in force in this cluster; upgrade this server's "
                                       "verbenad")));
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_UPGRADE_CLUSTER_H_
