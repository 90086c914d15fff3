#include "bench/migrate/moves.h"

#include <grpcpp/grpcpp.h>

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena::bench {
namespace {

std::string RequestId() {
  std::random_device random;
  std::string id(16, '\0');
  for (char& c : id) c = static_cast<char>(random());
  return id;
}

}  // namespace

absl::StatusOr<Moves> Moves::Begin(const Cluster* cluster) {
  Moves moves(cluster);
  const auto view = ViewOf(*cluster);
  if (!view.ok()) return view.status();
  std::map<uint64_t, std::vector<uint32_t>> of_server;
  for (const v1::Partition& partition : view->partitions()) {
    of_server[partition.primary()].push_back(partition.id());
  }
  auto stub = v1::Cluster::NewStub(
      grpc::CreateChannel(cluster->address(), grpc::InsecureChannelCredentials()));
  for (int i = 0; i < view->servers_size(); ++i) {
    const v1::Server& from = view->servers(i);
    const v1::Server& to = view->servers((i + 1) % view->servers_size());
    v1::MovePartitionsRequest request;
    request.set_request_id(RequestId());
    request.set_to(to.name());
    for (const uint32_t partition : of_server[from.incarnation()]) {
      request.add_partitions(partition);
      moves.targets_[partition] = to.incarnation();
    }
    if (request.partitions().empty()) continue;
    grpc::ClientContext context;
    v1::MovePartitionsResponse response;
    const grpc::Status status = stub->MovePartitions(&context, request, &response);
    if (!status.ok()) {
      return absl::UnavailableError(absl::StrCat("MovePartitions: ", status.error_message()));
    }
  }
  return moves;
}

absl::StatusOr<size_t> Moves::Done() const {
  const auto view = ViewOf(*cluster_);
  if (!view.ok()) return view.status();
  size_t done = 0;
  for (const v1::Partition& partition : view->partitions()) {
    const auto target = targets_.find(partition.id());
    if (target == targets_.end() || partition.move_to() != 0) continue;
    if (partition.primary() != target->second) {
      return absl::AbortedError(
          absl::StrCat("partition ", partition.id(), " was not moved: it stays at server ",
                       partition.primary(), " (", v1::MoveEnd_Name(partition.last_move()), ")"));
    }
    const bool stays = partition.learners().empty() &&
                       partition.followers_size() + 1 == static_cast<int>(view->replicas());
    done += stays ? 1 : 0;
  }
  return done;
}

}  // namespace verbena::bench
