#include "server/node_coordinator.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/control/grpc_control_channel.h"
#include "server/access/peer_log.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/manifest.h"
#include "server/cli/options.h"
#include "server/node_state.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/dense_table.h"

namespace verbena::server {
namespace {

absl::StatusOr<CoordinatorOptions> OptionsOf(const NodeOptions& node, const NodeTokens& tokens) {
  CoordinatorOptions options;
  options.partitions = node.partitions;
  options.lease_ms = node.lease_ms;
  options.find_again_ns = absl::ToInt64Nanoseconds(GrpcControlChannel::kLongestReconnect);
  if (!node.accept_older_state.empty() &&
      !absl::SimpleHexAtoi(node.accept_older_state, &options.accept_older_state)) {
    return absl::InvalidArgumentError("--accept-older-state: wanted are 16 hexadecimal digits");
  }
  options.expected_servers = node.expected_servers;
  options.replicas = node.replicas;
  options.min_replicas = node.min_replicas;
  options.move_rate = node.move_rate;
  options.log = Bounded([](const std::string& text) { spdlog::warn("{}", text); });
  options.check_optimizer = shard::CheckTableOptimizer;
  options.changeable_values = shard::ChangeableValues;
  options.state_arrays = checkpoint::StateArrays;
  options.version = kVersion;
  options.tokens = tokens.operator_token.has_value();
  options.operator_token = tokens.operator_token.value_or(v1::Token());
  options.chunk_memory = shard::DenseTable::MemoryOfChunk;
  return options;
}

// Of work that a coordinator does by itself, and that may fail each time.
std::function<void(bool failed, const std::string& text)> LogOf(const char* work) {
  const auto failures =
      Bounded([work](const std::string& text) { spdlog::warn("{}: {}", work, text); });
  const auto successes =
      Bounded([work](const std::string& text) { spdlog::info("{}: {}", work, text); });
  return [failures, successes](bool failed, const std::string& text) {
    (failed ? failures : successes)(text);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeCoordinator>> NodeCoordinator::Open(const NodeOptions& options,
                                                                       const Clock* clock,
                                                                       const NodeTokens& tokens) {
  const absl::StatusOr<CoordinatorOptions> wanted = OptionsOf(options, tokens);
  if (!wanted.ok()) return wanted.status();
  std::unique_ptr<NodeCoordinator> opened(new NodeCoordinator(options, clock));
  const absl::Status status =
      options.etcd.endpoints.empty() ? opened->OpenState(*wanted) : opened->Elect(*wanted);
  if (!status.ok()) return status;
  opened->driver_ =
      std::make_unique<Driver>(DriverOptions{.name = "vb-coordinator"}, clock, opened->task_.get());
  return opened;
}

absl::Status NodeCoordinator::Elect(const CoordinatorOptions& options) {
  absl::StatusOr<std::unique_ptr<ElectedOffice>> office =
      OpenOffice(options_, options, &clock_, [this] { task_->inbox().Post([] {}); });
  if (!office.ok()) return office.status();
  task_ = std::make_unique<CoordinatorTask>(
      *std::move(office), [this](const v1::ClusterView& view) { LogSettings(view, options_); });
  return absl::OkStatus();
}

absl::Status NodeCoordinator::OpenState(const CoordinatorOptions& options) {
  absl::StatusOr<std::unique_ptr<WatchedStore>> opened = OpenStateStore(options_);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<WatchedStore> watched = *std::move(opened);
  state_store_ = watched.get();
  absl::StatusOr<std::unique_ptr<Coordinator>> created =
      Coordinator::Create(options, &clock_, watched.get());
  if (!created.ok()) return created.status();
  LogSettings((*created)->view(), options_);
  task_ = std::make_unique<CoordinatorTask>(std::move(watched), *std::move(created));
  return absl::OkStatus();
}

absl::Status NodeCoordinator::Start(const std::string& address) {
  if (absl::Status status = driver_->Start(); !status.ok()) return status;
  // Callers reach it from now on.
  if (task_->office() != nullptr) task_->office()->Start(address);
  return absl::OkStatus();
}

absl::Status NodeCoordinator::StartTasks(const std::string& coordinator,
                                         const std::shared_ptr<TlsFiles>& tls,
                                         const NodeTokens& tokens) {
  if (absl::Status status = StartCheckpoints(coordinator, tls, tokens); !status.ok()) return status;
  return StartRebalancing(coordinator, tls);
}

absl::Status NodeCoordinator::StartCheckpoints(const std::string& coordinator,
                                               const std::shared_ptr<TlsFiles>& tls,
                                               const NodeTokens& tokens) {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  PeriodicCheckpointsOptions wanted;
  wanted.saver.coordinator = coordinator;
  wanted.saver.root = options_.checkpoint_dir;
  wanted.saver.bytes_per_second = options_.checkpoint_rate;
  wanted.saver.full_every = options_.checkpoint_full_every;
  wanted.saver.written_by = absl::StrCat("verbenad ", kVersion);
  wanted.saver.time = [] {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  };
  wanted.every_ns = int64_t{options_.checkpoint_every_s} * 1'000'000'000;
  wanted.every_steps = options_.checkpoint_every_steps;
  wanted.retention = {.keep_last = options_.checkpoint_keep_last,
                      .keep_every = options_.checkpoint_keep_every};
  wanted.failing = &failing_checkpoints_;
  if (task_->office() != nullptr) {
    wanted.active = [task = task_.get()] { return task->leads(); };
  }
  wanted.log = LogOf("checkpoints");
  saves_ = std::make_unique<CheckpointsTask>(std::move(wanted), &clock_, tls, tokens.own,
                                             checkpoint::PosixDisk());
  saves_driver_ =
      std::make_unique<Driver>(DriverOptions{.name = "vb-saves"}, &clock_, saves_.get());
  return saves_driver_->Start();
}

absl::Status NodeCoordinator::StartRebalancing(const std::string& coordinator,
                                               const std::shared_ptr<TlsFiles>& tls) {
  if (!options_.rebalance) return absl::OkStatus();
  RebalancerOptions wanted;
  wanted.coordinator = coordinator;
  wanted.every_ns = int64_t{options_.rebalance_every_s} * 1'000'000'000;
  wanted.above = options_.rebalance_above / 100.0;
  if (task_->office() != nullptr) {
    wanted.active = [task = task_.get()] { return task->leads(); };
  }
  wanted.log = LogOf("rebalance");
  // Moves are an operator's calls.
  absl::StatusOr<std::shared_ptr<TokenFile>> token = TokenFile::Open(options_.operator_token_file);
  if (!token.ok()) return token.status();
  rebalance_ = std::make_unique<RebalanceTask>(std::move(wanted), &clock_, tls, *std::move(token));
  rebalance_driver_ =
      std::make_unique<Driver>(DriverOptions{.name = "vb-rebalance"}, &clock_, rebalance_.get());
  return rebalance_driver_->Start();
}

std::future<CoordinatorMetrics> NodeCoordinator::AskMetrics() {
  auto promise = std::make_shared<std::promise<CoordinatorMetrics>>();
  std::future<CoordinatorMetrics> future = promise->get_future();
  task_->inbox().Post([task = task_.get(), promise] {
    if (task->coordinator() == nullptr) return;
    CoordinatorMetrics summary = Summarise(task->coordinator()->view());
    summary.moves = task->coordinator()->moves();
    summary.partitions_refused = task->coordinator()->partitions_refused();
    promise->set_value(summary);
  });
  return future;
}

void NodeCoordinator::AddMetrics(std::future<CoordinatorMetrics> asked, absl::Duration timeout,
                                 NodeMetrics* metrics) {
  if (saves_ != nullptr) {
    const PeriodicCheckpointsStatistics made = saves_->statistics();
    CheckpointMetrics& of_saves = metrics->checkpoints.emplace();
    of_saves.saved = made.saved;
    of_saves.failed = made.failed;
    of_saves.bytes = made.bytes;
    of_saves.duration_seconds = static_cast<double>(made.duration_ns) / 1e9;
    if (made.saved > 0) {
      of_saves.age_seconds = static_cast<double>(clock_.NowNanos() - made.at_ns) / 1e9;
    }
  }
  if (rebalance_ != nullptr && rebalance_->statistics().known) {
    metrics->imbalance = rebalance_->statistics().imbalance;
    metrics->imbalance_of_primaries = rebalance_->statistics().imbalance_of_primaries;
  }
  const ElectedOffice* const office = task_->office();
  if (office != nullptr) {
    metrics->election = {office->Leads(), office->times_elected(), office->etcd_failures()};
  }
  if (asked.wait_for(absl::ToChronoMilliseconds(timeout)) != std::future_status::ready) return;
  try {
    metrics->coordinator = asked.get();
    metrics->coordinator->checkpoint_failures =
        office != nullptr ? office->save_failures() : state_store_->failures();
    metrics->coordinator->checkpoint_failing =
        office != nullptr ? office->save_failing() : state_store_->failing();
  } catch (const std::future_error&) {
    // The coordinator has retired, or another one leads: it has no metrics.
  }
}

void NodeCoordinator::StopRebalancing() {
  if (rebalance_driver_ != nullptr) rebalance_driver_->Stop();
}

bool NodeCoordinator::FinishCheckpoints() {
  if (saves_driver_ == nullptr) return true;
  bool saved_all = true;
  if (options_.checkpoint_on_exit_s > 0) {
    const uint64_t failed_before = saves_->saves().statistics().failed;
    auto saved = std::make_shared<std::promise<void>>();
    std::future<void> future = saved->get_future();
    saves_->inbox().Post(
        [this, saved] { saves_->saves().Finish([saved] { saved->set_value(); }); });
    // Once a process life.
    spdlog::info("checkpoints: the last ones, for at most {} s; a second signal ends at once",
                 options_.checkpoint_on_exit_s);
    const auto waited = future.wait_for(std::chrono::seconds(options_.checkpoint_on_exit_s));
    // Once a process life.
    if (waited != std::future_status::ready) spdlog::error("checkpoints: not done in time");
    saved_all =
        waited == std::future_status::ready && saves_->saves().statistics().failed == failed_before;
  }
  saves_driver_->Stop();
  return saved_all;
}

void NodeCoordinator::Retire() {
  driver_->Stop();
  task_->Retire();
}

}  // namespace verbena::server
