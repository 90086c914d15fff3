#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "bench/failover/cases.h"
#include "bench/failover/pusher.h"
#include "proto/wire/routing.h"

namespace verbena::bench {
namespace {

constexpr int kServers = 3;
constexpr int kPartitions = 12;
constexpr uint32_t kChunkBytes = 256;

struct Outage {
  double first_ms = 0;  // until a push to one of the partitions was acknowledged
  double all_ms = 0;    // until one to each was
};

// Two chunks in each partition: one is pushed to when the server dies, the other one after that.
class Kills {
 public:
  Kills(Cluster* cluster, Pusher* pusher, uint64_t seed)
      : cluster_(cluster), pusher_(pusher), random_(seed) {}

  absl::StatusOr<Outage> Once() {
    if (absl::Status status = AwaitCopies(*cluster_); !status.ok()) return status;
    auto view = ViewOf(*cluster_);
    if (!view.ok()) return view.status();
    int victim = 0;
    const std::vector<uint64_t> chunks = ChunksOfOne(*view, &victim);
    if (absl::Status status = PushFor(100 + random_() % 200); !status.ok()) return status;

    Ticket under_way = pusher_->Push(0, kPartitions);
    const auto start = steady_clock::now();
    cluster_->KillServer(victim);
    std::vector<double> acknowledged(chunks.size());
    std::vector<Ticket> tickets;
    for (size_t i = 0; i < chunks.size(); ++i) {
      tickets.push_back(pusher_->Push(chunks[i], 1));
      tickets.back().OnDone(
          [at = &acknowledged[i], start](const absl::Status&) { *at = MillisecondsSince(start); });
    }
    tickets.push_back(std::move(under_way));
    absl::Status failed;
    for (Ticket& ticket : tickets) failed.Update(ticket.Wait());
    if (!failed.ok()) return failed;
    if (absl::Status status = cluster_->RestartServer(victim); !status.ok()) return status;
    const auto [first, all] = std::minmax_element(acknowledged.begin(), acknowledged.end());
    return Outage{*first, *all};
  }

 private:
  // Any server that is primary of something; a second chunk of each of its partitions.
  std::vector<uint64_t> ChunksOfOne(const v1::ClusterView& view, int* victim) {
    std::map<uint64_t, std::vector<uint64_t>> chunks;  // by server
    for (uint32_t chunk = kPartitions; chunk < 2 * kPartitions; ++chunk) {
      const uint32_t partition = PartitionOfChunk(pusher_->table_id(), chunk, kPartitions);
      chunks[view.partitions(static_cast<int>(partition)).primary()].push_back(chunk);
    }
    const auto one = std::next(chunks.begin(), static_cast<int64_t>(random_() % chunks.size()));
    for (const v1::Server& server : view.servers()) {
      if (server.incarnation() != one->first) continue;
      (void)absl::SimpleAtoi(absl::StripPrefix(server.name(), "server-"), victim);
    }
    return one->second;
  }

  absl::Status PushFor(uint64_t milliseconds) {
    const auto start = steady_clock::now();
    while (MillisecondsSince(start) < static_cast<double>(milliseconds)) {
      absl::Status status = pusher_->Push(0, 2 * kPartitions).Wait();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  Cluster* cluster_;
  Pusher* pusher_;
  std::mt19937_64 random_;
};

}  // namespace

absl::Status MeasureKills(const FailoverSettings& settings, Report* report) {
  auto cluster = Cluster::Start({.verbenad = settings.verbenad,
                                 .wire = settings.wire,
                                 .servers = kServers,
                                 .replicas = 2,
                                 .lease_ms = settings.lease_ms,
                                 .partitions = kPartitions});
  if (!cluster.ok()) return cluster.status();
  auto pusher = Pusher::Connect(settings.wire, (*cluster)->address(), 2 * kPartitions, kChunkBytes,
                                2 * kPartitions);
  if (!pusher.ok()) return pusher.status();
  std::printf("%d kills of one of %d servers, lease %d ms; the limit is the lease + 500 ms\n",
              settings.kills, kServers, settings.lease_ms);
  Kills kills(cluster->get(), pusher->get(), settings.seed);
  Samples first, all, limit;
  limit.Add(settings.lease_ms + 500);
  for (int i = 0; i < settings.kills; ++i) {
    auto outage = kills.Once();
    if (!outage.ok()) return outage.status();
    first.Add(outage->first_ms);
    all.Add(outage->all_ms);
  }
  const auto add = [&](const std::string& name, const Samples& value) {
    Samples maximum;
    maximum.Add(value.High());
    report->Add({kFailover, name + ", p50", "ms", Better::kLower, value, limit});
    report->Add({kFailover, name + ", maximum", "ms", Better::kLower, maximum, limit});
  };
  add("kill to a push acknowledged", first);
  add("to one in each partition", all);
  return absl::OkStatus();
}

}  // namespace verbena::bench
