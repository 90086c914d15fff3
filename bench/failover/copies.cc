#include <cstdio>
#include <memory>
#include <vector>

#include "bench/failover/cases.h"
#include "bench/failover/pusher.h"

namespace verbena::bench {
namespace {

constexpr uint32_t kChunkBytes = 64 << 10;
constexpr uint64_t kChunks = 256;  // 16 MiB
constexpr int kDepth = 4;
constexpr uint64_t kRange = kChunks / kDepth;
constexpr double kRoundMs = 1000;

// Two servers and a worker; a table for each of the questions.
struct Side {
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Pusher> pusher;

  static absl::StatusOr<Side> Start(const FailoverSettings& settings, int replicas) {
    Side side;
    auto cluster = Cluster::Start(
        {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 2, .replicas = replicas});
    if (!cluster.ok()) return cluster.status();
    side.cluster = *std::move(cluster);
    auto pusher =
        Pusher::Connect(settings.wire, side.cluster->address(), kChunks, kChunkBytes, kChunks);
    if (!pusher.ok()) return pusher.status();
    side.pusher = *std::move(pusher);
    if (absl::Status status = AwaitCopies(*side.cluster); !status.ok()) return status;
    return side;
  }

  // MB/s of pushes, kDepth in flight.
  absl::StatusOr<double> Throughput() {
    std::vector<Ticket> tickets;
    for (int k = 0; k < kDepth; ++k) tickets.push_back(pusher->Push(k * kRange, kRange));
    const auto start = steady_clock::now();
    uint64_t pushed = 0;
    for (int k = 0; MillisecondsSince(start) < kRoundMs; k = (k + 1) % kDepth) {
      if (absl::Status status = tickets[k].Wait(); !status.ok()) return status;
      pushed += kRange * kChunkBytes;
      tickets[k] = pusher->Push(k * kRange, kRange);
    }
    const double ms = MillisecondsSince(start);
    for (Ticket& ticket : tickets) {
      if (absl::Status status = ticket.Wait(); !status.ok()) return status;
    }
    return static_cast<double>(pushed) / ms / 1e3;
  }

  // The median time of a push of one chunk, one after the other, in us.
  absl::StatusOr<double> Latency() {
    Samples us;
    const auto start = steady_clock::now();
    for (uint64_t i = 0; MillisecondsSince(start) < kRoundMs; ++i) {
      const auto one = steady_clock::now();
      if (absl::Status status = pusher->Push(i % kChunks, 1).Wait(); !status.ok()) return status;
      us.Add(MillisecondsSince(one) * 1e3);
    }
    return us.Median();
  }
};

}  // namespace

absl::Status MeasureCopies(const FailoverSettings& settings, Report* report) {
  auto two = Side::Start(settings, 2);
  if (!two.ok()) return two.status();
  auto one = Side::Start(settings, 1);
  if (!one.ok()) return one.status();
  std::printf("pushes with two copies; the limit is one copy, on as many servers\n");
  Row rate{kFailover, "push 4 MiB x 4 in flight", "MB/s", Better::kHigher, {}, {}};
  Row time{kFailover, "push 64 KiB, one at a time", "us", Better::kLower, {}, {}};
  for (int repeat = 0; repeat <= settings.repeats; ++repeat) {
    for (const bool copied : {true, false}) {
      Side& side = copied ? *two : *one;
      auto throughput = side.Throughput();
      if (!throughput.ok()) return throughput.status();
      auto latency = side.Latency();
      if (!latency.ok()) return latency.status();
      if (repeat == 0) continue;  // warms up
      (copied ? rate.value : rate.limit).Add(*throughput);
      (copied ? time.value : time.limit).Add(*latency);
    }
  }
  report->Add(std::move(rate));
  report->Add(std::move(time));
  return absl::OkStatus();
}

}  // namespace verbena::bench
