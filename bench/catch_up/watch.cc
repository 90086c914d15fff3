#include "bench/catch_up/watch.h"

#include <algorithm>
#include <chrono>

#include "bench/metrics.h"

namespace verbena::bench {
namespace {

void Raise(std::atomic<int64_t>* most, int64_t value) { *most = std::max(most->load(), value); }

}  // namespace

Watch::Watch(const Cluster* cluster, int servers)
    : cluster_(cluster), servers_(servers), thread_([this] { Run(); }) {}

Watch::~Watch() {
  stop_ = true;
  thread_.join();
}

void Watch::Run() {
  while (!stop_) {
    for (int i = 0; i < servers_; ++i) {
      Raise(&log_bytes_,
            MetricSum(MetricsPage(cluster_->MetricsAddress(i)), "verbena_shard_replica_log_bytes"));
    }
    Raise(&resident_bytes_, cluster_->ResidentBytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace verbena::bench
