#include "bench/checkpoint/job.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/grpc_control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/files/checkpoint_reader.h"

namespace verbena::bench {
namespace {

constexpr uint64_t kStepBytes = uint64_t{16} << 20;
constexpr uint64_t kBatch = 8192;
constexpr int kLookMillis = 5;

// Spread over 64 bits, as hashed categories are; a bijection, so that no two are alike.
uint64_t Key(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }

v1::TableSpec SpecOf(const char* name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("checkpoint");
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_a(-1);
  spec.mutable_initializer()->set_b(1);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.01);
  return spec;
}

// Runs a CheckpointTask or RestoreTask without spinning: the servers need the processors.
template <typename Machine>
absl::StatusOr<double> RunToEnd(Machine* machine, GrpcControlChannel* channel, const Clock& clock,
                                const std::function<void()>& meanwhile) {
  const int64_t began = clock.NowNanos();
  while (!machine->done()) {
    const bool worked = channel->RunOnce();
    if (machine->RunOnce() || worked || machine->done()) continue;
    if (meanwhile) meanwhile();
    pollfd wake = {channel->wake_fd(), POLLIN, 0};
    poll(&wake, 1, kLookMillis);
  }
  if (!machine->status().ok()) return machine->status();
  return static_cast<double>(clock.NowNanos() - began) / 1e9;
}

}  // namespace

// ---- tables -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Job>> Job::Make(const JobOptions& options) {
  std::unique_ptr<Job> job(new Job(options));
  auto cluster = Cluster::Start({.verbenad = options.verbenad,
                                 .wire = options.wire,
                                 .servers = options.servers,
                                 .shards = options.shards});
  if (!cluster.ok()) return cluster.status();
  job->cluster_ = *std::move(cluster);
  ClientOptions client;
  client.cluster = job->cluster_->address();
  client.job = "checkpoint";
  client.transport = options.wire.transport;
  client.rdma.device = options.wire.device;
  auto connected = Client::Connect(client);
  if (!connected.ok()) return connected.status();
  job->client_ = *std::move(connected);
  if (absl::Status status = job->MakeTables(); !status.ok()) return status;
  if (absl::Status status = job->MakeRows(); !status.ok()) return status;
  return job;
}

absl::Status Job::MakeTables() {
  v1::TableSpec dense = SpecOf(kDense);
  dense.add_shape((options_.dense_mib << 20) / sizeof(float));
  v1::TableSpec rows = SpecOf(kRows);
  rows.set_dim(options_.dim);
  for (const auto& [spec, table] : {std::pair(&dense, &dense_), std::pair(&rows, &rows_)}) {
    auto made = client_->CreateTable(*spec);
    if (!made.ok()) return made.status();
    *table = *made;
  }
  const uint64_t batch_bytes = kBatch * options_.dim * sizeof(float);
  const uint64_t step_bytes = std::min(kStepBytes, options_.dense_mib << 20);
  for (const auto& [region, bytes] :
       {std::pair(&gradients_, step_bytes), std::pair(&parameters_, step_bytes),
        std::pair(&row_gradients_, batch_bytes), std::pair(&values_, batch_bytes)}) {
    auto made = client_->AllocateRegion(bytes);
    if (!made.ok()) return made.status();
    *region = *std::move(made);
    std::fill_n(region->floats(), bytes / sizeof(float), 0.5f);
  }
  return absl::OkStatus();
}

absl::Status Job::MakeRows() {
  for (uint64_t first = 0; first < options_.rows; first += kBatch) {
    pushed_.resize(std::min(kBatch, options_.rows - first));
    for (size_t i = 0; i < pushed_.size(); ++i) pushed_[i] = Key(first + i);
    absl::Status status = client_->PushRows(rows_, pushed_, row_gradients_).Wait();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Job::Step() {
  pushed_.resize(kBatch);
  looked_up_.resize(kBatch);
  std::uniform_int_distribution<uint64_t> any(0, options_.rows - 1);
  for (uint64_t& key : pushed_) key = Key(any(random_));
  for (uint64_t& key : looked_up_) key = Key(any(random_));
  const Range range = {.first = next_range_ * kStepBytes / sizeof(float),
                       .count = gradients_.size() / sizeof(float)};
  next_range_ = (next_range_ + 1) % std::max<uint64_t>(1, (options_.dense_mib << 20) / kStepBytes);
  Ticket tickets[] = {client_->PushPull(dense_, gradients_, parameters_, range),
                      client_->PushRows(rows_, pushed_, row_gradients_),
                      client_->Lookup(rows_, looked_up_, values_)};
  absl::Status status;
  for (Ticket& ticket : tickets) status.Update(ticket.Wait());
  return status;
}

// ---- training -----------------------------------------------------------------------------------

Training::Training(Job* job) {
  thread_ = std::thread([this, job] {
    while (!stop_ && failed_.ok()) {
      failed_ = job->Step();
      ++steps_;
    }
  });
}

absl::Status Training::End() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return failed_;
}

// ---- saves and restores -------------------------------------------------------------------------

absl::StatusOr<Done> Save(server::CheckpointTaskOptions options,
                          const std::function<void()>& meanwhile) {
  const MonotonicClock clock;
  GrpcControlChannel channel;
  options.written_by = "bench/checkpoint";
  const std::string root = options.root;
  server::CheckpointTask saver(std::move(options), &clock, &channel, checkpoint::PosixDisk());
  auto seconds = RunToEnd(&saver, &channel, clock, meanwhile);
  if (!seconds.ok()) return seconds.status();
  Done done{.seconds = *seconds, .path = checkpoint::Join(root, saver.name())};
  for (const v1::CheckpointFile& file : saver.manifest().files()) done.bytes += file.bytes();
  return done;
}

absl::StatusOr<double> Restore(const server::RestoreTaskOptions& options) {
  const MonotonicClock clock;
  GrpcControlChannel channel;
  auto restorer = server::RestoreTask::Make(options, &clock, &channel, checkpoint::PosixDisk());
  if (!restorer.ok()) return restorer.status();
  return RunToEnd(restorer->get(), &channel, clock, {});
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path,
                                                 const std::vector<std::string>& tables) {
  auto reader = checkpoint::CheckpointReader::Open(checkpoint::PosixDisk(), path);
  if (!reader.ok()) return reader.status();
  std::vector<std::string> files;
  for (const v1::CheckpointFile& file : reader->manifest().files()) {
    const bool has = std::any_of(
        file.tensors().begin(), file.tensors().end(), [&](const v1::CheckpointTensor& tensor) {
          return std::find(tables.begin(), tables.end(), tensor.table()) != tables.end();
        });
    if (has) files.push_back(checkpoint::Join(path, file.name()));
  }
  return files;
}

}  // namespace verbena::bench
