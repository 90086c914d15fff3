#include "server/coordinator/moves.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/planned_moves.h"
#include "proto/wire/table_partitions.h"
#include "server/coordinator/configuration_moves.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

absl::StatusOr<const v1::Server*> ServerNamed(const std::string& name,
                                              const v1::ClusterView& view) {
  if (absl::Status status = CheckName("server name", name); !status.ok()) return status;
  for (const v1::Server& server : view.servers()) {
    if (server.name() == name) return &server;
  }
  return absl::NotFoundError(absl::StrCat("there is no server '", name, "'"));
}

// The partitions that a request names, each once.
absl::StatusOr<std::vector<uint32_t>> PartitionsOf(const v1::MovePartitionsRequest& request,
                                                   const ViewEditor& view) {
  const auto count = static_cast<uint32_t>(view.view().partitions_size());
  std::vector<uint32_t> partitions(request.partitions().begin(), request.partitions().end());
  for (const uint32_t partition : partitions) {
    if (partition < count) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("partition ", partition, " does not exist; allowed: 0 to ", count - 1));
  }
  if (!request.table().empty()) {
    const v1::Table* const table = view.FindTable(request.table(), false);
    if (table == nullptr) {
      return absl::NotFoundError(absl::StrCat("there is no table '", request.table(), "'"));
    }
    for (uint32_t p = 0; p < count; ++p) {
      if (HasChunkIn(*table, p, count)) partitions.push_back(p);
    }
  }
  std::sort(partitions.begin(), partitions.end());
  partitions.erase(std::unique(partitions.begin(), partitions.end()), partitions.end());
  if (partitions.empty()) {
    return absl::InvalidArgumentError("partitions and table are empty; allowed: one of them");
  }
  return partitions;
}

absl::Status CheckTarget(const v1::Server& server) {
  if (server.state() == v1::Server::ALIVE && !server.draining()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "server '", server.name(), "' ",
      server.draining() ? "is being drained; take that back first (verbena drain --cancel)"
                        : "is silent: its lease has ended; start it first"));
}

// A follower is not moved to a server that has a replica.
bool AlreadyThere(uint64_t target, uint64_t from, const v1::Partition& partition) {
  return partition.primary() == target || (from != 0 && HasFollower(partition, target));
}

// Copies that the drain of a server has made beside its replicas.
void DropDrainCopies(uint64_t server, ViewEditor* view) {
  const auto replicas = static_cast<int>(view->view().replicas());
  for (const v1::Partition& partition : view->view().partitions()) {
    const auto on_it = [&](const v1::Replica& r) { return r.server() == server; };
    const bool drained =
        partition.primary() == server ||
        std::any_of(partition.followers().begin(), partition.followers().end(), on_it);
    if (!drained || partition.move_to() != 0) continue;
    if (1 + partition.followers_size() >= replicas && !partition.learners().empty()) {
      DropLearner(partition.id(), view);
    }
    if (1 + partition.followers_size() > replicas && partition.unwanted() == 0) {
      MarkNewestUnwanted(partition.id(), view);
    }
  }
}

}  // namespace

absl::StatusOr<Effect> MovePartitions(const v1::MovePartitionsRequest& request, ViewEditor* view,
                                      v1::MovePartitionsResponse* response) {
  const absl::StatusOr<std::vector<uint32_t>> partitions = PartitionsOf(request, *view);
  if (!partitions.ok()) return partitions.status();
  uint64_t target = 0;
  if (!request.cancel()) {
    const absl::StatusOr<const v1::Server*> server = ServerNamed(request.to(), view->view());
    if (!server.ok()) return server.status();
    if (absl::Status status = CheckTarget(**server); !status.ok()) return status;
    target = (*server)->incarnation();
  }
  uint64_t from = 0;
  if (!request.from().empty()) {
    const absl::StatusOr<const v1::Server*> server = ServerNamed(request.from(), view->view());
    if (!server.ok()) return server.status();
    from = (*server)->incarnation();
  }
  Effect effect = Effect::kNone;
  for (const uint32_t id : *partitions) {
    const v1::Partition& partition = view->view().partitions(static_cast<int>(id));
    if (partition.primary() == 0 && !request.cancel()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "partition ", id, " is on no server yet; the first table that is created places it"));
    }
    if (request.cancel() ? partition.move_to() == 0 : AlreadyThere(target, from, partition))
      continue;
    if (from != 0 && !HasFollower(partition, from)) {
      return absl::FailedPreconditionError(absl::StrCat("partition ", id, " has no follower on '",
                                                        request.from(),
                                                        "'; see verbena partition list"));
    }
    response->add_partitions(id);
    if (partition.move_to() == target && partition.move_from() == from) continue;
    EndMove(request.cancel() ? v1::MOVE_END_CANCELLED : v1::MOVE_END_UNSPECIFIED, id, view);
    if (!request.cancel()) BeginMove(target, from, id, view);
    effect = Effect::kChanged;
  }
  return effect;
}

absl::StatusOr<Effect> DrainServer(const v1::DrainServerRequest& request, ViewEditor* view) {
  const absl::StatusOr<const v1::Server*> server = ServerNamed(request.name(), view->view());
  if (!server.ok()) return server.status();
  const uint64_t incarnation = (*server)->incarnation();
  if ((*server)->draining() != request.cancel()) return Effect::kNone;
  if (!request.cancel()) {
    const auto& servers = view->view().servers();
    const auto stay = std::count_if(servers.begin(), servers.end(), [&](const v1::Server& s) {
      return s.state() == v1::Server::ALIVE && !s.draining() && s.incarnation() != incarnation;
    });
    if (stay < static_cast<int64_t>(view->view().replicas())) {
      return absl::FailedPreconditionError(
          absl::StrCat("server '", request.name(), "' is not drained: ", stay,
                       stay == 1 ? " other server is" : " other servers are",
                       " alive and not being drained, and --replicas is ", view->view().replicas(),
                       "; start another server first"));
    }
  }
  for (v1::Server& edited : *view->EditServers()) {
    if (edited.incarnation() == incarnation) edited.set_draining(!request.cancel());
  }
  if (request.cancel()) DropDrainCopies(incarnation, view);
  for (int i = 0; i < view->view().partitions_size(); ++i) {
    if (view->view().partitions(i).primary() == incarnation)
      GrowConfiguration(static_cast<uint32_t>(i), view);
  }
  return Effect::kChanged;
}

void FollowMoves(ViewEditor* view) {
  for (const v1::Partition& partition : view->view().partitions()) {
    const uint32_t id = partition.id();
    if (partition.move_to() != 0) {
      if (!IsAlive(partition.primary(), view->view())) {
        EndMove(v1::MOVE_END_SOURCE_GONE, id, view);
      } else if (!IsAlive(partition.move_to(), view->view()) ||
                 IsDraining(partition.move_to(), view->view())) {
        EndMove(v1::MOVE_END_TARGET_GONE, id, view);
      }
    }
    if (!partition.learners().empty() && IsDraining(partition.learners(0).server(), view->view())) {
      DropLearner(id, view);
    }
    // Gone with its process, or needed since another follower has gone.
    const bool surplus =
        1 + partition.followers_size() > static_cast<int>(view->view().replicas()) &&
        HasFollower(partition, partition.unwanted());
    if (partition.unwanted() != 0 && !surplus) KeepUnwanted(id, view);
  }
}

}  // namespace verbena::server
