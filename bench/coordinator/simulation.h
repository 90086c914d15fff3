// A cluster of any size on virtual time: how long it takes to converge after a failure.
//
// Coordinator, membership, shards with their links and leases, and workers' sessions are the real
// state machines, in one thread. Simulated are the network and the processing costs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_COORDINATOR_SIMULATION_H_
#define VERBENA_BENCH_COORDINATOR_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/coordinator/costs.h"
#include "bench/coordinator/virtual_control.h"
#include "bench/coordinator/virtual_coordinator.h"
#include "bench/coordinator/virtual_member.h"
#include "rdma/sim/sim_network.h"

namespace verbena::bench {

struct SimulationOptions {
  uint64_t seed = 1;
  int servers = 100;
  int workers = 1000;
  int zones = 10;  // racks; the replicas of a partition are in two of them
  int tables = 20;
  int partitions = 256;
  uint32_t lease_ms = 5000;
  uint32_t latency_us = 100;    // of a message, one way, on average
  uint32_t takeover_ms = 5500;  // from the death of a coordinator until another one starts
  Costs costs;
  bool measure_member = true;  // costs.member: measured while the cluster forms
};

// A part of the time to converge; milliseconds of virtual time.
struct Part {
  std::string name;
  double ms = 0;
};

struct Failure {
  std::string name;
  std::vector<Part> parts;  // one after the other: their sum is `converged_ms`
  std::vector<Part> also;   // since the failure, beside these
  double converged_ms = 0;
  int moved = 0;  // partitions that got another primary
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  // Everybody joins; every partition gets its two replicas. First.
  absl::Status Form();
  const Costs& costs() const { return options_.costs; }
  absl::StatusOr<Failure> ServerDeath();
  absl::StatusOr<Failure> RackDeath();
  absl::StatusOr<Failure> CoordinatorFailover();

 private:
  // Runs until `done` or, at the latest, `limit_s` seconds of virtual time later. An error names
  // `what` was not reached, or a member that ended.
  absl::Status RunUntil(const char* what, const std::function<bool()>& done, int64_t limit_s = 600);
  bool RunOnce();
  bool RunMember(VirtualMember* member);
  int64_t NextTimerNanos() const;
  int64_t now() const { return network_.clock().NowNanos(); }
  absl::Status CheckMembers() const;

  server::CoordinatorOptions CoordinatorSettings() const;
  absl::Status MakeTable(const std::string& name);
  // Every member has a view that is at least as new.
  bool AllHave(uint64_t revision) const;
  // Every partition has a primary and a follower that are alive.
  bool Complete() const;
  // No partition has a replica on one of these servers.
  bool Replaced(const std::set<uint64_t>& dead) const;
  bool Silent(const std::set<uint64_t>& dead) const;
  absl::StatusOr<Failure> Kill(const std::string& name, const std::vector<size_t>& indexes,
                               VirtualControl::End end);

  SimulationOptions options_;
  rdma::SimNetwork network_;
  VirtualControl control_;
  VirtualCoordinator coordinator_;
  std::vector<std::unique_ptr<VirtualServer>> servers_;
  std::vector<std::unique_ptr<VirtualWorker>> workers_;
  Samples member_us_;
  bool measuring_ = false;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_SIMULATION_H_
