#include "bench/coordinator/virtual_member.h"

#include <algorithm>
#include <utility>

namespace verbena::bench {
namespace {

// Long enough for everything that is simulated.
constexpr int64_t kDeadline = int64_t{3600} * 1'000'000'000;

template <typename Request>
bool Parse(const std::string& bytes, Request* request, VirtualControl::Respond* respond) {
  if (request->ParseFromString(bytes)) return true;
  (*respond)(absl::InvalidArgumentError("the request does not parse"));
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VirtualServer>> VirtualServer::Create(const Options& options,
                                                                     rdma::SimNetwork* network,
                                                                     VirtualControl* control) {
  std::unique_ptr<VirtualServer> server(new VirtualServer(options, control));
  const absl::Status status = server->Start(network);
  if (!status.ok()) return status;
  return server;
}

absl::Status VirtualServer::Start(rdma::SimNetwork* network) {
  server::ShardExecutorOptions executor;
  executor.seed = options_.seed;
  // Enough for a chunk of a page; hundreds of links have to fit into one process.
  executor.lane.small_slots = 16;
  executor.lane.large_slots = 4;
  executor.lane.large_slot_bytes = 2 * 4096;
  executor.lane.operations = 32;
  executor.wall_seconds = [clock = &network->clock()] {
    return static_cast<uint32_t>(clock->NowNanos() / 1'000'000'000);
  };
  std::vector<server::ShardExecutor::Transport> transports;
  transports.push_back({network->NewEndpoint(options_.name), "sim", 0});
  endpoint_ = static_cast<const rdma::SimEndpoint*>(transports.back().endpoint.get());
  std::unique_ptr<VirtualChannel> channel = control_->NewChannel();
  shard_channel_ = channel.get();
  auto shard = server::ShardExecutor::Create(executor, &network->clock(), std::move(transports),
                                             std::move(channel));
  if (!shard.ok()) return shard.status();
  shard_ = *std::move(shard);
  shard_->SetCoordinator(options_.coordinator);
  server::MembershipOptions membership;
  membership.coordinator = options_.coordinator;
  membership.name = options_.name;
  membership.address = address();
  membership.zone = options_.zone;
  membership.seed = options_.seed;
  membership_ = std::make_unique<server::Membership>(
      membership, &network->clock(), channel_.get(),
      [this](uint64_t incarnation, std::shared_ptr<const v1::ClusterView> view) {
        shard_->SetIncarnation(incarnation);
        shard_->ApplyView(view, *membership_->changes());
        revision_ = view->revision();
        Touch();
      });
  control_->Serve(address(), [this](const std::string& method, const std::string& request,
                                    VirtualControl::Respond respond) {
    Handle(method, request, std::move(respond));
  });
  return absl::OkStatus();
}

VirtualServer::~VirtualServer() = default;

void VirtualServer::Handle(const std::string& method, const std::string& bytes,
                           VirtualControl::Respond respond) {
  Touch();
  if (method == "/verbena.v1.Shard/OpenLane") {
    v1::OpenLaneRequest request;
    if (!Parse(bytes, &request, &respond)) return;
    const absl::StatusOr<v1::OpenLaneResponse> opened = shard_->OpenLane(request);
    if (!opened.ok()) return respond(opened.status());
    return respond(opened->SerializeAsString());
  }
  if (method == "/verbena.v1.Shard/CloseLane") {
    v1::CloseLaneRequest request;
    if (!Parse(bytes, &request, &respond)) return;
    const absl::Status closed = shard_->CloseLane(request);
    if (!closed.ok()) return respond(closed);
    return respond(v1::CloseLaneResponse().SerializeAsString());
  }
  respond(absl::UnimplementedError(method));
}

bool VirtualServer::Run(int64_t) {
  bool worked = channel_->RunOnce();
  worked |= membership_->RunOnce();
  worked |= shard_->RunOnce();
  return worked;
}

int64_t VirtualServer::Timer() const {
  return std::min(membership_->NextTimerNanos(), shard_->NextTimerNanos());
}

VirtualWorker::VirtualWorker(const client::SessionOptions& options, uint64_t seed,
                             const Clock* clock, VirtualControl* control)
    : VirtualMember(control),
      clock_(clock),
      random_(seed),
      keeper_(options.cluster, channel_.get(), clock, nullptr),
      session_(options, channel_.get(), clock, &random_, &keeper_,
               {[](const ViewDifference&) {},
                [this](const absl::Status& expired) { status_ = expired; }}) {
  session_.Join(clock->NowNanos() + kDeadline, [this](const absl::Status& joined) { End(joined); });
}

void VirtualWorker::CreateTable(const v1::TableSpec& spec) {
  done_ = false;
  session_.CreateTable(spec, clock_->NowNanos() + kDeadline,
                       [this](const absl::StatusOr<v1::Table>& made) { End(made.status()); });
  Touch();
}

void VirtualWorker::End(const absl::Status& status) {
  done_ = status.ok();
  status_.Update(status);
}

bool VirtualWorker::Run(int64_t now) {
  const bool answered = channel_->RunOnce();
  return session_.RunOnce(now) || answered;
}

}  // namespace verbena::bench
