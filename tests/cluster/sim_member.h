// A worker or observer of a simulated cluster, with calls that wait for their end while the cluster
// runs, and dense tables of 64 numbers.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SIM_MEMBER_H_
#define VERBENA_TESTS_CLUSTER_SIM_MEMBER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

class SimMember {
 public:
  // `cluster` outlives it.
  SimMember(SimCluster* cluster, const std::string& host, const SimWorker::Options& options);

  absl::Status Join();
  absl::Status Leave();
  // A table of its own job, with rate 1 and initial values 0. The id.
  absl::StatusOr<uint32_t> Create(const std::string& name,
                                  v1::Consistency consistency = v1::CONSISTENCY_ASYNC);
  absl::StatusOr<uint32_t> Open(const std::string& name);
  // Ones to all of the table.
  absl::Status Push(uint32_t table);
  // The first parameter.
  absl::StatusOr<float> Pull(uint32_t table);

 private:
  using Done = client::ClientCore::Done;

  client::ClientCore& core() { return worker_->core(); }
  float* Values() { return reinterpret_cast<float*>(block_->data()); }
  int64_t Deadline() const;
  absl::Status Wait(const std::function<void(Done)>& start);
  absl::StatusOr<uint32_t> Table(
      const std::function<void(std::function<void(absl::StatusOr<v1::Table>)>)>& start);
  absl::Status Data(const std::function<absl::StatusOr<client::OperationId>(Done)>& start);

  SimCluster* const cluster_;
  const std::string job_;
  SimWorker* const worker_;
  const std::shared_ptr<rdma::MemoryBlock> block_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_MEMBER_H_
