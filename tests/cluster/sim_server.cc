// A server of the simulated cluster: its shards, its membership, its disks.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/failpoints.h"
#include "tests/cluster/sim_cluster.h"
#include "tests/cluster/sim_dispatch.h"

namespace verbena::test {

SimServer::SimServer(const ClusterOptions& options, int index, rdma::SimNetwork* network,
                     SimControl* control)
    : host_(absl::StrCat("server-", index)),
      address_(absl::StrCat(host_, ":1")),
      network_clock_(&network->clock()),
      clock_(&network->clock(), options.seed * 1009 + static_cast<uint64_t>(index),
             options.drift_ppm),
      control_(control),
      channel_(control->NewChannel(host_)),
      rails_(options.rails),
      cold_io_ns_(options.cold_io_ns),
      file_io_ns_(options.file_io_ns),
      checkpoint_begun_(options.checkpoint_begun),
      restore_begun_(options.restore_begun),
      files_(static_cast<size_t>(options.shards)) {
  for (int s = 0; s < options.shards; ++s) AddShard(options, index, s, network);
  inputs_.Watch(channel_.get());
  server::MembershipOptions membership;
  membership.coordinator = kCoordinatorAddress;
  membership.name = host_;
  membership.address = address_;
  membership.shards = options.shards;
  membership.cold_tier = options.cold_io_ns > 0;
  membership.seed = options.seed * 77 + index + 1;
  membership_ = std::make_unique<server::Membership>(
      membership, &clock_, channel_.get(),
      [this](uint64_t incarnation, std::shared_ptr<const v1::ClusterView> view) {
        for (auto& shard : shards_) {
          shard->SetIncarnation(incarnation);
          shard->ApplyView(view, *membership_->changes());
        }
        for (SimInputs& inputs : shard_inputs_) inputs.Touch();
      });
  control_->Serve(address_, [this](const std::string& method, const std::string& request,
                                   SimControl::Respond respond) {
    if (!stalled(network_clock_->NowNanos())) return Handle(method, request, std::move(respond));
    waiting_.push_back([this, method, request, respond = std::move(respond)]() mutable {
      Handle(method, request, std::move(respond));
    });
  });
}

void SimServer::Resume(int64_t ns) {
  if (rdma::failpoints().clock_stops_in_suspend) clock_.Lose(ns);
  SimInputs::CountCall();
}

void SimServer::Leave(int64_t timeout_ns) {
  membership_->Leave(absl::Nanoseconds(timeout_ns), [](const absl::Status&) {});
  inputs_.Touch();
}

SimServer::~SimServer() { control_->Stop(address_); }

void SimServer::AddShard(const ClusterOptions& options, int index, int shard,
                         rdma::SimNetwork* network) {
  server::ShardExecutorOptions executor;
  executor.shard = shard;
  executor.seed = options.seed * 1000 + index * 10 + shard + 1;
  executor.lane.small_slots = options.small_slots;
  executor.lane.large_slots = options.large_slots;
  executor.lane.large_slot_bytes = 4096 + kSimChunkBytes;
  executor.lane.operations = options.operations;
  executor.spare_buffers = options.spare_buffers;
  executor.replica_log = options.replica_log;
  if (options.memory_limit > 0) {
    if (memory_ == nullptr) memory_ = std::make_shared<server::MemoryBudget>(options.memory_limit);
    executor.memory_budget = memory_;
    executor.slab_bytes = 4096;
  }
  executor.audit = options.audit;
  executor.commit_observer = options.commit_observer;
  executor.disk = options.disk;
  if (file_io_ns_) {
    executor.file_io = [this, shard](server::Inbox::Closure what) {
      std::deque<FileWork>& files = files_[static_cast<size_t>(shard)];
      const int64_t after = files.empty() ? clock_.NowNanos() : files.back().at;
      files.push_back({std::max(after, clock_.NowNanos()) + file_io_ns_(), std::move(what)});
    };
  }
  if (options.cold_io_ns > 0) {
    cold_.push_back(std::make_unique<shard::FakeColdStore>(static_cast<uint32_t>(executor.seed)));
    executor.cold_store = cold_.back().get();
  }
  executor.log = options.log;
  executor.wall_seconds = [clock = &network->clock()] {
    return static_cast<uint32_t>(clock->NowNanos() / 1'000'000'000);
  };
  SimInputs& inputs = shard_inputs_.emplace_back();
  std::vector<server::ShardExecutor::Transport> transports;
  for (uint32_t rail = 0; rail < rails_; ++rail) {
    transports.push_back({network->NewEndpoint(RailHost(host_, rail)), "sim", rail});
    inputs.Watch(transports.back().endpoint.get());
  }
  std::unique_ptr<SimChannel> channel = control_->NewChannel(host_);
  inputs.Watch(channel.get());
  shards_.push_back(Must(
      server::ShardExecutor::Create(executor, &clock_, std::move(transports), std::move(channel))));
  shards_.back()->SetCoordinator(kCoordinatorAddress);
}

void SimServer::Handle(const std::string& method, const std::string& bytes,
                       SimControl::Respond respond) {
  for (SimInputs& inputs : shard_inputs_) inputs.Touch();
  if (method == "/verbena.v1.Shard/OpenLane") {
    Dispatch<v1::OpenLaneRequest, v1::OpenLaneResponse>(
        bytes, std::move(respond), [this](const v1::OpenLaneRequest& request, auto reply) {
          if (request.shard() >= shards_.size()) {
            reply(absl::InvalidArgumentError(absl::StrCat("no shard ", request.shard())));
            return;
          }
          reply(shards_[request.shard()]->OpenLane(request));
        });
  } else if (method == "/verbena.v1.Shard/CloseLane") {
    Dispatch<v1::CloseLaneRequest, v1::CloseLaneResponse>(
        bytes, std::move(respond), [this](const v1::CloseLaneRequest& request, auto reply) {
          absl::Status status = request.shard() < shards_.size()
                                    ? shards_[request.shard()]->CloseLane(request)
                                    : absl::InvalidArgumentError("no such shard");
          if (status.ok()) {
            reply(v1::CloseLaneResponse());
          } else {
            reply(status);
          }
        });
  } else if (method == "/verbena.v1.Shard/BeginCheckpoint") {
    Dispatch<v1::BeginCheckpointRequest, v1::BeginCheckpointResponse>(
        bytes, std::move(respond), [this](const v1::BeginCheckpointRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          auto begun = shard->BeginCheckpoint(request);
          const bool writes = begun.ok() && !request.only_look() && !begun->too_late();
          if (writes && checkpoint_begun_) checkpoint_begun_(request, *shard->engine());
          reply(std::move(begun));
        });
  } else if (method == "/verbena.v1.Shard/WaitCheckpoint") {
    Dispatch<v1::WaitCheckpointRequest, v1::WaitCheckpointResponse>(
        bytes, std::move(respond), [this](const v1::WaitCheckpointRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          shard->WaitCheckpoint(request, std::move(reply));
        });
  } else if (method == "/verbena.v1.Shard/BeginRestore") {
    Dispatch<v1::BeginRestoreRequest, v1::BeginRestoreResponse>(
        bytes, std::move(respond), [this](const v1::BeginRestoreRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          if (restore_begun_) restore_begun_(request);
          const absl::Status status = shard->BeginRestore(request);
          if (!status.ok()) return reply(status);
          reply(v1::BeginRestoreResponse());
        });
  } else if (method == "/verbena.v1.Shard/WaitRestore") {
    Dispatch<v1::WaitRestoreRequest, v1::WaitRestoreResponse>(
        bytes, std::move(respond), [this](const v1::WaitRestoreRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          shard->WaitRestore(request, std::move(reply));
        });
  } else if (method == "/verbena.v1.Shard/EndCheckpoint") {
    Dispatch<v1::EndCheckpointRequest, v1::EndCheckpointResponse>(
        bytes, std::move(respond), [this](const v1::EndCheckpointRequest& request, auto reply) {
          server::ShardExecutor* shard = FindShard(request.shard());
          if (shard == nullptr) return reply(absl::InvalidArgumentError("no such shard"));
          const absl::Status status = shard->EndCheckpoint(request);
          if (!status.ok()) return reply(status);
          reply(v1::EndCheckpointResponse());
        });
  } else {
    respond(absl::UnimplementedError(method));
  }
}

server::ShardExecutor* SimServer::FindShard(uint32_t shard) {
  return shard < shards_.size() ? shards_[shard].get() : nullptr;
}

void SimServer::SetColdFull(bool full) {
  for (auto& store : cold_) store->full = full;
  SimInputs::CountCall();
}

bool SimServer::RunFiles(int64_t now) {
  bool worked = false;
  for (size_t s = 0; s < files_.size(); ++s) {
    std::deque<FileWork>& files = files_[s];
    while (!files.empty() && files.front().at <= now) {
      server::Inbox::Closure what = std::move(files.front().what);
      files.pop_front();
      what();
      shard_inputs_[s].Touch();
      worked = true;
    }
  }
  return worked;
}

bool SimServer::RunOnce() {
  const int64_t now = clock_.NowNanos();
  for (auto& call : std::exchange(waiting_, {})) call();
  const bool cold_is_due = now >= cold_at_;
  if (cold_is_due) {
    cold_at_ = now + cold_io_ns_;
    // The next turn stops the stores.
    if (!cold_.empty()) SimInputs::CountCall();
  }
  for (size_t s = 0; s < cold_.size(); ++s) {
    cold_[s]->stopped = !cold_is_due;
    if (cold_is_due && !cold_[s]->idle()) shard_inputs_[s].Touch();
  }
  bool worked = RunFiles(now);
  worked |= inputs_.RunIfDue(
      now,
      [this] {
        const bool heard = channel_->RunOnce();
        return membership_->RunOnce() || heard;
      },
      [this] { return membership_->NextTimerNanos(); });
  for (size_t s = 0; s < shards_.size(); ++s) worked |= RunShard(s, now);
  return worked;
}

bool SimServer::RunShard(size_t index, int64_t now) {
  return shard_inputs_[index].RunIfDue(
      now, [this, index] { return shards_[index]->RunOnce(); },
      [this, index] { return shards_[index]->NextTimerNanos(); });
}

int64_t SimServer::NextColdIo() const {
  return cold_.empty() ? std::numeric_limits<int64_t>::max() : clock_.ToNetwork(cold_at_);
}

int64_t SimServer::NextTimerNanos() const {
  int64_t next = inputs_.NextTimerNanos();
  for (const auto& store : cold_) {
    if (!store->idle()) next = std::min(next, cold_at_);
  }
  for (const auto& files : files_) {
    if (!files.empty()) next = std::min(next, files.front().at);
  }
  for (const SimInputs& inputs : shard_inputs_) next = std::min(next, inputs.NextTimerNanos());
  return clock_.ToNetwork(next);
}

}  // namespace verbena::test
