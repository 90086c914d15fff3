// The transports of a shard, and how a lane travels: the best one that both sides have, and why not
// a better one.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_TRANSPORTS_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_TRANSPORTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"

namespace verbena::server {

struct ShardCore;

class ShardTransports {
 public:
  explicit ShardTransports(const ShardExecutorOptions& options)
      : options_(options), missing_(options.missing) {}

  // Listens on each. A transport that cannot listen is missing, if the options allow that and
  // another one can.
  absl::Status Listen(std::vector<rdma::MadeTransport> transports);

  // Index into links().
  absl::StatusOr<size_t> Choose(const v1::OpenLaneRequest& request, std::string* reason) const;
  absl::StatusOr<size_t> ChooseRail(size_t link, uint32_t rail) const;
  // How many there are of the link's transport.
  uint32_t RailsOf(size_t link) const;

  std::vector<TransportLink>& links() { return links_; }
  const std::vector<TransportLink>& links() const { return links_; }
  const std::vector<rdma::MissingTransport>& missing() const { return missing_; }

 private:
  const ShardExecutorOptions& options_;
  std::vector<TransportLink> links_;
  std::vector<rdma::MissingTransport> missing_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_TRANSPORTS_H_
