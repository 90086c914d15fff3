#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/failover/cases.h"
#include "bench/failover/pusher.h"

namespace verbena::bench {
namespace {

constexpr uint32_t kChunkBytes = 256 << 10;
constexpr uint64_t kRange = 4;  // chunks of a push: 1 MiB
constexpr int kDepth = 8;
constexpr int kBucketMs = 100;
constexpr int kWindow = 10;  // buckets

// Pushes without a pause, and counts acknowledged pushes in each 100 ms.
class Load {
 public:
  Load(Pusher* pusher, uint64_t chunks) : pusher_(pusher), ranges_(chunks / kRange) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() { End().IgnoreError(); }

  int Now() const { return static_cast<int>(MillisecondsSince(start_) / kBucketMs); }
  absl::Status End() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return failed_;
  }
  // MB/s of windows of `width` buckets that lie in [from, to). After End().
  std::vector<double> Windows(int from, int to, int width) const {
    std::vector<double> rates;
    for (int first = from; first + width <= to; ++first) {
      double bytes = 0;
      for (int i = first; i < first + width; ++i) bytes += bytes_[i];
      rates.push_back(bytes / (width * kBucketMs) / 1e3);
    }
    return rates;
  }

 private:
  void Run() {
    std::vector<Ticket> tickets;
    uint64_t next = 0;
    const auto push = [&] { return pusher_->Push(next++ % ranges_ * kRange, kRange); };
    for (int k = 0; k < kDepth; ++k) tickets.push_back(push());
    for (int k = 0; !stop_ && failed_.ok() && Now() < static_cast<int>(bytes_.size());
         k = (k + 1) % kDepth) {
      failed_.Update(tickets[k].Wait());
      const size_t bucket = static_cast<size_t>(Now());
      if (bucket < bytes_.size()) bytes_[bucket] += kRange * kChunkBytes;
      tickets[k] = push();
    }
    for (Ticket& ticket : tickets) failed_.Update(ticket.Wait());
  }

  Pusher* pusher_;
  uint64_t ranges_;
  steady_clock::time_point start_ = steady_clock::now();
  std::atomic<bool> stop_ = false;
  absl::Status failed_;                                    // of the thread, until it has ended
  std::vector<double> bytes_ = std::vector<double>(3000);  // likewise
  std::thread thread_;
};

void Sleep(int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }

void PrintHistogram(const Load& load, int from, int to) {
  std::printf("MB/s in each %d ms, from the start of the server until it has all copies:\n",
              kBucketMs);
  int printed = 0;
  for (const double rate : load.Windows(from, to, 1)) {
    std::printf("%7.0f%s", rate, ++printed % kWindow == 0 ? "\n" : "");
  }
  std::printf("\n");
}

}  // namespace

absl::Status MeasureLearner(const FailoverSettings& settings, Report* report) {
  auto started = Cluster::Start({.verbenad = settings.verbenad,
                                 .wire = settings.wire,
                                 .servers = 2,
                                 .replicas = 2,
                                 .lease_ms = settings.lease_ms});
  if (!started.ok()) return started.status();
  Cluster& cluster = **started;
  const uint64_t chunks = (settings.learner_mib << 20) / kChunkBytes;
  auto pusher = Pusher::Connect(settings.wire, cluster.address(), chunks, kChunkBytes, kRange);
  if (!pusher.ok()) return pusher.status();
  if (absl::Status status = AwaitCopies(cluster); !status.ok()) return status;

  Load load(pusher->get(), chunks);
  Sleep(2);  // warms up
  const int before = load.Now();
  Sleep(5);
  const int killed = load.Now();
  cluster.KillServer(1);
  Sleep(settings.lease_ms / 1000 + 3);
  const int restarted = load.Now();
  if (absl::Status status = cluster.RestartServer(1); !status.ok()) return status;
  if (absl::Status status = AwaitCopies(cluster); !status.ok()) return status;
  const int copied = load.Now() + 1;
  Sleep(2);
  if (absl::Status status = load.End(); !status.ok()) return status;

  std::printf("a server without data gets the copy of a table of %lu MiB: %.1f s\n",
              static_cast<unsigned long>(settings.learner_mib),
              (copied - restarted) * kBucketMs / 1e3);
  PrintHistogram(load, restarted, copied);
  const auto add = [&](const char* name, int from, int to) {
    const std::vector<double> during =
        load.Windows(restarted, std::max(copied, restarted + kWindow), kWindow);
    Row row{kFailover, name, "MB/s", Better::kHigher, {}, {}};
    row.value.Add(*std::min_element(during.begin(), during.end()));
    for (const double rate : load.Windows(from, to, kWindow)) row.limit.Add(rate);
    report->Add(std::move(row));
  };
  add("worst 1 s; two copies before", before, killed);
  add("worst 1 s; one copy before", restarted - 2 * kWindow, restarted);
  return absl::OkStatus();
}

}  // namespace verbena::bench
