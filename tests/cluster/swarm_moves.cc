#include "tests/cluster/swarm_moves.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace verbena::test {

SwarmMoves::SwarmMoves(SwarmWorld* world)
    : world_(world),
      channel_(world->cluster->control().NewChannel("mover")),
      random_(world->plan.seed * 61 + 31) {}

template <typename Response, typename Request>
void SwarmMoves::Call(const char* method, Request request) {
  std::string id(16, '\0');
  for (char& c : id) c = static_cast<char>(random_());
  request.set_request_id(id);
  calls_ = true;
  const auto response = std::make_shared<Response>();
  // A call that is lost is forgotten: the next one says something else.
  channel_->Unary(kCoordinatorAddress, absl::StrCat("/verbena.v1.Cluster/", method), request,
                  response, absl::Milliseconds(500), [this, method](absl::Status status) {
                    calls_ = false;
                    if (!absl::IsInvalidArgument(status)) return;
                    world_->Violation(absl::StrCat("mover: ", method, ": ", status.ToString()));
                  });
}

void SwarmMoves::Move() {
  const v1::ClusterView& view = world_->cluster->view();
  if (view.servers().empty() || view.partitions().empty()) return;
  v1::MovePartitionsRequest request;
  for (uint64_t i = 0, count = 1 + Pick(4); i < count; ++i) {
    request.add_partitions(static_cast<uint32_t>(Pick(view.partitions_size())));
  }
  request.set_cancel(Pick(8) == 0);
  if (!request.cancel()) {
    request.set_to(view.servers(static_cast<int>(Pick(view.servers_size()))).name());
    // Followers in some seeds only: the others draw as they did.
    if (world_->plan.seed % 11 == 9 && Pick(2) == 0) {
      request.set_from(view.servers(static_cast<int>(Pick(view.servers_size()))).name());
    }
  }
  world_->Trace(absl::StrCat("the operator moves partitions: ", request.ShortDebugString()));
  Call<v1::MovePartitionsResponse>("MovePartitions", std::move(request));
}

void SwarmMoves::Drain(const std::string& name, bool cancel) {
  v1::DrainServerRequest request;
  request.set_name(name);
  request.set_cancel(cancel);
  world_->Trace(absl::StrCat("the operator drains a server: ", request.ShortDebugString()));
  Call<v1::DrainServerResponse>("DrainServer", std::move(request));
}

void SwarmMoves::Run() {
  if (!world_->has(SwarmFeature::kMigrations)) return;
  channel_->RunOnce();
  if (calls_ || world_->now() < next_at_ || world_->stage == SwarmStage::kFinish) return;
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->stage != SwarmStage::kFaults) {
    next_at_ = world_->now() + 20 * kMilli;
    for (const v1::Server& server : view.servers()) {
      if (server.draining()) return Drain(server.name(), true);
    }
    return;
  }
  next_at_ = world_->now() + static_cast<int64_t>(Pick(200)) * kMilli;
  if (view.servers().empty() || Pick(6) > 0) return Move();
  const v1::Server& server = view.servers(static_cast<int>(Pick(view.servers_size())));
  Drain(server.name(), server.draining());
}

bool SwarmMoves::idle() const {
  if (calls_) return false;
  for (const v1::Server& server : world_->cluster->view().servers()) {
    if (server.draining()) return false;
  }
  return true;
}

}  // namespace verbena::test
