#include "bench/push_pull/worker.h"

#include <chrono>
#include <thread>
#include <utility>

#include "bench/push_pull/touch.h"

namespace verbena::bench {
namespace {

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Connect(const Options& options) {
  std::unique_ptr<Worker> worker(new Worker);
  ClientOptions client;
  client.cluster = options.cluster;
  client.job = options.job;
  client.expected_workers = options.expected_workers;
  client.transport = options.wire.transport;
  client.rdma.device = options.wire.device;
  auto connected = Client::Connect(client);
  if (!connected.ok()) return connected.status();
  worker->client_ = *std::move(connected);
  worker->job_ = options.job;
  return worker;
}

absl::Status Worker::UseTable(const std::string& name, v1::Consistency consistency, size_t bytes,
                              const Types& types) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job_);
  spec.add_shape(bytes / sizeof(float));
  spec.set_dtype(types.parameters);
  spec.set_gradient_dtype(types.gradients);
  spec.set_pull_codec(types.pull_codec);
  spec.set_consistency(consistency);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1e-3);
  auto table = client_->CreateTable(spec);
  if (!table.ok()) return table.status();
  table_ = *table;
  gradients_.clear();
  results_.clear();
  for (int k = 0; k < kDepth; ++k) {
    auto gradient = client_->AllocateRegion(table_.gradient_bytes());
    if (!gradient.ok()) return gradient.status();
    gradients_.push_back(*std::move(gradient));
    auto result = client_->AllocateRegion(table_.bytes());
    if (!result.ok()) return result.status();
    results_.push_back(*std::move(result));
  }
  return absl::OkStatus();
}

absl::StatusOr<Interval> Worker::PushPullRounds(int rounds) { return Rounds(rounds, true); }

absl::StatusOr<Interval> Worker::PullRounds(int rounds) { return Rounds(rounds, false); }

absl::StatusOr<Interval> Worker::Rounds(int rounds, bool push) {
  std::vector<Ticket> tickets(kDepth);
  volatile float sink = 0;
  Interval interval;
  const int total = rounds + kDepth;
  for (int i = 0; i < total + kDepth; ++i) {
    const int k = i % kDepth;
    if (i >= kDepth) {
      const absl::Status status = tickets[k].Wait();
      if (!status.ok()) return status;
      sink = sink + ReadResult(results_[k].floats(), table_.bytes() / sizeof(float));
      // Everything before is warm-up: lanes are open, pages are there.
      if (i == 2 * kDepth - 1) interval.begin_ns = NowNanos();
    }
    if (i < total && !push) {
      tickets[k] = client_->Pull(table_, results_[k]);
    } else if (i < total) {
      // Two bf16 are a zero and this number, which has no bits in the lower half.
      FillGradient(gradients_[k].floats(), table_.gradient_bytes() / sizeof(float),
                   static_cast<float>(i % 7) * 0x1p-10f);
      tickets[k] = client_->PushPull(table_, gradients_[k], results_[k]);
    }
  }
  interval.end_ns = NowNanos();
  return interval;
}

absl::StatusOr<double> Worker::PushNanos(int rounds, int gap_us) {
  int64_t spent = 0;
  for (int i = 0; i < rounds + 10; ++i) {
    if (gap_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(gap_us));
    FillGradient(gradients_[0].floats(), table_.elements(), static_cast<float>(i % 7) * 0.001f);
    const int64_t begin = NowNanos();
    const absl::Status status = client_->Push(table_, gradients_[0]).Wait();
    if (!status.ok()) return status;
    if (i >= 10) spent += NowNanos() - begin;
  }
  return static_cast<double>(spent) / rounds;
}

std::string Worker::Device() const {
  for (const ClientStatistics::Lane& lane : client_->statistics().lanes) {
    if (!lane.device.empty()) return lane.device;
  }
  return "";
}

}  // namespace verbena::bench
