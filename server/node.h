// One verbenad: everything in it put together, started and stopped.
//
//     coordinator thread: Coordinator            gRPC threads: ClusterService, ShardService
//     member thread: Membership                  HTTP threads: /metrics, /healthz
//     shard threads: a ShardExecutor each
//
// The gRPC and HTTP threads reach the others through their inboxes only.
//
// **Thread safety**: Start() and Stop() by one thread; state() and health() by any.
#ifndef VERBENA_SERVER_NODE_H_
#define VERBENA_SERVER_NODE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/node_options.h"

namespace verbena::server {

class VerbenaNode {
 public:
  // Returns once the node listens; it joins its cluster afterwards. Errors are for the operator:
  // an address in use, a state directory that cannot be used, no memory.
  static absl::StatusOr<std::unique_ptr<VerbenaNode>> Start(const NodeOptions& options);
  ~VerbenaNode();

  // Leaves the cluster, ends the lanes and all threads; takes at most about ten seconds beside
  // --checkpoint-on-exit. Returns an error for the operator if that checkpoint could not be made,
  // or if calls could not be ended. In the second case the memory that calls use stays for the rest
  // of the process.
  absl::Status Stop();

  const std::string& address() const;          // of gRPC, as peers reach it
  const std::string& metrics_address() const;  // empty: none
  uint64_t incarnation() const;                // 0: not joined, or only a coordinator
  // OK while this process does the work it was started for; otherwise the reason.
  absl::Status health() const;
  // Not OK: this server can never be a member (again), so it should end; the reason.
  absl::Status fatal() const;

 private:
  struct Impl;
  explicit VerbenaNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_H_
