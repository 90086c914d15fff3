#include "tests/faults/etcd_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/control/standby.h"
#include "tests/faults/coordinator_callers.h"
#include "tests/support/http.h"

namespace verbena::test {
namespace {

// Of Debian's packages etcd-server and etcd-client.
std::string PathOf(const std::string& program) {
  for (const char* directory : {"/usr/bin/", "/usr/local/bin/"}) {
    if (access((directory + program).c_str(), X_OK) == 0) return directory + program;
  }
  FAIL("there is no " << program
                      << ": install Debian's packages etcd-server and etcd-client "
                         "(deploy/packages.sh, group test)");
  return "";
}

// The view of one coordinator, if it leads.
absl::StatusOr<v1::ClusterView> ViewOf(const std::string& address) {
  GrpcControlChannel channel(nullptr, nullptr, absl::Milliseconds(300));
  absl::StatusOr<v1::GetViewResponse> answer = CallCluster<v1::GetViewResponse>(
      channel, address, "GetView", v1::GetViewRequest(), absl::Milliseconds(400));
  if (!answer.ok()) return answer.status();
  return answer->view();
}

}  // namespace

EtcdCluster::EtcdCluster(const EtcdClusterOptions& options) : options_(options) {
  members_.resize(static_cast<size_t>(options.members));
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].client = AddressToKeep();
    members_[i].peer = AddressToKeep();
    members_[i].metrics = AddressToKeep();
    absl::StrAppend(&endpoints_, i > 0 ? "," : "", members_[i].client);
    absl::StrAppend(&peers_, i > 0 ? "," : "", "m", i, "=http://", members_[i].peer);
  }
  for (int i = 0; i < options.members; ++i) StartMember(i);
  REQUIRE(WaitEtcdLeader() >= 0);
  coordinators_.resize(static_cast<size_t>(options.coordinators));
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    coordinators_[i].address = AddressToKeep();
    absl::StrAppend(&addresses_, i > 0 ? "," : "", coordinators_[i].address);
  }
  for (int i = 0; i < options.coordinators; ++i) StartCoordinator(i);
  for (int i = 0; i < options.servers; ++i) {
    servers_.push_back(std::make_unique<Process>(std::vector<std::string>{
        VerbenadPath(), "--join", addresses_, "--listen", "127.0.0.1:0", "--name",
        absl::StrCat("server-", i), "--transport", TestTransport()}));
  }
  for (const auto& server : servers_) {
    INFO(server->err());
    REQUIRE(server->WaitFor(" ready"));
  }
}

void EtcdCluster::StartMember(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  const std::string name = absl::StrCat("m", index);
  const std::string client = (options_.tls ? "https://" : "http://") + member.client;
  const std::string peer = "http://" + member.peer;
  // An election takes a second or two, as by default.
  std::vector<std::string> argv = {PathOf("etcd"),
                                   "--name",
                                   name,
                                   "--data-dir",
                                   directory_.File(name),
                                   "--listen-client-urls",
                                   client,
                                   "--advertise-client-urls",
                                   client,
                                   "--listen-metrics-urls",
                                   "http://" + member.metrics,
                                   "--listen-peer-urls",
                                   peer,
                                   "--initial-advertise-peer-urls",
                                   peer,
                                   "--initial-cluster",
                                   peers_,
                                   "--initial-cluster-state",
                                   "new",
                                   "--initial-cluster-token",
                                   "verbena-test"};
  argv.insert(argv.end(), options_.member_options.begin(), options_.member_options.end());
  member.process = std::make_unique<Process>(argv);
}

std::string EtcdCluster::Etcdctl(std::vector<std::string> command) {
  std::vector<std::string> argv = {"/usr/bin/env", "ETCDCTL_API=3", PathOf("etcdctl"),
                                   "--endpoints",  endpoints_,      "--command-timeout",
                                   "30s"};
  argv.insert(argv.end(), options_.etcdctl_options.begin(), options_.etcdctl_options.end());
  argv.insert(argv.end(), command.begin(), command.end());
  const Finished done = RunProgram(argv);
  INFO(done.out << done.err);
  REQUIRE(done.status == 0);
  return done.out;
}

void EtcdCluster::StartCoordinator(int index) {
  Coordinator& coordinator = coordinators_[static_cast<size_t>(index)];
  if (coordinator.process != nullptr) coordinator.earlier += coordinator.process->err();
  std::vector<std::string> argv = {VerbenadPath(),
                                   "--coordinator",
                                   "--shards",
                                   "0",
                                   "--listen",
                                   coordinator.address,
                                   "--name",
                                   absl::StrCat("coordinator-", index),
                                   "--etcd",
                                   endpoints_,
                                   "--etcd-lease",
                                   std::to_string(options_.lease_s),
                                   "--lease-ms",
                                   "4000",
                                   "--replicas",
                                   std::to_string(std::min(options_.servers, 2)),
                                   "--expected-servers",
                                   std::to_string(options_.servers)};
  argv.insert(argv.end(), options_.coordinator_options.begin(), options_.coordinator_options.end());
  coordinator.process = std::make_unique<Process>(argv);
}

void EtcdCluster::KillMember(int index) {
  member(index).Signal(SIGKILL);
  member(index).Wait();
}

void EtcdCluster::KillCoordinator(int index) {
  coordinator(index).Signal(SIGKILL);
  coordinator(index).Wait();
}

int EtcdCluster::Leader(v1::ClusterView* view) {
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    absl::StatusOr<v1::ClusterView> found = ViewOf(coordinators_[i].address);
    if (!found.ok()) continue;
    if (view != nullptr) *view = *std::move(found);
    return static_cast<int>(i);
  }
  return -1;
}

std::vector<std::string> EtcdCluster::coordinators() const {
  std::vector<std::string> addresses;
  for (const Coordinator& coordinator : coordinators_) addresses.push_back(coordinator.address);
  return addresses;
}

bool EtcdCluster::NoneLeads() {
  return std::all_of(
      coordinators_.begin(), coordinators_.end(), [](const Coordinator& coordinator) {
        const auto leader = ViewOf(coordinator.address).status().GetPayload(kStandbyPayload);
        return leader.has_value() && leader->empty();
      });
}

int EtcdCluster::WaitLeader(int except, v1::ClusterView* view) {
  int leader = -1;
  const bool found = Eventually(
      [&] {
        leader = Leader(view);
        return leader >= 0 && leader != except;
      },
      absl::Seconds(60));
  return found ? leader : -1;
}

int EtcdCluster::EtcdLeader() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].process == nullptr || !members_[i].process->running()) continue;
    const HttpAnswer answer = HttpGet(members_[i].metrics, "/metrics");
    if (answer.status == 200 && MetricSum(answer.body, "etcd_server_is_leader") == 1)
      return static_cast<int>(i);
  }
  return -1;
}

bool EtcdCluster::EtcdAnswers(int index) {
  return HttpGet(members_[static_cast<size_t>(index)].metrics, "/health").body.find("\"true\"") !=
         std::string::npos;
}

int EtcdCluster::WaitEtcdLeader(int except) {
  int leader = -1;
  const bool found = Eventually(
      [&] {
        leader = EtcdLeader();
        return leader >= 0 && leader != except;
      },
      absl::Seconds(60));
  return found ? leader : -1;
}

std::string EtcdCluster::logs() const {
  std::string logs;
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    const auto& process = coordinators_[i].process;
    absl::StrAppend(&logs, "coordinator-", i, ": ", coordinators_[i].earlier,
                    process == nullptr ? "" : process->err_end());
  }
  for (size_t i = 0; i < servers_.size(); ++i)
    absl::StrAppend(&logs, "server-", i, ": ", servers_[i]->err_end());
  for (size_t i = 0; i < members_.size(); ++i) {
    absl::StrAppend(&logs, "etcd m", i, ": ", members_[i].process->err_end());
  }
  return logs;
}

}  // namespace verbena::test
