// Real etcd members, coordinators that are elected by them, and servers, as processes on loopback.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_FAULTS_ETCD_CLUSTER_H_
#define VERBENA_TESTS_FAULTS_ETCD_CLUSTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

struct EtcdClusterOptions {
  int members = 3;
  int coordinators = 3;
  int servers = 3;
  int lease_s = 3;                                    // of the leader's key
  std::vector<std::string> member_options = {};       // besides
  std::vector<std::string> coordinator_options = {};  // the same
  std::vector<std::string> etcdctl_options = {};      // the same
  bool tls = false;  // member_options name a certificate for clients
};

class EtcdCluster {
 public:
  explicit EtcdCluster(const EtcdClusterOptions& options = {});

  // The addresses of all coordinators.
  const std::string& address() const { return addresses_; }
  const std::string& coordinator_address(int index) const { return coordinators_[index].address; }
  std::vector<std::string> coordinators() const;
  const std::string& etcd() const { return endpoints_; }
  Process& member(int index) { return *members_[index].process; }
  Process& coordinator(int index) { return *coordinators_[index].process; }
  Process& server(int index) { return *servers_[index]; }

  // SIGKILL; returns once the process is gone.
  void KillMember(int index);
  // etcd's own program, on all members. Its output; the command must succeed.
  std::string Etcdctl(std::vector<std::string> command);
  void KillCoordinator(int index);
  void StartMember(int index);       // on its data and address
  void StartCoordinator(int index);  // on its address

  // The coordinator that answers as the leader, and its view; -1: none does.
  int Leader(v1::ClusterView* view = nullptr);
  // Waits for one that is not `except`.
  int WaitLeader(int except = -1, v1::ClusterView* view = nullptr);
  // Whether every coordinator answers that none leads.
  bool NoneLeads();
  // The member of etcd that leads; -1: none.
  int EtcdLeader();
  int WaitEtcdLeader(int except = -1);
  // Whether the member runs, knows etcd's leader and has caught up so far.
  bool EtcdAnswers(int index);
  std::string logs() const;

 private:
  struct Member {
    std::string client, peer, metrics;
    std::unique_ptr<Process> process;
  };
  struct Coordinator {
    std::string address;
    std::unique_ptr<Process> process;
    std::string earlier;  // output of its former processes
  };

  const EtcdClusterOptions options_;
  TemporaryDirectory directory_;
  std::string endpoints_, peers_, addresses_;
  std::vector<Member> members_;
  std::vector<Coordinator> coordinators_;
  std::vector<std::unique_ptr<Process>> servers_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_ETCD_CLUSTER_H_
